"""Readings and ranges held against the runs of a case: a real foreign repository, run by the bench."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.arms import BASE, FULL
from lab.bench import Bench, Outcome
from lab.case import Case, create_case
from lab.live import liveness_of, patch_liveness, reading_liveness
from lab.readings import make_reading
from store.errors import UsageError
from tests.lab.conftest import make_repo

METHODS = """\
KIND = "fp8"


class Fp8:
    def apply(self, x):
        return x * 2


class Nvfp4:
    def apply(self, x):
        return x * 2.0


def pick():
    return Fp8() if KIND == "fp8" else Nvfp4()
"""
TEST = "from engine.methods import pick\n\n\ndef test_apply():\n    assert pick().apply(2) == 4\n"
TOML = """\
schema = 1
[target]
base = "v1"
head = "main"
trace = ["engine"]
env = { PYTEST_ADDOPTS = "-p no:cacheprovider" }
[probe.suite]
command = "python3 -m pytest -q tests"
timeout_s = 60
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Case, dict[str, Outcome]]]:
    """A target whose probe is pytest and which writes no events; a stack that moves the work to another class."""
    repo = make_repo(tmp_path_factory.mktemp("case") / "repo")
    repo.write("engine/__init__.py", "")
    repo.write("engine/methods.py", METHODS)
    repo.write("tests/test_apply.py", TEST)
    repo.write("livepath.toml", TOML)
    repo.write(".gitignore", ".livepath/\n__pycache__/\n")
    repo.commit("first")
    repo.git("tag", "v1")
    nvfp4 = METHODS.replace('KIND = "fp8"', 'import os\n\nKIND = "nvfp4"')
    repo.write("engine/methods.py", nvfp4)
    repo.commit("engine: nvfp4 experts")
    repo.write("engine/methods.py", nvfp4.replace("return x * 2\n", "return x * 2 * 1\n"))
    repo.commit("engine: fp8 guard")
    with create_case(repo.path, "methods", "wrong answers") as case, Bench(case, job_id=None) as bench:
        arms = (BASE, FULL, BASE.with_("fp8-guard"))
        yield case, {arm.name: bench.run("suite", arm) for arm in arms}


def test_a_dead_reading_names_what_ran_instead_and_what_made_it_dead(ran: tuple[Case, dict[str, Outcome]]) -> None:
    case, outcomes = ran
    reading = make_reading(case.git, "engine/methods.py:5-6@v1")
    full = outcomes["full"]

    live = reading_liveness(case, reading, full.run, full.attempt)

    assert (live.word, live.count, live.reason) == (
        "not_seen",
        None,
        "`Fp8.apply` was never entered; the text is not what was read: its lines were edited",
    )
    assert live.siblings == ({"path": "engine/methods.py", "start": 12, "end": 13, "qualname": "Nvfp4.apply"},)
    assert live.given == ("nvfp4-experts",)


def test_the_same_reading_is_live_at_base(ran: tuple[Case, dict[str, Outcome]]) -> None:
    case, outcomes = ran
    base = outcomes["base"]

    live = reading_liveness(case, make_reading(case.git, "engine/methods.py:5-6@v1"), base.run, base.attempt)

    assert (live.word, live.given, live.siblings) == ("executed", (), ())


def test_a_patch_is_dead_in_the_full_stack_and_live_without_the_other(ran: tuple[Case, dict[str, Outcome]]) -> None:
    case, outcomes = ran
    found = {
        arm: patch_liveness(
            case.git,
            case.store.patch("fp8-guard"),
            tree=outcomes[arm].run.tree,
            executed=case.store.executed(outcomes[arm].attempt_id),
            attempt=outcomes[arm].attempt,
            run_id=outcomes[arm].run_id,
            trace=case.target.trace,
        )
        for arm in ("full", "base+fp8-guard")
    }

    assert found["full"].dead
    assert found["base+fp8-guard"].acting_executed == 1


def test_every_run_has_a_row_for_lines_of_the_head(ran: tuple[Case, dict[str, Outcome]]) -> None:
    case, _ = ran

    rows = {row.arm: row for row in liveness_of(case, "engine/methods.py", 13)}

    assert {arm: row.word for arm, row in rows.items()} == {
        "base": "not_seen",
        "full": "executed",
        "base+fp8-guard": "not_seen",
    }
    assert (rows["base"].start, rows["full"].start) == (11, 13)
    printed = json.loads(json.dumps(rows["full"].as_json()))
    assert (printed["word"], printed["count"], printed["given"]) == ("executed", None, [])


def test_lines_that_are_not_there_are_refused(ran: tuple[Case, dict[str, Outcome]]) -> None:
    with pytest.raises(UsageError, match="no file"):
        liveness_of(ran[0], "engine/nowhere.py")
