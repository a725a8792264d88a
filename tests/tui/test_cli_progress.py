"""The line of progress, on a terminal and without one."""

from __future__ import annotations

import io
import os
import sys

import pytest

from store.models import Job
from tui.cli.progress import Meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def job(done: int, note: str = "needle on base; about 90 s left", total: int = 10) -> Job:
    return Job(kind="investigate", argument={}, state="running", done=done, total=total, note=note)


def test_a_terminal_shows_one_line_that_never_wraps_and_is_wiped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: os.terminal_size((40, 24)))
    meter = Meter()
    for done in range(3):
        meter.show(job(done, note="needle on base\x1b[2J, about 90 s left " * 3))
    meter.close()

    frames = terminal.getvalue().split("\r\x1b[K")
    assert frames[0] == frames[-1] == ""
    assert [len(frame) for frame in frames[1:-1]] == [39, 39, 39]
    assert "\x1b" not in "".join(frames)
    assert frames[3].startswith("[####................] 2/10 needle")


def test_without_a_terminal_a_line_is_printed_per_step_and_not_per_look(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter()
    for done, note in [(0, "a"), (0, "b"), (1, "c"), (1, "d"), (2, "e")]:
        meter.show(job(done, note))
    meter.close()

    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["a", "c", "e"]


def test_time_left_is_told_again_after_a_while(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    meter = Meter()
    for seconds, note in [(0.0, "60 s left"), (5.0, "55 s left"), (11.0, "49 s left")]:
        now[0] = 100.0 + seconds
        meter.show(job(4, note))

    assert capsys.readouterr().err == "    0 s  4/10  60 s left\n   11 s  4/10  49 s left\n"


def test_a_job_that_waits_for_its_worker_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Meter().show(Job(kind="run", argument={}))

    assert capsys.readouterr().err == "    0 s  0/?  waiting for its worker\n"
