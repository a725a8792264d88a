"""How a run ended, and what its end means.

Contract: events with `end: ok` count. Events without an `end`, a signal, a time-out, a file from outside the worktree
cannot be tested and are never "bad". Without events the exit code decides as for `git bisect run`: 0 good, 1-124 bad,
125 cannot be tested, 126 and 127 not runnable, 128 and above a fault of the machine. A wait status of a signal is
never read as an exit code.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.events import Events
from lab.record import Record
from store.errors import RunError
from store.models import AttemptStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How the process ended."""

    exit_code: int | None = None
    signal: int | None = None
    stopped: str = ""  # why the lab stopped it
    cancelled: bool = False
    not_started: str = ""
    left_behind: int = 0  # processes that outlived the command and were ended


def read_end(path: Path, stopped: str, asked: bool) -> End:
    """Read what the supervisor wrote; `stopped` and `asked` say why the lab told it to stop, if it did.

    Raises:
        RunError: it wrote nothing.
    """
    try:
        end: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError("the process that watches the target died", hint="see stderr.txt beside the run") from error
    if "not_started" in end:
        return End(not_started=end["not_started"])
    status = end["status"]
    code = os.waitstatus_to_exitcode(status) if status is not None else None
    was_stopped = stopped if end["stopped"] else ""
    return End(
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        stopped=was_stopped,
        cancelled=asked and bool(was_stopped),
        left_behind=end["left_behind"],
    )


def meaning(end: End, events: Events, record: Record) -> tuple[AttemptStatus, str]:
    """What an end means, with the reason in words. A signal is never read as an exit code."""
    if end.cancelled:
        return "cancelled", "stopped on request"
    if end.not_started:
        return "cannot_be_tested", f"not runnable: {end.not_started}"
    if end.stopped:
        return "cannot_be_tested", end.stopped
    if end.signal is not None:
        return "cannot_be_tested", f"killed by signal {end.signal}"
    if record.outside:
        module, path = record.outside[0]
        return "cannot_be_tested", f"`{module}` was loaded from {path}, not from the worktree"
    code = end.exit_code
    if events.end == "ok":
        return "ok", "" if code == 0 else f"exit code {code} after `end: ok`"
    if events.end == "failed":
        return "cannot_be_tested", "the probe itself says that it failed"
    if events.readable:
        return "cannot_be_tested", f"events but no `end`; exit code {code}"
    if events.unreadable:
        return "cannot_be_tested", f"no readable event in {events.unreadable} lines: {events.problems[0]}"
    if code == 0:
        return "good", ""
    if code is None or code >= 128:
        return "infrastructure", f"exit code {code}: a fault of the machine or the wrapper, not of the tree"
    if code in (126, 127):
        return "cannot_be_tested", f"not runnable: exit code {code}"
    if code == 125:
        return "cannot_be_tested", "exit code 125: the probe cannot test this tree"
    return "bad", f"exit code {code}"
