"""Two arms on one probe, paired: cluster by cluster, value by value, or exit code by exit code.

Contract: items pair by (seed, id); a cluster counts when both arms have it; its difference is taken over the items
both have. What has no partner is counted and named, never guessed. Metric rows pair by (seed, name, tags), exit codes
by seed; both are deterministic values: equal within the margin is equivalent, else the worst value decides. A score
that is not a number is the worst score there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from lab.metric import Measurement, MetricExpression, Selection, distinct, parse_metric, select
from lab.stats import MARGINS_PER_UNIT, Outcome, paired
from lab.target import Probe
from store.errors import RunError
from store.models import Comparison, Metric

V = TypeVar("V")

MEASURED_TAGS = frozenset({"residual"})  # fields of a metric row that are results, not part of what it is a row of


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison with what it left out and how its p-value came about."""

    comparison: Comparison
    missing: tuple[str, ...] = ()  # items, values or seeds that only one arm has
    p_method: Literal["exact", "monte carlo", ""] = ""

    @property
    def text(self) -> str:
        """One line for a person: what was compared, what came out, with n and interval."""
        c = self.comparison
        if c.deterministic:
            values = "1 deterministic value" if c.n == 1 else f"{c.n} deterministic values"
            line = f"{c.metric} {c.outcome}: largest difference {c.difference:+.4g} over {values}"
        else:
            line = (
                f"{c.metric} {c.outcome}: {c.difference:+.4g} [{c.low:+.4g}, {c.high:+.4g}] "
                f"over {c.n} clusters ({c.items} items, {c.discordant} differ), margin {c.margin:g}"
            )
        return line + (f"; {len(self.missing)} without a partner" if self.missing else "")


def compare(
    probe: Probe,
    background: str,
    without: Sequence[Measurement],
    with_: Sequence[Measurement],
    *,
    metric: str = "",
    alpha: float = 0.05,
) -> Compared:
    """Compare two arms on a probe's metric, or on another metric expression.

    Args:
        probe: gives metric, margin and which way is better.
        background: the arm that both are compared on, in words.
        without: measurements of the arm without the change, one per seed.
        with_: measurements of the arm with it.
        metric: an expression in place of the probe's own metric.
        alpha: error of a decision, two-sided.

    Raises:
        RunError: an arm was not measured, or reported nothing of that name, or the two arms differ in kind.
    """
    without, with_ = distinct(without), distinct(with_)
    for side, found in (("without", without), ("with", with_)):
        if not found:
            raise RunError(
                f"probe `{probe.name}`: the arm {side} the change has no run that counts",
                hint=f"run it first: livepath run start {probe.name}",
            )
    expression = parse_metric(metric or probe.metric or "score")
    own = parse_metric(probe.metric or "score").name
    first, second = _selections(without, expression, own), _selections(with_, expression, own)
    kinds = {selection.kind for selection in (*first.values(), *second.values())}
    if len(kinds) > 1:
        raise RunError(
            f"probe `{probe.name}`: the arms cannot be paired, one wrote {' and one '.join(sorted(kinds))}",
            hint="look at the events of both runs: livepath run show RUN",
        )
    common = sorted(first.keys() & second.keys())
    seeds_missing = tuple(f"seed {seed}" for seed in sorted(first.keys() ^ second.keys()))
    head = _Head(probe, background, str(expression), without[0], with_[0], alpha)
    pairs = [(seed, first[seed], second[seed]) for seed in common]
    if kinds == {"items"}:
        return _compare_items(head, pairs, seeds_missing)
    return _compare_values(head, pairs, seeds_missing, exit_codes=kinds == {"exit"})


@dataclass(frozen=True, slots=True)
class _Head:
    """The fields of a Comparison that do not depend on how it is computed."""

    probe: Probe
    background: str
    metric: str
    without: Measurement
    with_: Measurement
    alpha: float

    @property
    def sense(self) -> int:
        return 1 if self.probe.higher_is_better else -1

    def comparison(
        self,
        *,
        outcome: Outcome,
        n: int,
        items: int,
        difference: float,
        low: float,
        high: float,
        discordant: int,
        p_value: float | None = None,
        deterministic: bool = False,
    ) -> Comparison:
        return Comparison(
            probe=self.probe.name,
            metric=self.metric,
            background=self.background,
            without_arm=self.without.run.arm,
            with_arm=self.with_.run.arm,
            without_run=self.without.run.id or 0,
            with_run=self.with_.run.id or 0,
            outcome=outcome,
            n=n,
            items=items,
            difference=difference + 0.0,
            low=low + 0.0,
            high=high + 0.0,
            p_value=p_value,
            discordant=discordant,
            margin=self.probe.margin,
            alpha=self.alpha,
            deterministic=deterministic,
        )


def _selections(found: Sequence[Measurement], expression: MetricExpression, own: str) -> dict[int, Selection]:
    return {measurement.run.seed: select(measurement, expression, own=own) for measurement in found}


def _compare_items(
    head: _Head, pairs: Sequence[tuple[int, Selection, Selection]], missing: tuple[str, ...]
) -> Compared:
    clusters: dict[tuple[int, str], list[float]] = {}
    for seed, first, second in pairs:
        partners, alone = _pair(first.items, second.items, lambda item: item.item)
        missing += alone
        for item, partner in partners:
            difference = _bounded(_better_by(item.score, partner.score, head.sense), head.probe.margin)
            clusters.setdefault((seed, item.cluster), []).append(difference)
    result = paired(
        [math.fsum(values) / len(values) for values in clusters.values()], margin=head.probe.margin, alpha=head.alpha
    )
    low, high = sorted((head.sense * result.low, head.sense * result.high))
    comparison = head.comparison(
        outcome=result.outcome,
        n=result.n,
        items=sum(map(len, clusters.values())),
        difference=head.sense * result.difference,
        low=low,
        high=high,
        p_value=result.p_value,
        discordant=sum(value != 0 for values in clusters.values() for value in values),
    )
    return Compared(comparison=comparison, missing=missing, p_method=result.p_method)


def _compare_values(
    head: _Head, pairs: Sequence[tuple[int, Selection, Selection]], missing: tuple[str, ...], *, exit_codes: bool
) -> Compared:
    # A good exit code is better than a bad one, whatever the probe says of its metric.
    sense, margin = (1, 0.0) if exit_codes else (head.sense, head.probe.margin)
    differences: list[float] = []
    for _, first, second in pairs:
        if exit_codes:
            differences.append(second.value - first.value)
            continue
        partners, alone = _pair(first.rows, second.rows, _identity)
        missing += alone
        differences += [_better_by(row.value, partner.value, sense) for row, partner in partners]
    worst, best = min(differences, default=0.0), max(differences, default=0.0)
    outcome: Outcome = "equivalent" if differences and not missing else "undecided"
    shown = max(differences, key=abs, default=0.0)
    if worst < -margin:
        outcome, shown = "worse", worst
    elif best > margin:
        outcome, shown = "better", best
    low, high = sorted((sense * worst, sense * best))
    comparison = head.comparison(
        outcome=outcome,
        n=len(differences),
        items=len(differences),
        difference=sense * shown,
        low=low,
        high=high,
        discordant=sum(difference != 0 for difference in differences),
        deterministic=True,
    )
    return Compared(comparison=comparison, missing=missing)


def _pair(
    first: Sequence[V], second: Sequence[V], name: Callable[[V], str]
) -> tuple[list[tuple[V, V]], tuple[str, ...]]:
    """The pairs of equal name in the order of the first arm, and the names that only one arm has."""
    left, right = {name(value): value for value in first}, {name(value): value for value in second}
    return [(left[key], right[key]) for key in left if key in right], tuple(sorted(left.keys() ^ right.keys()))


def _identity(row: Metric) -> str:
    tags = ", ".join(f"{tag}={row.tags[tag]}" for tag in sorted(row.tags) if tag not in MEASURED_TAGS)
    return f"{row.name}[{tags}]" if tags else row.name


def _better_by(first: float, second: float, sense: int) -> float:
    """How much better the second value is; not a number is worse than any number."""
    if math.isnan(first) or math.isnan(second):
        return math.inf * (math.isnan(first) - math.isnan(second)) if math.isnan(first) != math.isnan(second) else 0.0
    return 0.0 if first == second else sense * (second - first)


def _bounded(difference: float, margin: float) -> float:
    unit = MARGINS_PER_UNIT * margin
    return min(unit, max(-unit, difference))
