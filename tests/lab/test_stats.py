"""Statistics: known values, the error that was promised, and decisions after as many clusters as expected."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.stats import (
    DIFFERENCE_BETS,
    EQUIVALENCE_BETS,
    bounded_interval,
    detectable_drop,
    log_wealth,
    outcome_so_far,
    paired,
    sign_flip,
    wilson,
)

MARGIN = 0.05


def first_decision(differences: list[float], *, limit: int) -> tuple[str, int]:
    """Look after every second cluster, as a person at the screen does."""
    for n in range(4, limit + 1, 2):
        outcome = outcome_so_far(differences[:n], margin=MARGIN)
        if outcome != "undecided":
            return outcome, n
    return "undecided", limit


def test_interval_of_nineteen_in_twenty_is_the_published_one() -> None:
    assert wilson(0.95, 20) == pytest.approx((0.764, 0.991), abs=5e-4)


def test_rate_without_trials_says_nothing() -> None:
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_sign_flip_is_mcnemars_exact_test_for_right_and_wrong() -> None:
    differences = [-1.0] * 9 + [1.0] + [0.0] * 50

    p_value, method = sign_flip(differences)

    assert method == "exact"
    assert p_value == pytest.approx(2 * (1 + 10) / 2**10)


def test_sign_flip_of_quarters_is_exact_and_agrees_with_enumeration() -> None:
    differences = [0.25, -0.5, 0.75, 0.25, -0.25, 1.0]
    seen = abs(sum(differences))
    signs = [[1 if mask >> bit & 1 else -1 for bit in range(6)] for mask in range(64)]
    hits = sum(abs(sum(s * d for s, d in zip(row, differences, strict=True))) >= seen for row in signs)

    assert sign_flip(differences) == (pytest.approx(hits / 64), "exact")


def test_sign_flip_of_measured_numbers_is_seeded_monte_carlo() -> None:
    differences = list(np.random.default_rng(3).normal(0.4, 1, 30))

    first, again = sign_flip(differences, seed=1), sign_flip(differences, seed=1)

    assert first == again
    assert first[1] == "monte carlo"
    assert 0.005 < first[0] < 0.3


def test_sixty_equal_clusters_are_equivalent_and_fifty_nine_are_not() -> None:
    assert paired([0.0] * 60, margin=MARGIN).outcome == "equivalent"
    assert paired([0.0] * 59, margin=MARGIN).outcome == "undecided"


def test_interval_of_an_equivalence_lies_inside_the_margin() -> None:
    result = paired([0.0] * 78 + [0.25, -0.25], margin=MARGIN)

    assert result.outcome == "equivalent"
    assert -MARGIN <= result.low <= 0 <= result.high <= MARGIN


def test_no_clusters_decide_nothing() -> None:
    result = paired([], margin=MARGIN)

    assert result.outcome == "undecided"
    assert (result.n, result.low, result.high) == (0, -1.0, 1.0)


def test_drop_from_95_to_60_percent_is_decided_in_about_thirty_clusters() -> None:
    rng = np.random.default_rng(0)
    looks = []
    for _ in range(60):
        drop = (rng.random(120) < 0.6).astype(float) - (rng.random(120) < 0.95)
        looks.append(first_decision(list(drop), limit=120))

    assert {outcome for outcome, _ in looks} == {"worse"}
    assert 20 <= np.mean([n for _, n in looks]) <= 40


def test_gain_is_called_better_and_the_mirror_image_worse() -> None:
    differences = [0.5] * 20 + [0.0] * 10

    gain, loss = paired(differences, margin=MARGIN), paired([-d for d in differences], margin=MARGIN)

    assert (gain.outcome, loss.outcome) == ("better", "worse")
    assert gain.low > 0
    assert (loss.low, loss.high) == pytest.approx((-gain.high, -gain.low))


def test_peeking_after_every_cluster_keeps_the_error_below_alpha() -> None:
    rng = np.random.default_rng(1)
    looks = [
        first_decision(list(np.subtract(*(rng.random((2, 100)) < 0.8).astype(float))), limit=100) for _ in range(150)
    ]

    wrong = sum(outcome in ("worse", "better") for outcome, _ in looks)

    assert wrong / len(looks) <= 0.06


def test_a_true_drop_of_the_margin_is_not_called_equivalent_more_often_than_alpha() -> None:
    rng = np.random.default_rng(2)
    outcomes = []
    for _ in range(300):
        drops = list(-(rng.random(240) < MARGIN).astype(float))
        outcomes += ["equivalent" in {outcome_so_far(drops[:n], margin=MARGIN) for n in (60, 90, 120, 240)}]

    assert np.mean(outcomes) <= 0.08


def test_interval_covers_the_mean_it_is_an_interval_of() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(200):
        low, high = bounded_interval(list((rng.random(80) < 0.7).astype(float)), 0.05, DIFFERENCE_BETS)
        covered += low <= 0.7 <= high

    assert covered / 200 >= 0.95


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=80), st.randoms(use_true_random=False))
def test_result_does_not_depend_on_the_order_of_the_clusters(differences: list[float], random: Random) -> None:
    shuffled = list(differences)
    random.shuffle(shuffled)

    first, second = paired(differences, margin=MARGIN), paired(shuffled, margin=MARGIN)

    assert first.outcome == second.outcome
    assert (first.low, first.high) == pytest.approx((second.low, second.high), abs=1e-9)
    assert first.low <= first.difference + 1e-9
    assert first.difference <= first.high + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.01, 0.98))
def test_wealth_falls_as_the_mean_it_bets_against_rises(values: list[float], mean: float) -> None:
    for bets in (EQUIVALENCE_BETS, DIFFERENCE_BETS):
        assert log_wealth(values, mean, bets) >= log_wealth(values, mean + 0.01, bets) - 1e-9


def test_decision_and_interval_agree_about_zero() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        result = paired(list(rng.choice([-1.0, -0.25, 0.0, 0.25], size=40)), margin=MARGIN)
        excluded = result.low > 0 or result.high < 0
        assert excluded == (result.outcome in ("worse", "better"))


def test_outlier_counts_as_twenty_margins() -> None:
    assert paired([1e6] + [0.0] * 99, margin=0.01).difference == pytest.approx(0.2 / 100)


def test_detectable_drop_shrinks_with_the_number_of_clusters() -> None:
    few, some, many = detectable_drop(20), detectable_drop(60), detectable_drop(240)

    assert few is not None
    assert some is not None
    assert many is not None
    assert 0.15 < some < 0.25
    assert few > some > many
    assert detectable_drop(3) is None


def test_detectable_drop_is_seen_with_the_power_it_claims() -> None:
    drop = detectable_drop(60)
    assert drop is not None
    rng = np.random.default_rng(6)

    seen = [outcome_so_far(list(-(rng.random(60) < drop).astype(float)), margin=MARGIN) == "worse" for _ in range(300)]

    assert np.mean(seen) == pytest.approx(0.9, abs=0.06)
    assert math.isfinite(drop)
