"""Jobs are carried out by worker processes that nobody has to wait for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab import jobs
from lab.case import Case, create_case
from lab.target import Target
from store.errors import JobError, RepoError
from store.models import Job
from tests.lab.conftest import living

SLOW = "import time, pkg.mod\nprint('began', flush=True)\ntime.sleep(60)\n"
QUICK = "import pkg.mod\n"


@pytest.fixture
def open_case_on(plain_target: Callable[..., Target]) -> Iterator[Callable[[str], Case]]:
    opened: list[Case] = []

    def make(script: str) -> Case:
        target = plain_target({"pkg/__init__.py": "", "pkg/mod.py": "X = 1\n", "probe.py": script}, "python3 probe.py")
        opened.append(create_case(target.folder, "jobs", "it is slow"))
        return opened[-1]

    yield make
    for case in opened:
        for job in case.store.jobs():
            if job.pid and jobs.alive(job):
                os.kill(job.pid, signal.SIGKILL)
        case.close()


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def running(case: Case, job: Job) -> bool:
    assert job.id is not None
    return any(
        attempt.status == "running" for run in case.store.runs() for attempt in case.store.attempts(run.id or 0)
    ) and bool(living(str(case.folder)))


def test_a_job_is_carried_out_by_a_process_of_its_own(open_case_on: Callable[[str], Case]) -> None:
    case = open_case_on(QUICK)

    job = jobs.submit(case, "run", {"probe": "p", "arm": "base"})
    states = [row.state for row in jobs.watch(case, job.id or 0)]

    last = case.store.job(job.id or 0)
    assert states[-1] == last.state == "done"
    assert last.pid not in (None, os.getpid())
    assert last.message.startswith("p on base: good")


def test_cancel_ends_the_probe_and_leaves_nothing(open_case_on: Callable[[str], Case]) -> None:
    case = open_case_on(SLOW)
    job = jobs.submit(case, "run", {"probe": "p", "arm": "base"})
    wait_for(lambda: running(case, job))

    jobs.cancel(case, job.id or 0)
    last = list(jobs.watch(case, job.id or 0))[-1]

    assert last.state == "cancelled"
    assert "goes on from there" in last.message
    wait_for(lambda: not living(str(case.folder)))
    assert not (case.folder / "worktrees").exists()


def test_a_killed_worker_is_replaced_and_its_children_are_gone(open_case_on: Callable[[str], Case]) -> None:
    case = open_case_on(SLOW.replace("60", "4"))
    job = jobs.submit(case, "run", {"probe": "p", "arm": "base"})
    wait_for(lambda: running(case, job))
    first = case.store.job(job.id or 0).pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    last = list(jobs.watch(case, job.id or 0))[-1]

    assert last.state == "done"
    assert last.pid != first
    attempts = [attempt.status for run in case.store.runs() for attempt in case.store.attempts(run.id or 0)]
    assert attempts[-1] == "good"
    assert "running" not in attempts
    wait_for(lambda: not living(str(case.folder)))


def test_an_open_job_is_not_started_twice(open_case_on: Callable[[str], Case]) -> None:
    case = open_case_on(SLOW)
    first = jobs.submit(case, "run", {"probe": "p", "arm": "base"})
    wait_for(lambda: running(case, first))

    second = jobs.submit(case, "run", {"probe": "p", "arm": "base"})

    assert second.id == first.id
    assert len(case.store.jobs()) == 1
    jobs.cancel(case, first.id or 0)
    assert list(jobs.watch(case, first.id or 0))[-1].state == "cancelled"


def test_whoever_stops_while_a_job_is_put_in_the_queue_leaves_none_behind(
    open_case_on: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = open_case_on(QUICK)
    add_job = type(case.store).add_job

    def add_and_be_stopped(*arguments: Any) -> Job:
        add_job(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(case.store), "add_job", add_and_be_stopped)

    with pytest.raises(KeyboardInterrupt):
        jobs.submit(case, "run", {"probe": "p", "arm": "base"})

    assert [(job.state, job.pid) for job in case.store.jobs()] == [("cancelled", None)]


def test_work_that_cannot_be_done_fails_with_one_line(open_case_on: Callable[[str], Case]) -> None:
    case = open_case_on(QUICK)

    job = jobs.submit(case, "run", {"probe": "unknown", "arm": "base"})
    last = list(jobs.watch(case, job.id or 0))[-1]

    assert last.state == "failed"
    assert "unknown" in last.message
    assert "\n" not in last.message


def test_a_worker_that_dies_again_is_not_replaced_for_ever(
    open_case_on: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = open_case_on(QUICK)
    monkeypatch.setattr(jobs, "SILENT_S", 0.3)
    job = case.store.add_job(Job(kind="run", argument={}))
    monkeypatch.setattr(jobs, "start_worker", lambda case, job: job)

    with pytest.raises(JobError, match="died"):
        list(jobs.watch(case, job.id or 0))


def test_a_dirty_repository_is_refused_with_the_next_step(
    open_case_on: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = open_case_on(QUICK)
    (case.git.root / "pkg" / "mod.py").write_text("X = 2\n", encoding="utf-8")

    with pytest.raises(RepoError, match=r"pkg/mod\.py changed and not committed") as caught:
        jobs.submit(case, "run", {"probe": "p", "arm": "base"})

    assert "commit or stash" in caught.value.hint
    assert case.store.jobs() == []

    monkeypatch.setenv(jobs.ALLOW_DIRTY, "1")
    job = jobs.submit(case, "run", {"probe": "p", "arm": "base"})
    assert list(jobs.watch(case, job.id or 0))[-1].state == "done"


def test_a_changed_livepath_toml_takes_part_and_is_not_refused(open_case_on: Callable[[str], Case]) -> None:
    case = open_case_on(QUICK)
    case.target.path.write_text(case.target.text + "\n# a note\n", encoding="utf-8")

    job = jobs.submit(case, "run", {"probe": "p", "arm": "base"})

    assert list(jobs.watch(case, job.id or 0))[-1].state == "done"
