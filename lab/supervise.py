"""The parent of one target process: no process of a run outlives it.

Contract: `python -I -S supervise.py END GRACE COMMAND...` starts the command in a session of its own and waits. When
stdin closes (the lab asks to stop, or is dead) or the command ends, everything that descends from it is ended:
SIGTERM to the group, GRACE seconds, SIGKILL; on Linux also what left the group, since orphans fall to this process.
How it ended goes to END as JSON. Standard library only: it runs by path, outside any package, with no site-packages.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
# Helpers such as multiprocessing's resource tracker end by themselves a moment after their parent.
_LINGER_S = 0.5
# Without it (macOS) only the command's group can be ended.
_PROC = Path("/proc/self/stat").exists()


def main(argv: list[str]) -> int:
    end_path, grace_s, command = Path(argv[0]), float(argv[1]), argv[2:]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only stdin tells us to stop
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake = _wake_on_child()
    try:
        pid = _start(command)
    except OSError as error:
        _write(end_path, {"not_started": f"{command[0]}: {error.strerror}"})
        return 0
    status = _wait(pid, wake)
    stopped = status is None
    left = 0
    if status is None:
        status = _end_all(pid, grace_s)
    elif _descendants() and not _gone_within(_LINGER_S):
        left = len(_descendants())
        _end_all(pid, grace_s)
    _write(end_path, {"status": status, "stopped": stopped, "left_behind": left})
    return 0


def _wake_on_child() -> int:
    """A pipe that becomes readable when a child ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _start(command: list[str]) -> int:
    null = os.open(os.devnull, os.O_RDONLY)
    defaults = [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE]
    return os.posix_spawnp(
        command[0],
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, null, 0)],
        setsid=True,
        setsigdef=defaults,
    )


def _wait(pid: int, wake: int) -> int | None:
    """The command's wait status; None when stdin closed first."""
    while True:
        status = _reap(pid)
        if status is not None:
            return status
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 512)
        elif not os.read(0, 512):
            return _reap(pid)


def _reap(pid: int | None = None) -> int | None:
    """Collect every ended child; returns the wait status of `pid` if it is among them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == pid:
            found = status


def _end_all(main: int, grace_s: float) -> int | None:
    """End the command and every descendant; returns the command's wait status, None if even SIGKILL did not end it."""
    status = None
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + wait_s
        told: set[int] = set()
        if not _PROC:
            _signal(-main, number)
        while True:
            for pid in _descendants():
                if pid not in told:
                    _signal(pid, number)
                    told.add(pid)
            # Listed before reaping: one that dies in between is listed as living, or reaped.
            gone = not _descendants() and (_PROC or not _signal(-main, 0))
            found = _reap(main)
            status = found if found is not None else status
            if gone:
                return status
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    return status


def _gone_within(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _descendants():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
        _reap()
    return True


def _signal(pid: int, number: int) -> bool:
    """Signal a process, or with a negative number its group; False when it is gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _descendants() -> list[int]:
    """Every living process below this one; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_bytes().rpartition(b") ")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _write(path: Path, end: dict[str, object]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(end), encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
