"""The screen's door on a real case: a repository, a store, and a job carried out by a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.case import create_case
from store.errors import LivepathError, UsageError
from tests.lab.conftest import make_foreign_repo
from tui.door import Door
from tui.gateway import Gateway


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    repo = make_foreign_repo(tmp_path / "foreign")
    create_case(repo.path, "prices", "the till charges too much").close()
    opened = Door(lambda: Gateway(repo.path), investigate=False)
    opened.open()
    yield opened
    opened.close()


def test_a_case_is_read_again_only_after_a_change(door: Door) -> None:
    found = door.poll(None)
    assert found is not None
    version, view = found
    assert [suspect.patch.name for suspect in view.suspects][-1] == "charge-four"
    assert door.poll(version) is None

    door.add_hypothesis("it is the last one", "", "")

    again = door.poll(version)
    assert again is not None
    assert [hypothesis.text for hypothesis in again[1].hypotheses] == ["it is the last one"]


def test_a_source_without_a_run_has_no_signs_and_says_why(door: Door) -> None:
    source = door.source("shop/price.py", None)

    assert source.lines[0].text.startswith("from shop.table")
    assert {line.word for line in source.lines} == {None}
    assert "no run" in source.note


def test_what_a_person_types_wrong_is_refused_with_the_next_step(door: Door) -> None:
    for ask in (
        lambda: door.add_hypothesis("x", "nonsense", ""),
        lambda: door.add_hypothesis("x", "nope.pass on full >= 1", ""),
        lambda: door.start_ab("nope", ""),
        lambda: door.start_ab("charge-four", "nope"),
        lambda: door.add_reading("shop/price.py:90-99", ""),
        lambda: door.source("shop/nope.py", None),
        lambda: door.withdraw_finding(7, "x"),
    ):
        with pytest.raises(LivepathError) as error:
            ask()
        assert error.value.message


def test_a_door_that_is_not_open_yet_says_so() -> None:
    with pytest.raises(UsageError, match="being opened"):
        Door(lambda: Gateway(Path("."))).investigate()


@pytest.mark.e2e
def test_an_ab_asked_for_on_screen_is_done_by_another_process(door: Door) -> None:
    door.add_reading("shop/price.py:1-4", "the price")
    said = door.start_ab("charge-four", "suite")
    assert said == "job 1: A/B of charge-four"

    deadline = time.monotonic() + 90
    while (job := door.gateway.store.job(1)).state in ("queued", "running"):
        assert time.monotonic() < deadline, "the job never ended"
        time.sleep(0.2)
    assert (job.state, job.message.partition(":")[0]) == ("done", "`charge-four` under suite on full")

    found = door.poll(None)
    assert found is not None
    view = found[1]
    suspect = view.suspect("charge-four")
    assert suspect is not None
    assert suspect.verdict is not None
    assert suspect.verdict.verdict == "culprit"
    assert suspect.liveness is not None
    assert suspect.liveness.executed >= 1
    assert "passed" in door.tail(1) + door.tail(2)
    assert any(line.word == "executed" for line in door.source("shop/price.py", None).lines)
