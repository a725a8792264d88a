"""One arm against a number: does it hold, fail, or is that still open?

Contract: the value of items is the mean over clusters, with an interval whose sides each err with probability at most
alpha; the relation holds when the whole interval satisfies it and fails when the whole interval does not. Metric rows
and exit codes are deterministic values; of several rows the worst decides, so a relation holds when every row
satisfies it. `==` means within the probe's margin. Scores other than 0 and 1 are bounded to 20 margins around the
number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lab import stats
from lab.metric import Measurement, Selection, cluster_means, distinct, parse_metric, select
from lab.stats import EQUIVALENCE_BETS, MARGINS_PER_UNIT, bounded_interval
from lab.target import Probe
from store.errors import RunError

State = Literal["good", "bad", "unclear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured value against `operator number`; `holds` is None while the interval straddles it."""

    metric: str
    operator: str
    number: float
    value: float
    low: float
    high: float
    n: int  # clusters, or deterministic values
    deterministic: bool
    holds: bool | None

    @property
    def text(self) -> str:
        if self.deterministic:
            return f"{self.metric} = {self.value:.4g} ({self.n} deterministic value{'s' if self.n != 1 else ''})"
        return f"{self.metric} = {self.value:.4g} [{self.low:.4g}, {self.high:.4g}] over {self.n} clusters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    state: State
    estimate: Estimate

    @property
    def text(self) -> str:
        wanted = f"{self.estimate.operator} {self.estimate.number:g}"
        return f"{self.state}: {self.estimate.text}, good is {wanted}"


def judge(probe: Probe, measurements: Sequence[Measurement], *, alpha: float = 0.05) -> Judgement:
    """Judge one arm by the probe's `good`; a probe without `good` is judged by its exit code.

    Raises:
        RunError: nothing on record counts, or the probe has neither `good` nor an exit code that means something.
    """
    exit_only = all(not m.items and not m.metrics for m in measurements)
    if exit_only:
        relation, number = ">=", 1.0
    elif probe.good is None:
        raise RunError(
            f"probe `{probe.name}` says nowhere what is good",
            hint=f'add to livepath.toml, under [probe.{probe.name}]: good = ">= 0.95"',
        )
    else:
        relation, number = probe.good.operator, probe.good.number
    estimate = assess(probe, probe.metric, relation, number, measurements, alpha=alpha)
    states: dict[bool | None, State] = {True: "good", False: "bad", None: "unclear"}
    return Judgement(state=states[estimate.holds], estimate=estimate)


def assess(
    probe: Probe,
    metric: str,
    relation: str,
    number: float,
    measurements: Sequence[Measurement],
    *,
    alpha: float = 0.05,
) -> Estimate:
    """Estimate a metric expression on one arm and hold it against a number.

    Raises:
        RunError: nothing on record counts, or it reported nothing of that name.
    """
    measurements = distinct(measurements)
    if not measurements:
        raise RunError(f"probe `{probe.name}` has no run that counts", hint=f"livepath run start {probe.name}")
    own = parse_metric(probe.metric or "score").name
    expression = parse_metric(metric or probe.metric or "score")
    chosen = [(m.run.seed, select(m, expression, own=own)) for m in measurements]
    if all(selection.kind == "items" for _, selection in chosen):
        return _of_items(str(expression), relation, number, chosen, margin=probe.margin, alpha=alpha)
    values = [row.value for _, selection in chosen for row in selection.rows]
    values += [selection.value for _, selection in chosen if selection.kind == "exit"]
    return _of_values(str(expression), relation, number, values, margin=probe.margin)


def detectable_drop(
    probe: Probe, measurements: Sequence[Measurement], *, alpha: float = 0.05, power: float = 0.9
) -> float | None:
    """The smallest drop of the metric that a comparison with this many clusters decides with this power.

    Stated for contexts that were right before and fail as a whole. None where nothing was sampled (deterministic
    values), or where there are too few clusters to decide anything.
    """
    own = parse_metric(probe.metric or "score")
    chosen = [(m.run.seed, select(m, own, own=own.name)) for m in distinct(measurements)]
    drop = stats.detectable_drop(len(cluster_means(chosen)), alpha=alpha, power=power)
    return None if drop is None else drop * MARGINS_PER_UNIT * probe.margin


def _of_items(
    metric: str,
    relation: str,
    number: float,
    chosen: Sequence[tuple[int, Selection]],
    *,
    margin: float,
    alpha: float,
) -> Estimate:
    means = list(cluster_means(chosen).values())
    value = math.fsum(means) / len(means)
    low, high = math.nan, math.nan
    if all(item.score in (0, 1) for _, selection in chosen for item in selection.items):
        low, high = bounded_interval(means, 2 * alpha, EQUIVALENCE_BETS)
    elif not math.isnan(value):
        unit = MARGINS_PER_UNIT * margin
        bounded = [min(1.0, max(0.0, (1 + (mean - number) / unit) / 2)) for mean in means]
        low, high = (number + (2 * side - 1) * unit for side in bounded_interval(bounded, 2 * alpha, EQUIVALENCE_BETS))
        # Beyond the bounds nothing is known of the mean on that side.
        high = math.inf if max(means) > number + unit else high
        low = -math.inf if min(means) < number - unit else low
    return Estimate(
        metric=metric,
        operator=relation,
        number=number,
        value=value,
        low=low,
        high=high,
        n=len(means),
        deterministic=False,
        holds=_decide(relation, number, low, high, margin),
    )


def _of_values(metric: str, relation: str, number: float, values: Sequence[float], *, margin: float) -> Estimate:
    def badness(value: float) -> float:
        if math.isnan(value):
            return math.inf
        return {"<": value, "<=": value, ">": -value, ">=": -value, "==": abs(value - number)}[relation]

    worst = max(values, key=badness)
    return Estimate(
        metric=metric,
        operator=relation,
        number=number,
        value=worst,
        low=min(values),
        high=max(values),
        n=len(values),
        deterministic=True,
        holds=bool(_decide(relation, number, worst, worst, margin)),
    )


def _decide(relation: str, number: float, low: float, high: float, margin: float) -> bool | None:
    """True when every value in [low, high] stands in the relation, False when none does, else None."""
    if math.isnan(low) or math.isnan(high):
        return False  # not a number satisfies nothing
    match relation:
        case ">=":
            holds, fails = low >= number, high < number
        case ">":
            holds, fails = low > number, high <= number
        case "<=":
            holds, fails = high <= number, low > number
        case "<":
            holds, fails = high < number, low >= number
        case _:
            holds = number - margin <= low and high <= number + margin
            fails = high < number - margin or low > number + margin
    return True if holds else False if fails else None
