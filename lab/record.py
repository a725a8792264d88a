"""What the recorder saw of one run, read back and put together over its whole process tree. Proof, where events are
claims.

Contract: paths are relative to the worktree, lines and arcs are those of the file as loaded. `fully_traced` only if
at least one process reported, every process that began also ended its record, and nobody named a blind spot: only
then may "not seen" become "dead".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coverage import CoverageData
from coverage.exceptions import CoverageException

_SKIPPED = {"tests", "test", "docs", "doc", "examples", "benchmarks", "scripts", "setup", "conftest", "build", "dist"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What ran of one file."""

    path: str
    sha256: str  # as loaded; "" if nobody saw it being loaded
    lines: tuple[int, ...]
    arcs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run's record. `loaded` maps a module to (path, sha256 as loaded); a path outside the worktree is absolute."""

    files: dict[str, FileRecord] = field(default_factory=dict)
    loaded: dict[str, tuple[str, str]] = field(default_factory=dict)
    fully_traced: bool = False
    blind: tuple[str, ...] = ()
    outside: tuple[tuple[str, str], ...] = ()  # (module, path): named like the target's own, loaded from elsewhere
    facts: dict[str, Any] = field(default_factory=dict)
    processes: int = 0


def read_record(folder: Path, worktree: Path, *, lines: bool = True) -> Record:
    """Read the record folder of a run that has ended; `lines` says whether the line recorder was asked for."""
    root = worktree.resolve()
    logs = [_events(path) for path in sorted(folder.glob("log.*.jsonl"))]
    blind = _blind_spots(logs, lines)
    loaded, outside = _loaded(logs, root)
    files, unread = _lines(folder, root, dict(loaded.values()))
    facts: dict[str, Any] = {}
    for event in (event for log in logs for event in log if event["event"] == "facts"):
        facts |= {key: value for key, value in event.items() if key != "event"}
    for path, sha in loaded.values():
        if not Path(path).is_absolute() and _sha256(root / path) not in (sha, ""):
            blind.append(f"{path} changed on disk after it was loaded")
    blind += unread
    return Record(
        files=files,
        loaded=loaded,
        fully_traced=bool(logs) and lines and not blind,
        blind=tuple(dict.fromkeys(blind)),
        outside=outside,
        facts=facts,
        processes=len(logs),
    )


def traced_roots(worktree: Path, trace: Sequence[str]) -> list[Path]:
    """The folders the recorder watches."""
    return [(worktree / folder).resolve() for folder in trace or (".",)]


def traced_names(roots: Sequence[Path]) -> list[str]:
    """The top-level names that must come from the worktree: those a copy elsewhere on sys.path would stand in for."""
    names: set[str] = set()
    for root in roots:
        if not root.is_dir():
            continue
        if (root / "__init__.py").exists() or (any(root.glob("*.py")) and not (root / ".git").exists()):
            names.add(root.name)
            continue
        names |= {path.stem for path in root.glob("*.py")}
        names |= {path.parent.name for path in root.glob("*/__init__.py")}
    return sorted(name for name in names - _SKIPPED if name.isidentifier())


def _events(path: Path) -> list[dict[str, Any]]:
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:  # the last line of a process that was killed while it wrote
            continue
    return [event for event in events if isinstance(event, dict) and "event" in event]


def _blind_spots(logs: list[list[dict[str, Any]]], lines: bool) -> list[str]:
    if not logs:
        return ["the recorder did not start: no Python process, or one with -I, -S or -E"]
    blind = []
    for log in logs:
        kinds = {event["event"] for event in log}
        words = " ".join(log[0].get("argv", []))[:120] if log else "?"
        if "end" not in kinds:
            blind.append(f"a process was killed before its record was whole: {words}")
        if lines and "lines" not in kinds:
            blind.append(f"no line recorder in: {words}")
        blind += [str(event["why"]) for event in log if event["event"] == "blind"]
    return blind


def _loaded(
    logs: list[list[dict[str, Any]]], root: Path
) -> tuple[dict[str, tuple[str, str]], tuple[tuple[str, str], ...]]:
    loaded: dict[str, tuple[str, str]] = {}
    outside: dict[tuple[str, str], None] = {}
    for event in (event for log in logs for event in log if event["event"] == "loaded"):
        path, name = Path(event["path"]), event["module"]
        if path.is_relative_to(root):
            where = path.relative_to(root).as_posix()
        else:
            where = str(path)
            outside[name, where] = None
        if loaded.get(name, (where,))[0] != where:  # several scripts of one run are all `__main__`
            name = f"{name} ({where})"
        loaded[name] = (where, event["sha256"])
    return loaded, tuple(outside)


def _lines(folder: Path, root: Path, digests: dict[str, str]) -> tuple[dict[str, FileRecord], list[str]]:
    lines: dict[str, set[int]] = {}
    arcs: dict[str, set[tuple[int, int]]] = {}
    unread = []
    for path in sorted(folder.glob("lines.*")):
        if path.name.endswith("-journal"):
            continue
        data = CoverageData(str(path))
        try:
            data.read()
            for name in data.measured_files():
                found = data.lines(name)
                if found and Path(name).is_relative_to(root):
                    where = Path(name).relative_to(root).as_posix()
                    lines.setdefault(where, set()).update(found)
                    arcs.setdefault(where, set()).update(data.arcs(name) or ())
        except CoverageException:
            unread.append("a data file of the line recorder is damaged: its process was killed while it wrote")
        finally:
            data.close()
    files = {
        where: FileRecord(
            path=where,
            sha256=digests.get(where) or _sha256(root / where),
            lines=tuple(sorted(lines[where])),
            arcs=tuple(sorted(arcs[where])),
        )
        for where in sorted(lines)
    }
    return files, unread


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
