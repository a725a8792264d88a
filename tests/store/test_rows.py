"""Every stored type comes back as it went in."""

import math
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import models
from store.db import Database
from store.rows import from_row, kinds, to_row
from store.table import table_of

STORED = (
    models.Patch,
    models.Question,
    models.Hypothesis,
    models.Assumption,
    models.Reading,
    models.ReadingLiveness,
    models.Run,
    models.Attempt,
    models.Item,
    models.Metric,
    models.Claim,
    models.ExecutedFile,
    models.Comparison,
    models.PatchVerdict,
    models.ChangedLine,
    models.Finding,
    models.Bisect,
    models.Job,
    models.CaseInfo,
)

text = st.text(st.characters(exclude_categories=["Cs"]))
number = st.floats(allow_nan=False)
integer = st.integers(-(2**63), 2**63 - 1)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
BY_HINT: dict[str, st.SearchStrategy[Any]] = {
    "dict[str, typing.Any]": st.dictionaries(text, json_value, max_size=3),
    "tuple[dict[str, typing.Any], ...]": st.lists(st.dictionaries(text, json_value, max_size=2), max_size=2).map(tuple),
    "tuple[str, ...]": st.lists(text, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(integer, max_size=3).map(tuple),
    "tuple[tuple[int, int], ...]": st.lists(st.tuples(integer, integer), max_size=3).map(tuple),
    "<class 'str'>": text,
    "str | None": st.none() | text,
    "<class 'int'>": integer,
    "int | None": st.none() | integer,
    "<class 'float'>": number,
    "float | None": st.none() | number,
    "<class 'bool'>": st.booleans(),
    "bool | None": st.none() | st.booleans(),
}


st.register_type_strategy(models.Predicate, st.builds(models.Predicate, number=number))


def instances(cls: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    fields = {name: BY_HINT[str(hint)] if str(hint) in BY_HINT else st.from_type(hint) for name, hint in hints.items()}
    return st.fixed_dictionaries(fields | {"id": st.just(1)} if "id" in fields else fields).map(
        lambda values: cls(**values)
    )


@pytest.mark.parametrize("cls", STORED, ids=lambda cls: cls.__name__)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_goes_into_a_strict_table_comes_out_the_same(cls: type, data: st.DataObject, store: Database) -> None:
    thing = data.draw(instances(cls))
    row = to_row(thing)
    store.connection.execute("PRAGMA foreign_keys = OFF")
    store.connection.execute("BEGIN")
    try:
        store.connection.execute(f'DELETE FROM "{table_of(cls)}"')
        columns, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" for _ in row)
        store.connection.execute(f'INSERT INTO "{table_of(cls)}" ({columns}) VALUES ({marks})', list(row.values()))

        (found,) = store.query(f'SELECT * FROM "{table_of(cls)}"')
        assert from_row(cls, found) == thing
    finally:
        store.connection.execute("ROLLBACK")


@pytest.mark.parametrize("cls", STORED, ids=lambda cls: cls.__name__)
def test_columns_are_the_fields(cls: type, store: Database) -> None:
    columns = [row["name"] for row in store.query(f"PRAGMA table_info({table_of(cls)})")]

    assert {*columns} - {"id"} == {*kinds(cls)} - {"id"}


def test_all_tables_are_strict(store: Database) -> None:
    rows = store.query("SELECT name, strict FROM pragma_table_list WHERE type = 'table' AND schema = 'main'")
    loose = {row["name"] for row in rows if not row["strict"] and not row["name"].startswith(("sqlite_", "_sqlite"))}

    assert loose == set()


def test_nan_is_null_in_a_column_and_a_string_in_json() -> None:
    metric = models.Metric(
        attempt_id=1, name="kl", value=math.nan, tags={"gap": math.inf, "deep": [math.nan, -math.inf]}
    )

    row = to_row(metric)

    assert row["value"] is None
    assert row["tags"] == '{"gap":"Infinity","deep":["NaN","-Infinity"]}'
    assert math.isnan(from_row(models.Metric, row).value)


def test_undecodable_bytes_of_a_repository_do_not_stop_a_write() -> None:
    finding = models.Finding(
        claim="a", verdict=None, patch_id="", patch="", diff="+\udcff", evidence=({"path": "\udc80"},)
    )

    row = to_row(finding)

    assert row["diff"] == "+\ufffd"
    assert row["evidence"] == '[{"path":"\ufffd"}]'


def test_a_prediction_about_an_infinity_comes_back_as_a_number(store: Database) -> None:
    predicate = models.Predicate(probe="p", metric="m", arm="full", operator="<", number=math.inf)
    row = to_row(models.Hypothesis(text="bounded", predicate=predicate))

    assert from_row(models.Hypothesis, row).predicate == predicate
