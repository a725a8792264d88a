"""A child process under a time limit: its output goes to a file, and whatever it started ends with it. Linux only."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended; `code` is None where it was stopped at its limit."""

    code: int | None
    seconds: float

    @property
    def verdict(self) -> str:
        if self.code is None:
            return f"over its limit, stopped after {self.seconds:.0f} s"
        return "ok" if self.code == 0 else f"failed, exit {self.code}"


def run_child(
    command: Sequence[str | Path], limit_s: float, log: Path, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run `command` in the checkout for at most `limit_s`; stdout and stderr are appended to `log`."""
    begin = time.monotonic()
    with log.open("ab") as file:
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    code: int | None = None
    try:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(max(0.0, limit_s))
    finally:
        if child.poll() is None:
            kill_tree(child.pid)
            child.wait()
    return Ended(code=code, seconds=time.monotonic() - begin)


def kill_tree(pid: int) -> None:
    """End a process that this one started, and all that it started."""
    # A stopped process starts nothing more while its children are listed. Process groups would not do: the children
    # run children under limits of their own.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        children = _children(pid)
        os.kill(pid, signal.SIGKILL)
        for child in children:
            kill_tree(child)


def _children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # A process may end between being listed and being read.
            with suppress(OSError):
                parent = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
                if int(parent) == pid:
                    found.append(int(folder.name))
    return found


def tail(path: Path, lines: int) -> str:
    """The last lines of a log, indented."""
    text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in text)
