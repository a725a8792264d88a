"""Findings whose ground moved are flagged, and unflagged when it is back."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.recheck import recheck
from store.models import Finding
from store.store import Store
from tests.lab.written_case import write_case


@pytest.fixture
def store(tmp_path: Path):
    with write_case(tmp_path / "case.db") as opened:
        yield opened


def finding(store: Store, *evidence: dict[str, object]) -> int:
    made = store.put_finding(Finding(claim="c", verdict=None, patch="", patch_id="", diff="", evidence=evidence))
    assert made.id is not None
    return made.id


def test_nothing_moved_flags_nothing(store: Store) -> None:
    finding(store, {"kind": "reading", "id": 1}, {"kind": "run", "id": 1})

    assert recheck(store, {1: "fresh"}) == []
    assert recheck(store, {1: "moved"}) == []


@pytest.mark.parametrize("state", ["changed", "gone"])
def test_stale_reading_flags_the_finding_that_cites_it_and_no_other(store: Store, state: str) -> None:
    cites, other = finding(store, {"kind": "reading", "id": 1}), finding(store, {"kind": "run", "id": 1})

    changed = recheck(store, {1: state})

    assert [one.id for one in changed] == [cites]
    assert store.finding(cites).flagged == f"reading 1 (e.py:1-3) is {state}"
    assert store.finding(other).flagged == ""


def test_flag_goes_when_its_reason_goes(store: Store) -> None:
    cites = finding(store, {"kind": "reading", "id": 1})
    recheck(store, {1: "changed"})

    recheck(store, {1: "fresh"})

    assert store.finding(cites).flagged == ""


def test_changed_diff_flags_and_a_rebase_does_not(store: Store) -> None:
    store.put_patch(replace(store.patch("layout"), commit="d" * 40))
    assert recheck(store, {}) == []

    store.put_patch(replace(store.patch("layout"), patch_id="id-other"))
    assert [one.flagged for one in recheck(store, {})] == ["the diff of `layout` changed"]


def test_run_that_does_not_count_any_more_flags(store: Store) -> None:
    cites = finding(store, {"kind": "run", "id": 1})
    attempt = store.attempts(1)[0]
    store.update_attempt(replace(attempt, status="cannot_be_tested"))

    recheck(store, {})

    assert store.finding(cites).flagged == "run 1 does not count any more"


def test_withdrawn_finding_flags_what_cites_it_and_is_left_alone(store: Store) -> None:
    first = finding(store, {"kind": "reading", "id": 1})
    cites = finding(store, {"kind": "finding", "id": first})
    store.withdraw_finding(first, "wrong tree")

    changed = recheck(store, {1: "gone"})

    assert [one.id for one in changed] == [cites]
    assert store.finding(cites).flagged == f"finding {first} was withdrawn: wrong tree"
