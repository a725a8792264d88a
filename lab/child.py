"""One child process under watch: started, drained, ended in time, with everything it started.

Contract: the child runs under `supervise.py`, so nothing it starts outlives it, nor us. Its stdout and stderr go to
files up to a cap; a flood is cut and said, the last bytes are always kept. stdin is empty.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lab.ending import End, read_end

_SUPERVISE = Path(__file__).with_name("supervise.py")
_POLL_S = 0.05
_TAIL_BYTES = 4000
_MARK = "LIVEPATH_FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is left of a child."""

    end: End
    tail: str  # the last it printed: to stderr, or to stdout if stderr is empty
    notes: tuple[str, ...]  # what was cut, and what had to be ended


def run_child(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    cancelled: Callable[[], bool] = lambda: False,
    tick: Callable[[], str] = lambda: "",
    grace_s: float = 3.0,
    max_output_bytes: int = 8 << 20,
) -> Watched:
    """Run a command to its end; `tick` is called while it runs and may name a reason to stop it.

    Raises:
        RunError: the process that watches it died.
    """
    end_path = folder.resolve() / "end.json"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SUPERVISE), str(end_path), str(grace_s), *argv],
        cwd=cwd,
        env={**env, _MARK: str(folder.resolve())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    out = _Drain(process.stdout, folder / "stdout.txt", max_output_bytes)
    err = _Drain(process.stderr, folder / "stderr.txt", max_output_bytes)
    deadline = time.monotonic() + timeout_s
    stopped, asked = "", False
    try:
        while not stopped and not _ended(process, _POLL_S):
            asked = cancelled()
            if asked:
                stopped = "stopped on request"
            elif time.monotonic() > deadline:
                stopped = f"no end within {timeout_s:g} s"
            else:
                stopped = tick()
    finally:
        # Closing its stdin tells the supervisor to end everything; so would our death.
        process.stdin.close()
        if not _ended(process, grace_s + 12):
            process.kill()
            process.wait()
        if process.returncode:  # it was killed itself, so its descendants are ours to end
            _kill_marked(f"{_MARK}={folder.resolve()}".encode())
        out.finish()
        err.finish()
    end = read_end(end_path, stopped, asked)
    notes = [drain.note for drain in (out, err) if drain.note]
    if end.left_behind:
        notes.append(f"{end.left_behind} process(es) outlived the command and were ended")
    return Watched(end=end, tail=err.tail or out.tail, notes=tuple(notes))


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_marked(mark: bytes) -> None:
    """Kill every process that carries the mark in its environment."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


class _Drain:
    """One pipe and its file."""

    def __init__(self, pipe: IO[bytes], path: Path, max_bytes: int) -> None:
        self._pipe, self._path, self._max = pipe, path, max_bytes
        self._last: deque[bytes] = deque(maxlen=2)
        self._count = 0
        self._thread = threading.Thread(target=self._run, name=f"drain {path.name}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._thread.join(timeout=5)

    @property
    def tail(self) -> str:
        return b"".join(self._last)[-_TAIL_BYTES:].decode("utf-8", "replace").replace("\0", "\ufffd").strip()

    @property
    def note(self) -> str:
        cut = self._count > self._max
        return f"{self._path.name} was cut at {self._max} bytes, {self._count} came" if cut else ""

    def _run(self) -> None:
        with self._path.open("wb") as file, self._pipe:
            while block := os.read(self._pipe.fileno(), 1 << 16):
                file.write(block[: max(0, self._max - self._count)])
                file.flush()
                self._count += len(block)
                self._last.append(block)
