"""`livepath bisect` and `livepath session import` on the foreign repository, as processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.models import Bisect, Job
from tests.lab.conftest import Repo, make_foreign_repo
from tests.tui.conftest import Livepath
from tests.tui.test_cli_judge import livepath as process

STEPS = ({"arm": "base", "last": "splitk-decode", "outcome": "equivalent", "difference": 0.0, "n": 60},)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = make_foreign_repo(tmp_path / "foreign", careful=True)
    process(repo.path, "case", "new", "prices", "--symptom", "the till charges too much")
    return repo


def test_the_culprit_is_named_with_its_steps_and_its_diff(repo: Repo) -> None:
    found = process(repo.path, "bisect", "start", "--probe", "suite")
    status = json.loads(process(repo.path, "bisect", "status", "--json").stdout)
    report = json.loads(process(repo.path, "report", "--json").stdout)

    assert "culprit charge-four" in found.stdout
    (row,) = status["bisects"]
    assert (row["verdict"], row["culprits"], status["jobs"]) == ("culprit", ["charge-four"], [])
    assert [step["outcome"] for step in row["steps"]][-1] == "bracket worse"
    assert report["bisects"] == [row]
    runs = {run["id"] for run in report["runs"]}
    assert row["runs"]
    assert set(row["runs"]) <= runs
    (finding,) = report["findings"]
    assert "+    return amount * 4" in finding["diff"]


def test_a_search_done_before_runs_nothing_again(repo: Repo) -> None:
    process(repo.path, "bisect", "start", "--probe", "suite")
    before = json.loads(process(repo.path, "run", "list", "--json").stdout)

    again = process(repo.path, "bisect", "resume")

    assert "culprit charge-four" in again.stdout
    assert json.loads(process(repo.path, "run", "list", "--json").stdout) == before


def test_a_session_is_imported_with_its_counts(repo: Repo) -> None:
    repo.write("log.txt", "$ sed -n 8,9p shop/price.py\ndef rarely(amount):\n    return round(amount - 1)\n")
    process(repo.path, "run", "start", "suite")

    answer = process(repo.path, "session", "import", "log.txt", "--host", "gpu7", "--json")

    data = json.loads(answer.stdout)
    assert (data["matched"], data["unmatched"], data["commands"]) == (1, 0, 1)
    assert data["readings"][0]["reading"]["host"] == "gpu7"
    assert data["readings"][0]["liveness"]["word"] == "not_seen"
    assert answer.stderr.startswith("1 commands, 1 looks at files: 1 readings (1 matched")
    assert process(repo.path, "session", "import", "nowhere.txt").returncode == 2


def test_a_log_without_a_prompt_says_what_a_prompt_is(repo: Repo) -> None:
    repo.write("log.txt", "nothing here\n")

    answer = process(repo.path, "session", "import", "log.txt")

    assert (answer.returncode, answer.stdout) == (0, "")
    assert "no prompt was found" in answer.stderr


def test_status_shows_a_search_that_runs(livepath: Livepath) -> None:
    store = livepath.gateway.store
    store.put_bisect(Bisect(probe="scaling", background="base", steps=STEPS))
    job = store.add_job(Job(kind="bisect", argument={"probe": "scaling"}, state="running", note="scaling on base"))

    answer = livepath("bisect", "status")

    assert "scaling" in answer.out
    assert "running" in answer.out
    assert "splitk-decode" in answer.out
    assert f"job {job.id} is running: scaling on base" in answer.err


def test_stop_asks_the_search_and_nothing_else(livepath: Livepath) -> None:
    store = livepath.gateway.store
    store.add_job(Job(kind="run", argument={}, state="running"))
    job = store.add_job(Job(kind="bisect", argument={"probe": "scaling"}, state="running"))

    assert livepath("bisect", "stop").code == 0
    assert [asked for asked in livepath.gateway.asked if asked[0] == "cancel"] == [("cancel", job.id)]


def test_resume_goes_on_with_the_probe_that_was_asked_for(livepath: Livepath) -> None:
    livepath.gateway.store.add_job(Job(kind="bisect", argument={"probe": "scaling"}, state="cancelled"))

    livepath("bisect", "resume", "--no-wait")

    assert ("bisect", {"probe": "scaling"}) in livepath.gateway.asked
