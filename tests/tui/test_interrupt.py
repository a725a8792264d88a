"""Ctrl-C at any moment: one clear line, a non-zero exit, nothing lost, nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.case import create_case, open_case
from tests.lab.conftest import Repo, living, make_foreign_repo

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def slow_repo(tmp_path: Path) -> Repo:
    """The foreign repository with a probe that takes its time."""
    repo = make_foreign_repo(tmp_path / "slow")
    toml = (repo.path / "livepath.toml").read_text(encoding="utf-8")
    repo.write("livepath.toml", toml.replace("-m pytest -q tests", "-c 'import time, shop.price; time.sleep(1.5)'"))
    with create_case(repo.path, "slow", "it takes long"):
        pass
    return repo


def start(repo: Repo, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tui", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until_gone(repo: Repo, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while living(str(repo.path)):
        assert time.monotonic() < deadline, "processes of the case are still there"
        time.sleep(0.1)


@pytest.mark.parametrize("after_s", [0.05, 0.5, 1.0, 2.5, 4.0])
def test_ctrl_c_at_any_moment_leaves_only_the_record(slow_repo: Repo, after_s: float) -> None:
    process = start(slow_repo, "--headless", "-C", str(slow_repo.path))
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)

    assert process.returncode in (130, -signal.SIGINT)  # Python itself, before `main`, ends by the signal
    assert "Traceback" not in stderr or process.returncode == -signal.SIGINT
    wait_until_gone(slow_repo)
    assert slow_repo.git("worktree", "list").count("\n") == 0
    with open_case(slow_repo.path) as case:
        assert all(job.state in ("cancelled", "done") for job in case.store.jobs())
        attempts = [attempt for run in case.store.runs() for attempt in case.store.attempts(run.id)]
        assert all(attempt.status != "running" for attempt in attempts)


def test_what_was_finished_before_ctrl_c_is_not_run_again(slow_repo: Repo) -> None:
    process = start(slow_repo, "--headless", "-C", str(slow_repo.path))
    with open_case(slow_repo.path) as case:
        deadline = time.monotonic() + 30
        while not [r for r in case.store.runs() if case.store.last_good_attempt(r.id)]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)

        again = start(slow_repo, "--headless", "-C", str(slow_repo.path))
        _, stderr = again.communicate(timeout=120)

        assert again.returncode == 0, stderr
        for run in case.store.runs():
            counting = [a for a in case.store.attempts(run.id) if a.status in ("good", "bad")]
            # The base runs twice on purpose, as the A/A.
            assert len(counting) == (2 if run.arm == "base" else 1)
        assert case.store.findings()
