"""Numbers with their uncertainty: intervals for rates, exact paired tests, and evidence by betting.

Contract: a paired difference `u` of one cluster lies in [-1, 1]. Evidence is a wealth: a gambler starts with 1 and
bets against a hypothesis about the mean; while the hypothesis holds, the wealth reaches 1/alpha with probability at
most alpha *at any time* (Ville's inequality), so looking after every cluster costs nothing more. Wealth is a fixed
mixture of constant bets, hence independent of the order of the clusters. Nothing here is asymptotic but `wilson`.

Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (arXiv 2010.09686);
Schuirmann 1987 for the two one-sided tests of equivalence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Literal

import numpy as np

MIN_EQUIVALENCE_CLUSTERS = 60
MARGINS_PER_UNIT = 20  # a cluster that moves by more than 20 margins counts as 20 margins

# (fraction of the largest admissible bet, weight). All in on "nothing differs" decides soonest when nothing does, and
# is ruined by one cluster that flips entirely; the smaller bets keep a stake for that case.
EQUIVALENCE_BETS = ((1.0, 0.94), (0.9, 0.04), (0.6, 0.01), (0.3, 0.01))
DIFFERENCE_BETS = ((0.95, 0.2), (0.75, 0.2), (0.5, 0.2), (0.25, 0.2), (0.1, 0.2))

Bets = tuple[tuple[float, float], ...]
Outcome = Literal["worse", "better", "equivalent", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedResult:
    """What n paired cluster differences say. Positive means the second arm is better.

    `low` and `high` bound the mean difference at 1 - alpha, except for `equivalent`, where they are the 1 - 2 alpha
    interval that the two one-sided tests stand for (and so lie inside the margin).
    """

    outcome: Outcome
    n: int
    difference: float
    low: float
    high: float
    e_worse: float
    e_better: float
    e_equivalent: float
    p_value: float
    p_method: Literal["exact", "monte carlo"]


def wilson(rate: float, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """Wilson score interval of a rate seen in n trials; used for display, where n may be small and the rate 0 or 1."""
    if n <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(1 - alpha / 2)
    centre = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def log_wealth(values: Sequence[float], mean: float, bets: Bets) -> float:
    """Log of the wealth won by betting that values in [0, 1] have a mean above `mean`.

    One bet f multiplies the wealth by 1 - f + f * x / mean at each value x: 1 on average if the mean is as claimed,
    never negative, and decreasing in `mean`, which makes the interval below one bisection.
    """
    x, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    return _mixture(x, counts, mean, bets)


def lower_bound(values: Sequence[float], alpha: float, bets: Bets) -> float:
    """The largest mean of values in [0, 1] that the bets reject at level alpha; 0 if they reject none."""
    goal = math.log(1 / alpha)
    x, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    rejected, kept = 0.0, float(np.mean(values))  # no bet can win against the mean that was seen
    for _ in range(40):
        middle = (rejected + kept) / 2
        if middle > 0 and _mixture(x, counts, middle, bets) >= goal:
            rejected = middle
        else:
            kept = middle
    return rejected


def bounded_interval(values: Sequence[float], alpha: float, bets: Bets) -> tuple[float, float]:
    """Interval of the mean of values in [0, 1]; each side errs with probability at most alpha / 2, at any time."""
    flipped = [1 - value for value in values]
    return lower_bound(values, alpha / 2, bets), 1 - lower_bound(flipped, alpha / 2, bets)


def paired(differences: Sequence[float], *, margin: float, alpha: float = 0.05, seed: int = 0) -> PairedResult:
    """Judge paired cluster differences in the metric's sense of better (positive = better).

    Worse and better are each decided at alpha / 2. Equivalence needs both one-sided tests at alpha and at least 60
    clusters; it comes first, because a difference inside the margin is one the user declared not to matter.
    """
    n = len(differences)
    unit = MARGINS_PER_UNIT * margin
    differences = [min(unit, max(-unit, difference)) for difference in differences]
    if n == 0:
        return PairedResult(
            outcome="undecided", n=0, difference=0.0, low=-unit, high=unit, e_worse=1.0, e_better=1.0, e_equivalent=1.0,
            p_value=1.0, p_method="exact",
        )  # fmt: skip
    up, down = _unit_scale(differences, unit)
    outcome, wealth = _decide(up, down, alpha)
    if outcome == "equivalent":
        low, high = bounded_interval(up, 2 * alpha, EQUIVALENCE_BETS)
    else:
        low, high = bounded_interval(up, alpha, DIFFERENCE_BETS)
    p_value, p_method = sign_flip(differences, seed=seed)
    return PairedResult(
        outcome=outcome,
        n=n,
        difference=(2 * float(np.mean(up)) - 1) * unit,
        low=(2 * low - 1) * unit,
        high=(2 * high - 1) * unit,
        e_worse=wealth[0],
        e_better=wealth[1],
        e_equivalent=wealth[2],
        p_value=p_value,
        p_method=p_method,
    )


def outcome_so_far(differences: Sequence[float], *, margin: float, alpha: float = 0.05) -> Outcome:
    """The outcome alone, cheap enough to ask after every cluster; asking often does not add to the error."""
    return _decide(*_unit_scale(differences, MARGINS_PER_UNIT * margin), alpha)[0] if differences else "undecided"


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> tuple[float, Literal["exact", "monte carlo"]]:
    """Two-sided p of the paired sign-flip test; for differences in {-1, 0, 1} this is McNemar's exact test.

    Exact when the differences are whole multiples of a unit of at least 1/1000 (then the sums are counted by dynamic
    programming), else from 20 000 seeded flips. The p-value holds for one look at a number of clusters fixed in
    advance.
    """
    moved = [difference for difference in differences if difference != 0]
    if not moved:
        return 1.0, "exact"
    whole = _as_integers(moved)
    if whole is not None:
        return _count_sums(whole), "exact"
    values = np.asarray(moved)
    rng = np.random.default_rng(seed)
    flips = rng.integers(0, 2, size=(20_000, len(moved)), dtype=np.int8) * 2 - 1
    extreme = int(np.sum(np.abs(flips @ values) >= abs(float(values.sum())) * (1 - 1e-12)))
    return (extreme + 1) / (len(flips) + 1), "monte carlo"


def detectable_drop(n: int, *, alpha: float = 0.05, power: float = 0.9) -> float | None:
    """The smallest drop that n clusters decide with this power, when all were right before and fail as a whole.

    None when not even the failure of every cluster would be decided.
    """
    from scipy.special import bdtrc

    def decided(failed: int) -> bool:
        down = [1.0] * failed + [0.5] * (n - failed)
        return log_wealth(down, 0.5, DIFFERENCE_BETS) >= math.log(2 / alpha)

    needed = next((failed for failed in range(1, n + 1) if decided(failed)), None)
    if needed is None:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if float(bdtrc(needed - 1, n, middle)) >= power:
            high = middle
        else:
            low = middle
    return high


def _as_integers(values: Sequence[float]) -> list[int] | None:
    """The values as multiples of their common unit, or None when they have none or the sums would be too many."""
    fractions = [Fraction(value).limit_denominator(1000) for value in values]
    if any(abs(float(fraction) - value) > 1e-9 for fraction, value in zip(fractions, values, strict=True)):
        return None
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * common) for fraction in fractions]
    return whole if sum(map(abs, whole)) <= 1_000_000 // len(whole) + 10_000 else None


def _count_sums(values: Sequence[int]) -> float:
    """P(|sum of randomly signed values| >= |sum seen|), by convolving one value after the other."""
    chance = np.ones(1)
    for value in map(abs, values):
        wider = np.zeros(len(chance) + 2 * value)
        wider[: len(chance)] += chance / 2
        wider[2 * value :] += chance / 2
        chance = wider
    reach = len(chance) // 2
    sums = np.abs(np.arange(-reach, reach + 1))
    return min(1.0, float(chance[sums >= abs(sum(values))].sum()))


def _unit_scale(differences: Sequence[float], unit: float) -> tuple[list[float], list[float]]:
    """Differences moved from [-unit, unit] to [0, 1], and mirrored: a mean above one half is better, or worse."""
    up = [min(1.0, max(0.0, (1 + difference / unit) / 2)) for difference in differences]
    return up, [1 - value for value in up]


def _decide(up: Sequence[float], down: Sequence[float], alpha: float) -> tuple[Outcome, tuple[float, float, float]]:
    """The outcome with the wealth won for worse, better and equivalent."""
    inside = (1 - 1 / MARGINS_PER_UNIT) / 2
    log_worse = log_wealth(down, 0.5, DIFFERENCE_BETS)
    log_better = log_wealth(up, 0.5, DIFFERENCE_BETS)
    log_equal = min(log_wealth(up, inside, EQUIVALENCE_BETS), log_wealth(down, inside, EQUIVALENCE_BETS))
    outcome: Outcome = "undecided"
    if len(up) >= MIN_EQUIVALENCE_CLUSTERS and log_equal >= math.log(1 / alpha):
        outcome = "equivalent"
    elif log_worse >= math.log(2 / alpha):
        outcome = "worse"
    elif log_better >= math.log(2 / alpha):
        outcome = "better"
    worse, better, equal = (math.exp(min(wealth, 700.0)) for wealth in (log_worse, log_better, log_equal))
    return outcome, (worse, better, equal)


def _mixture(x: np.ndarray, counts: np.ndarray, mean: float, bets: Bets) -> float:
    fractions, weights = np.array(bets).T
    with np.errstate(divide="ignore"):
        grown = np.log(1 - fractions[:, None] + fractions[:, None] * (x / mean)) @ counts
    return float(np.logaddexp.reduce(np.log(weights) + grown))
