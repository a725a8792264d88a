"""Comparisons of two arms: pairing, sense of better, deterministic values, exit codes."""

import math

import pytest

from lab.compare import compare
from store.errors import RunError
from tests.lab.measurements import contexts, measurement, probe


def arm(name: str, right: float, *, count: int = 60, **more: object):
    scores, tags = contexts(count, right=right)
    return measurement(name, scores=scores, tags=tags, **more)


def test_same_scores_in_sixty_contexts_are_equivalent() -> None:
    found = compare(probe(), "full", [arm("full-P", 1.0)], [arm("full", 1.0, run_id=2)]).comparison

    assert found.outcome == "equivalent"
    assert (found.n, found.items, found.discordant, found.difference) == (60, 240, 0, 0.0)
    assert -found.margin <= found.low <= found.high <= found.margin
    assert (found.without_arm, found.with_arm, found.without_run, found.with_run) == ("full-P", "full", 1, 2)


def test_lost_recall_is_worse_and_the_difference_is_negative() -> None:
    found = compare(probe(), "base", [arm("base", 1.0)], [arm("full", 0.6)]).comparison

    assert found.outcome == "worse"
    assert found.difference == pytest.approx(-0.4)
    assert found.high < 0
    assert found.p_value is not None
    assert found.p_value < 1e-6
    assert found.discordant == 24 * 4


def test_metric_where_lower_is_better_turns_the_outcome_not_the_difference() -> None:
    spec = probe("kl", metric="kl", higher_is_better=False, margin=1e-3)
    low = measurement("base", scores={f"c{n}": [1e-4] for n in range(80)})
    high = measurement("full", scores={f"c{n}": [2e-2] for n in range(80)})

    rise, fall = compare(spec, "base", [low], [high]).comparison, compare(spec, "base", [high], [low]).comparison

    assert (rise.outcome, fall.outcome) == ("worse", "better")
    assert rise.difference == pytest.approx(0.0199)
    assert rise.low > 0
    assert fall.high < 0


def test_filter_compares_only_the_lengths_it_names() -> None:
    short, short_tags = contexts(60, length=256)
    long, long_tags = contexts(60, right=0.5, length=2048)
    whole, whole_tags = contexts(60, length=2048)
    base = measurement("base", scores=short | whole, tags=short_tags | whole_tags)
    full = measurement("full", scores=short | long, tags=short_tags | long_tags)

    assert compare(probe(), "b", [base], [full], metric="recall[length<=512]").comparison.outcome == "equivalent"
    assert compare(probe(), "b", [base], [full], metric="recall[length>512]").comparison.outcome == "worse"


def test_items_without_a_partner_are_named_and_left_out() -> None:
    scores, _ = contexts(61)
    fewer = {name: values for name, values in scores.items() if not name.endswith("c60")}

    found = compare(probe(), "base", [measurement(scores=scores)], [measurement("full", scores=fewer)])

    assert found.comparison.n == 60
    assert found.missing == tuple(f"L1024/c60/q{number}" for number in range(4))
    assert "4 without a partner" in found.text


def test_seeds_pool_and_repeats_of_a_seed_do_not() -> None:
    without = [arm("base", 1.0, count=30), arm("base", 1.0, count=30, seed=1, run_id=3)]
    with_ = [arm("full", 1.0, count=30), arm("full", 1.0, count=30, seed=1, run_id=4)]

    assert compare(probe(), "base", without, with_).comparison.n == 60
    assert compare(probe(), "base", [without[0]] * 2, [with_[0]] * 2).comparison.n == 30


def test_seed_that_only_one_arm_has_is_missing() -> None:
    found = compare(probe(), "base", [arm("base", 1.0), arm("base", 1.0, seed=7)], [arm("full", 1.0)])

    assert found.missing == ("seed 7",)
    assert found.comparison.n == 60


def test_score_that_is_not_a_number_is_the_worst_score() -> None:
    scores, _ = contexts(60)
    broken = {name: [math.nan] * len(values) for name, values in scores.items()}

    found = compare(probe(), "base", [measurement(scores=scores)], [measurement("full", scores=broken)]).comparison

    assert found.outcome == "worse"
    assert math.isfinite(found.difference)


def test_metric_rows_are_deterministic_values_paired_by_their_tags() -> None:
    spec = probe("scaling", metric="exponent_error", higher_is_better=False)
    base = measurement(rows=[("exponent_error", 0.001, {"layer": 0}), ("exponent_error", 0.002, {"layer": 1})])
    same = measurement("full", rows=[("exponent_error", 0.003, {"layer": 1}), ("exponent_error", 0.001, {"layer": 0})])
    doubled = measurement("full", rows=[("exponent_error", 1.0, {"layer": 1}), ("exponent_error", 0.0, {"layer": 0})])

    equal = compare(spec, "base", [base], [same]).comparison
    worse = compare(spec, "base", [base], [doubled]).comparison

    assert (equal.outcome, equal.n, equal.deterministic, equal.p_value) == ("equivalent", 2, True, None)
    assert worse.outcome == "worse"
    assert worse.difference == pytest.approx(0.998)


def test_row_that_only_one_arm_has_leaves_the_comparison_undecided() -> None:
    spec = probe("scaling", metric="exponent")
    base = measurement(rows=[("exponent", 1.0, {"layer": 0}), ("exponent", 1.0, {"layer": 1})])
    full = measurement("full", rows=[("exponent", 1.0, {"layer": 0})])

    found = compare(spec, "base", [base], [full])

    assert found.comparison.outcome == "undecided"
    assert found.missing == ("exponent[layer=1]",)


def test_residual_of_a_row_does_not_keep_it_from_its_partner() -> None:
    spec = probe("scaling", metric="exponent")
    base = measurement(rows=[("exponent", 1.0, {"layer": 0, "residual": 1e-7})])
    full = measurement("full", rows=[("exponent", 1.0, {"layer": 0, "residual": 3e-7})])

    assert compare(spec, "base", [base], [full]).comparison.outcome == "equivalent"


@pytest.mark.parametrize(
    ("without", "with_", "outcome"),
    [("good", "bad", "worse"), ("bad", "good", "better"), ("good", "good", "equivalent"), ("bad", "bad", "equivalent")],
)
def test_exit_codes_are_one_deterministic_value(without: str, with_: str, outcome: str) -> None:
    spec = probe("tests", metric="", higher_is_better=False)

    found = compare(spec, "base", [measurement(status=without)], [measurement("full", status=with_)]).comparison

    assert (found.outcome, found.n, found.deterministic) == (outcome, 1, True)


def test_arm_without_a_run_is_an_error_with_the_next_step() -> None:
    with pytest.raises(RunError, match="no run that counts") as error:
        compare(probe(), "base", [], [arm("full", 1.0)])

    assert "livepath run start needle" in error.value.hint


def test_arms_that_wrote_different_things_are_not_paired() -> None:
    with pytest.raises(RunError, match="exit and one items"):
        compare(probe(metric=""), "base", [measurement(status="good")], [arm("full", 1.0)])
