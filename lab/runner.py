"""Runs one probe once, in a worktree, as a child process, and says what its end means.

Contract: the command is split as a shell would split it, but no shell runs; `python`, `python3` and `{python}` as its
first word are the target's interpreter. Its environment is an allow-list plus what livepath.toml and the flags set.
Whatever happens (crash, hang, flood, orphans, cancel, death of the lab) no process is left. The meaning of an end is
`meaning`: events with `end: ok` count; a signal or time-out cannot be tested and is never "bad"; without events the
exit code decides as for `git bisect run`.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import coverage

from lab.child import run_child
from lab.ending import meaning
from lab.events import Events, Progress, ProgressTail, read_events
from lab.record import Record, read_record, traced_names, traced_roots
from lab.target import Probe, Target
from store.errors import RunError
from store.models import AttemptStatus

INJECT = Path(__file__).with_name("inject")
# What a target may see of the person's environment.
ALLOWED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
)
_PYTHONS = ("python", "python3", "{python}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One execution: which probe, in which worktree, under which environment."""

    probe: Probe
    target: Target
    worktree: Path
    env: Mapping[str, str] = field(default_factory=dict)  # of the flags
    seed: int = 0
    run_id: int = 0
    folder: Path  # artefacts: events.jsonl, stdout.txt, stderr.txt, record/
    traced: bool = True  # False: no line recorder; loaded files are still recorded
    grace_s: float = 3.0
    max_output_bytes: int = 8 << 20
    max_events_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    status: AttemptStatus
    reason: str
    exit_code: int | None
    signal: int | None
    stderr_tail: str
    events: Events
    record: Record
    wall_s: float
    notes: tuple[str, ...] = ()  # what was cut or cleaned up


def execute(
    spec: RunSpec,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> RunResult:
    """Run the probe and return what came of it; only faults of the machine raise.

    Raises:
        RunError: the artefact folder cannot be written, or the process that watches the target died.
    """
    record_folder = spec.folder / "record"
    try:
        (record_folder / "site").mkdir(parents=True)
        (record_folder / "site" / "coverage").symlink_to(Path(coverage.__file__).parent)
    except OSError as error:
        raise RunError(
            f"{spec.folder} cannot be used: {error.strerror}", hint="every attempt needs a new folder"
        ) from error
    began = time.monotonic()
    events_path = spec.folder / "events.jsonl"
    progress = ProgressTail(events_path)

    def tick() -> str:
        for news in progress.news():
            on_progress(news)
        flood = _size(events_path) > spec.max_events_bytes
        return f"the events file grew past {spec.max_events_bytes} bytes" if flood else ""

    watched = run_child(
        argv_of(spec),
        cwd=spec.worktree,
        env=environment(spec),
        folder=spec.folder,
        timeout_s=spec.probe.timeout_s,
        cancelled=cancelled,
        tick=tick,
        grace_s=spec.grace_s,
        max_output_bytes=spec.max_output_bytes,
    )
    wall_s = time.monotonic() - began
    if _size(events_path) > spec.max_events_bytes:
        os.truncate(events_path, spec.max_events_bytes)
    events = read_events(events_path)
    record = read_record(record_folder, spec.worktree, lines=spec.traced)
    status, reason = meaning(watched.end, events, record)
    notes = (*watched.notes, *filter(None, [events.cut]))
    return RunResult(
        status=status,
        reason="; ".join(filter(None, (reason, *notes))),
        exit_code=watched.end.exit_code,
        signal=watched.end.signal,
        stderr_tail=watched.tail,
        events=events,
        record=record,
        wall_s=wall_s,
        notes=notes,
    )


def argv_of(spec: RunSpec) -> list[str]:
    """The command as words.

    Raises:
        RunError: its quotes do not match, or it is empty.
    """
    try:
        words = shlex.split(spec.probe.command)
    except ValueError as error:
        raise RunError(f"command of probe `{spec.probe.name}`: {error}", hint="mend it in livepath.toml") from error
    if not words:
        raise RunError(f"probe `{spec.probe.name}` has an empty command", hint="write one in livepath.toml")
    python = str(spec.target.python)
    words = [python if at == 0 and word in _PYTHONS else word for at, word in enumerate(words)]
    return [word.replace("{python}", python) for word in words]


def environment(spec: RunSpec) -> dict[str, str]:
    """Everything the target sees of an environment."""
    env = {key: os.environ[key] for key in ALLOWED if key in os.environ}
    env["PATH"] = os.pathsep.join([str(spec.target.python.parent), env.get("PATH", os.defpath)])
    env |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"} | spec.target.env | dict(spec.env)
    own = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    env["PYTHONPATH"] = os.pathsep.join([str(INJECT), str(spec.worktree), *(str(spec.worktree / part) for part in own)])
    roots = traced_roots(spec.worktree, spec.target.trace)
    record = spec.folder.resolve() / "record"
    return env | {
        "LIVEPATH_EVENTS": str(spec.folder.resolve() / "events.jsonl"),
        "LIVEPATH_SEED": str(spec.seed),
        "LIVEPATH_RUN": str(spec.run_id),
        "LIVEPATH_RECORD": str(record),
        "LIVEPATH_TRACE": os.pathsep.join(map(str, roots)),
        "LIVEPATH_NAMES": ",".join(traced_names(roots)),
        "LIVEPATH_LINES": "1" if spec.traced else "0",
        "LIVEPATH_COVERAGE": str(record / "site"),
    }


def paste(spec: RunSpec) -> str:
    """The run as a line for a shell in a checkout of its tree, without the recorder."""
    values = {**spec.target.env, **spec.env, "LIVEPATH_SEED": str(spec.seed), "PYTHONPATH": "."}
    return " ".join([*(f"{key}={shlex.quote(value)}" for key, value in values.items()), shlex.join(argv_of(spec))])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
