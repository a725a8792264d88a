"""One arm against a number: good, bad, or not yet clear."""

import math

import pytest

from lab.judge import assess, detectable_drop, judge
from store.errors import RunError
from tests.lab.measurements import contexts, measurement, probe


def needle(right: float, count: int = 60):
    scores, tags = contexts(count, right=right)
    return measurement(scores=scores, tags=tags)


@pytest.mark.parametrize(
    ("right", "count", "state"), [(1.0, 60, "good"), (1.0, 40, "unclear"), (0.6, 60, "bad"), (0.95, 60, "unclear")]
)
def test_arm_is_good_or_bad_only_when_the_whole_interval_is(right: float, count: int, state: str) -> None:
    found = judge(probe(good=">= 0.95"), [needle(right, count)])

    assert found.state == state
    assert found.estimate.n == count
    assert found.estimate.low <= right <= found.estimate.high
    assert found.text.startswith(f"{state}: recall = ")


def test_sampling_unit_is_the_cluster_not_the_question() -> None:
    few = measurement(scores={f"c{number}": [1.0] * 50 for number in range(10)})

    assert judge(probe(good=">= 0.95"), [few]).state == "unclear"


def test_metric_rows_are_judged_by_the_worst() -> None:
    rows = [("exponent", 1.0, {"layer": 0}), ("exponent", 2.0, {"layer": 1}), ("exponent", 0.99, {"layer": 2})]
    found = [measurement(rows=rows)]
    spec = probe("scaling", metric="exponent", margin=0.05)

    assert assess(spec, "exponent", "==", 1, found).value == 2.0
    assert assess(spec, "exponent", "==", 1, found).holds is False
    assert assess(spec, "exponent[layer!=1]", "==", 1, found).holds is True
    assert assess(spec, "exponent", ">=", 0.99, found).holds is True
    assert assess(spec, "exponent", "<=", 1.5, found).holds is False


def test_error_metric_without_tags_is_one_value() -> None:
    spec = probe("scaling", metric="exponent_error", higher_is_better=False, good="<= 0.05")

    assert judge(spec, [measurement(rows=[("exponent_error", 0.001, {})])]).state == "good"
    assert judge(spec, [measurement(rows=[("exponent_error", 1.0, {})])]).state == "bad"
    assert judge(spec, [measurement(rows=[("exponent_error", math.nan, {})])]).state == "bad"


def test_small_divergence_is_good_and_a_wide_one_is_bad() -> None:
    spec = probe("kl", metric="kl", higher_is_better=False, good="<= 1e-4", margin=1e-4)

    near = measurement(scores={f"c{n}": [1e-6, 2e-6] for n in range(66)})
    far = measurement(scores={f"c{n}": [1e-2, 2e-2] for n in range(66)})

    assert judge(spec, [near]).state == "good"
    assert judge(spec, [far]).state == "bad"
    assert judge(spec, [far]).estimate.high == math.inf


def test_one_outlier_keeps_a_mean_from_being_called_small() -> None:
    spec = probe("kl", metric="kl", higher_is_better=False, good="<= 1e-4", margin=1e-4)
    scores = {f"c{n}": [1e-6] for n in range(99)} | {"outlier": [5.0]}

    assert judge(spec, [measurement(scores=scores)]).state != "good"


@pytest.mark.parametrize(("status", "state"), [("good", "good"), ("bad", "bad")])
def test_probe_without_events_is_judged_by_its_exit_code(status: str, state: str) -> None:
    assert judge(probe("tests", metric=""), [measurement(status=status)]).state == state


def test_probe_that_does_not_say_what_is_good_is_told_how() -> None:
    with pytest.raises(RunError, match="nowhere what is good") as error:
        judge(probe(), [needle(1.0)])

    assert "[probe.needle]" in error.value.hint


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(RunError, match="no run that counts"):
        assess(probe(), "recall", ">=", 0.5, [])


def test_drop_that_would_have_been_seen_is_stated_for_samples_only() -> None:
    drop = detectable_drop(probe(), [needle(1.0)])

    assert drop is not None
    assert 0.1 < drop < 0.3
    assert detectable_drop(probe(metric=""), [measurement(status="good")]) is None
