"""What an attempt measured, and the small language that names a part of it.

Contract: `recall`, `recall[length>=1024]`, `exponent[branch=routed, phase=decode]`. A name reads metric rows of that
name, or the items (their mean of ok or score). The items are read when the name is the probe's own and no row has it,
or when every row of that name is the mean of the items under its tags and says so (`n` is their number): then they
carry the same measure with its sample. A probe that wrote neither is read by its exit code: 1 good, 0 bad. A filter
keeps what has the tag and fits.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from store.errors import RunError, UsageError
from store.models import Attempt, Item, Metric, Run
from store.store import Store

ITEM_NAMES = ("ok", "score")

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_EXPRESSION = re.compile(r"\s*([\w.-]+)\s*(?:\[([^\[\]]*)\])?\s*")
_CONDITION = re.compile(r"\s*([\w.-]+)\s*(>=|<=|!=|==|=|>|<)\s*(.+?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    tag: str
    operator: str
    value: str

    def fits(self, tags: Mapping[str, Any]) -> bool:
        if self.tag not in tags:
            return False
        have, want = _number(tags[self.tag]), _number(self.value)
        if have is not None and want is not None:
            return _OPERATORS[self.operator](have, want)
        if self.operator in ("=", "==", "!="):
            return _OPERATORS[self.operator](str(tags[self.tag]), self.value)
        return False


@dataclass(frozen=True, slots=True)
class MetricExpression:
    name: str
    conditions: tuple[Condition, ...] = ()

    def fits(self, tags: Mapping[str, Any]) -> bool:
        return all(condition.fits(tags) for condition in self.conditions)

    def __str__(self) -> str:
        inside = ", ".join(f"{c.tag}{c.operator}{c.value}" for c in self.conditions)
        return f"{self.name}[{inside}]" if inside else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run with its last attempt that counts."""

    run: Run
    attempt: Attempt
    items: tuple[Item, ...] = ()
    metrics: tuple[Metric, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The part of one measurement that an expression names."""

    kind: Literal["items", "metrics", "exit"]
    items: tuple[Item, ...] = ()
    rows: tuple[Metric, ...] = ()
    value: float = math.nan  # of kind "exit"


def parse_metric(text: str) -> MetricExpression:
    """Read a metric expression.

    Raises:
        UsageError: it is not `NAME` or `NAME[TAG OP VALUE, ...]`.
    """
    match = _EXPRESSION.fullmatch(text)
    if match:
        conditions = []
        for part in filter(str.strip, (match[2] or "").split(",")):
            condition = _CONDITION.fullmatch(part)
            if condition is None:
                break
            conditions.append(Condition(condition[1], condition[2], condition[3]))
        else:
            return MetricExpression(match[1], tuple(conditions))
    raise UsageError(
        f"`{text}` is no metric expression: expected NAME or NAME[TAG OP VALUE, ...]",
        hint="write for example recall[length>=1024] or exponent[branch=routed]",
    )


def measure(store: Store, run: Run) -> Measurement | None:
    """A run's last attempt that counts with what it wrote, or None when no attempt counts."""
    if run.id is None:
        return None
    attempt = store.last_good_attempt(run.id)
    if attempt is None or attempt.id is None:
        return None
    return Measurement(
        run=run, attempt=attempt, items=tuple(store.items(attempt.id)), metrics=tuple(store.metrics(attempt.id))
    )


def distinct(measurements: Iterable[Measurement]) -> list[Measurement]:
    """One measurement per (tree, seed): a deterministic repeat is not another sample. The later one stays."""
    by_sample = {(m.run.tree, m.run.seed, m.run.probe, m.run.instrumentation): m for m in measurements}
    return list(by_sample.values())


def select(measurement: Measurement, expression: MetricExpression, *, own: str) -> Selection:
    """The items, metric rows or exit code that an expression names; `own` is the name of the probe's own metric.

    Without a filter, a row without tags stands for its tagged fellows.

    Raises:
        RunError: the attempt reported nothing of that name, or nothing fits the filter.
    """
    items, metrics = measurement.items, measurement.metrics
    rows = [row for row in metrics if row.name == expression.name]
    if not items and not rows and (not metrics or expression.name in ITEM_NAMES):
        return Selection(kind="exit", value=1.0 if measurement.attempt.status in ("good", "ok") else 0.0)
    summarised = [_summarised(row, items) for row in rows]
    if items and not rows and expression.name in (own, *ITEM_NAMES):
        summarised = [items]
    if summarised and all(summarised):
        covered = {item.item for part in summarised for item in part}
        kept = tuple(item for item in items if item.item in covered and expression.fits(item.tags))
        if kept:
            return Selection(kind="items", items=kept)
    elif rows:
        kept_rows = tuple(row for row in rows if expression.fits(row.tags))
        overall = tuple(row for row in kept_rows if not row.tags)
        if kept_rows:
            return Selection(kind="metrics", rows=overall or kept_rows)
    names = sorted({row.name for row in metrics} | ({own} if items else set()))
    raise RunError(
        f"probe `{measurement.run.probe}` on `{measurement.run.arm}` reported nothing that `{expression}` names",
        hint=f"it reported {', '.join(names)}" if names else "it reported nothing",
    )


def cluster_means(selections: Sequence[tuple[int, Selection]]) -> dict[tuple[int, str], float]:
    """Mean score per (seed, cluster). A score that is not a number makes its cluster not a number."""
    scores: dict[tuple[int, str], list[float]] = {}
    for seed, selection in selections:
        for item in selection.items:
            scores.setdefault((seed, item.cluster), []).append(item.score)
    return {cluster: math.fsum(values) / len(values) for cluster, values in scores.items() if values}


def _summarised(row: Metric, items: Sequence[Item]) -> tuple[Item, ...]:
    """The items that a row is the mean of: as many as it says, with its tags; () when it is no such mean."""
    fitting = tuple(item for item in items if all(item.tags.get(tag) == value for tag, value in row.tags.items()))
    if not fitting or row.n != len(fitting):
        return ()
    mean = math.fsum(item.score for item in fitting) / len(fitting)
    same = math.isclose(mean, row.value, rel_tol=1e-3, abs_tol=1e-9) or (math.isnan(mean) and math.isnan(row.value))
    return fitting if same else ()


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
