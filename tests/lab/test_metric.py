"""The language of metrics: what a name and a filter select."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.metric import Condition, distinct, parse_metric, select
from store.errors import RunError, UsageError
from tests.lab.measurements import measurement

ROWS = [("recall", 0.75, {}, 4), ("recall", 1.0, {"length": 256}, 2), ("recall", 0.5, {"length": 2048}, 2)]
SCORES = {"a": [1, 1], "b": [1, 0]}
TAGS = {"a": {"length": 256}, "b": {"length": 2048}}


@settings(max_examples=50, deadline=None)
@given(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    st.lists(
        st.builds(
            Condition,
            st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
            st.sampled_from([">=", "<=", "==", "!=", ">", "<", "="]),
            st.from_regex(r"[a-z0-9.]{1,6}", fullmatch=True),
        ),
        max_size=3,
    ),
)
def test_expression_prints_as_it_is_read(name: str, conditions: list[Condition]) -> None:
    inside = ",".join(f"{c.tag}{c.operator}{c.value}" for c in conditions)

    parsed = parse_metric(f"{name}[{inside}]")

    assert parsed.conditions == tuple(conditions)
    assert parse_metric(str(parsed)) == parsed


@pytest.mark.parametrize("text", ["", "a b", "recall[length]", "recall[length>=1024", "[x=1]"])
def test_malformed_expression_is_named_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="no metric expression") as error:
        parse_metric(text)

    assert "recall[length>=1024]" in error.value.hint


def test_numbers_compare_as_numbers_and_words_as_words() -> None:
    assert parse_metric("x[length>=1024]").fits({"length": 2048})
    assert not parse_metric("x[length>=1024]").fits({"length": 512})
    assert parse_metric("x[branch=routed]").fits({"branch": "routed"})
    assert not parse_metric("x[branch>=routed]").fits({"branch": "routed"})
    assert not parse_metric("x[length>=1024]").fits({})


def test_rows_that_summarise_the_items_give_way_to_them() -> None:
    chosen = select(measurement(scores=SCORES, tags=TAGS, rows=ROWS), parse_metric("recall"), own="recall")

    assert chosen.kind == "items"
    assert len(chosen.items) == 4


def test_summary_of_some_items_selects_those() -> None:
    found = measurement(scores=SCORES, tags=TAGS, rows=[("recall_long", 0.5, {"length": 2048}, 2)])

    chosen = select(found, parse_metric("recall_long"), own="recall")

    assert [item.cluster for item in chosen.items] == ["b", "b"]


def test_largest_error_is_no_summary_even_when_all_errors_are_equal() -> None:
    found = measurement(scores={"a": [0.0], "b": [0.0]}, rows=[("error", 0.0, {})])

    assert select(found, parse_metric("error"), own="error").kind == "metrics"


def test_filter_on_items_keeps_what_fits() -> None:
    chosen = select(measurement(scores=SCORES, tags=TAGS), parse_metric("recall[length>=1024]"), own="recall")

    assert [item.score for item in chosen.items] == [1, 0]


def test_row_of_another_measure_is_read_as_a_row_beside_items() -> None:
    found = measurement(scores=SCORES, rows=[("seconds", 3.0, {})])

    assert select(found, parse_metric("seconds"), own="recall").rows[0].value == 3.0


def test_row_without_tags_stands_for_its_tagged_fellows() -> None:
    found = measurement(rows=ROWS)

    assert [row.value for row in select(found, parse_metric("recall"), own="recall").rows] == [0.75]
    assert [row.value for row in select(found, parse_metric("recall[length>0]"), own="recall").rows] == [1.0, 0.5]


def test_name_that_nothing_has_is_an_error_that_lists_the_names() -> None:
    found = measurement(scores=SCORES, rows=[("seconds", 3.0, {})])

    with pytest.raises(RunError, match="`recall2`") as error:
        select(found, parse_metric("recall2"), own="recall")

    assert "recall, seconds" in error.value.hint


def test_filter_that_fits_nothing_is_an_error() -> None:
    with pytest.raises(RunError, match="length>9000"):
        select(measurement(scores=SCORES, tags=TAGS), parse_metric("recall[length>9000]"), own="recall")


@pytest.mark.parametrize(("status", "value"), [("good", 1.0), ("bad", 0.0)])
def test_probe_that_writes_nothing_is_read_by_its_exit_code(status: str, value: float) -> None:
    chosen = select(measurement(status=status), parse_metric("score"), own="score")

    assert (chosen.kind, chosen.value) == ("exit", value)


def test_repeat_of_the_same_tree_and_seed_is_not_another_sample() -> None:
    first, again, other = measurement(run_id=1), measurement(run_id=2), measurement(run_id=3, seed=1)

    assert distinct([first, again, other]) == [again, other]
