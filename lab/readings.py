"""Readings: lines of a file somebody looked at, named by commit, kept by blob and text, found again later.

Contract: `[HOST:]PATH[:A[-B]][@REV]` names a reading of this repository; HOST says where a person looked, the text is
that of the repository at REV. A reading found again is

    fresh    the same lines say the same
    moved    the same text stands elsewhere: by the arithmetic of the hunks between, a rename, or one exact match
    changed  the lines were edited; where they would be now is named
    gone     neither text, nor definition, nor file is there any more
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from lab.changed import decode
from lab.git import Git
from lab.hunks import Hunk, blob_hunks, map_range
from lab.source import source_of
from store.errors import RepoError, UsageError
from store.models import Reading

State = Literal["fresh", "moved", "changed", "gone"]
_FORM = "write it as PATH, PATH:LINE or PATH:FIRST-LAST, then @REV if it is not the head"
_LINES = re.compile(r":(?P<start>\d+)(?:-(?P<end>\d+))?(?:@(?P<rev>.+))?$")
_MAX_CANDIDATES = 50  # files looked through for a text that left its file


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A reading as it is written."""

    path: str
    host: str = ""
    start: int | None = None
    end: int | None = None
    rev: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Where a reading is in another tree, and whether it still says the same."""

    state: State
    path: str
    start: int
    end: int
    reason: str


def parse_spec(text: str) -> Spec:
    """Read `[HOST:]PATH[:A[-B]][@REV]`.

    Raises:
        UsageError: it has no path, or its lines run backwards.
    """
    lines = _LINES.search(text)
    start = end = None
    rev = ""
    rest = text
    if lines:
        start, end, rev = int(lines["start"]), int(lines["end"] or lines["start"]), lines["rev"] or ""
        rest = text[: lines.start()]
    elif "@" in text[text.rfind(":") + 1 :]:  # an @ before a colon belongs to user@host
        rest, _, rev = text.rpartition("@")
    host, _, path = rest.rpartition(":")
    if not path or (start is not None and end is not None and not 1 <= start <= end):
        raise UsageError(f"`{text}` names no lines of a file", hint=_FORM)
    return Spec(path=path, host=host, start=start, end=end, rev=rev)


def make_reading(git: Git, spec: str, note: str = "", *, rev: str = "HEAD") -> Reading:
    """The reading a person names, with the text it has at that commit.

    Args:
        rev: the commit where `spec` names none.

    Raises:
        UsageError: there is no such file, it has no such lines, or it is no text; the hint names the nearest.
        RepoError: the commit is unknown.
    """
    return read_spec(git, parse_spec(spec), note, rev=rev)


def read_spec(git: Git, wanted: Spec, note: str = "", *, rev: str = "HEAD") -> Reading:
    """The reading that a spec names; fails as `make_reading` does."""
    commit = git.commit(wanted.rev or rev)
    path = _inside(git.root, wanted.path, local=not wanted.host)
    blob = git.blob(commit, path)
    raw = git.read(commit, path) if blob else None
    if blob is None or raw is None:
        raise _no_such_file(git, commit, path)
    text = decode(raw)
    if text is None:
        raise UsageError(f"{path} is no text at {commit[:12]}", hint="a reading is of lines; name a text file")
    lines = _lines(text)
    start, end = wanted.start or 1, wanted.end or len(lines)
    if end > len(lines) or not lines:
        raise UsageError(
            f"{path} has {len(lines)} lines at {commit[:12]}, not {start}-{end}",
            hint="the file may have been longer at another commit: add @REV",
        )
    chosen = "\n".join(lines[start - 1 : end])
    source = source_of(path, text)
    return Reading(
        path=path,
        start=start,
        end=end,
        rev=commit,
        blob=blob,
        text_sha256=hashlib.sha256(chosen.encode()).hexdigest(),
        text=chosen,
        qualname=source.qualname(start) if source else "",
        host=wanted.host,
        note=note,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def freshness(git: Git, reading: Reading, revision: str) -> Freshness:
    """Where a reading is in another commit or tree. The reading's own commit need not exist any more.

    Raises:
        RepoError: the revision is unknown.
    """
    tree = git.tree(revision)
    if not reading.blob:
        return _lost(reading, "it was matched to no commit")
    path = reading.path
    blob = git.blob(tree, path)
    if blob == reading.blob:
        return _found(reading, "fresh", path, reading.start, "the file is the same")
    renamed = ""
    if blob is None:
        path, renamed = _renamed(git, reading, tree)
        blob = git.blob(tree, path) if path else None
    if blob is None:
        return _elsewhere(git, reading, tree)
    lines = _lines(decode(git.read(tree, path) or b"") or "")
    hunks = _hunks(git, reading.blob, blob)
    exact = map_range(hunks, reading.start, reading.end) if hunks is not None else None
    if exact and _says(lines, exact[0], reading.text):
        state: State = "moved" if renamed or exact[0] != reading.start else "fresh"
        return _found(reading, state, path, exact[0], renamed or "the lines themselves were not touched")
    places = _matches(lines, reading.text)
    if len(places) == 1:
        same = places[0] == reading.start and not renamed
        return _found(reading, "fresh" if same else "moved", path, places[0], "found by its text, which is there once")
    return _changed(reading, path, lines, hunks, "\n".join(lines))


def _changed(reading: Reading, path: str, lines: list[str], hunks: list[Hunk] | None, text: str) -> Freshness:
    """The lines were edited: their place is that of the definition they were in, or of the hunks that took them."""
    source = source_of(path, text)
    definition = source.named(reading.qualname) if source and reading.qualname else None
    place = _edited_range(hunks, reading, len(lines)) if hunks is not None else None
    if definition is not None and (place is None or not definition.start <= place[0] <= definition.end):
        place = (definition.start, definition.end)
    if place is None or (definition is None and reading.qualname):
        what = f"`{reading.qualname}`" if reading.qualname else "the text"
        return _lost(reading, f"{what} is no longer in {path}")
    return Freshness(state="changed", path=path, start=place[0], end=place[1], reason="its lines were edited")


def _edited_range(hunks: list[Hunk], reading: Reading, length: int) -> tuple[int, int] | None:
    """The lines that stand where the reading stood; None where all of them were removed."""
    start, end = reading.start, reading.end
    shift_start = shift_end = 0
    for hunk in hunks:
        last = hunk.old_start + max(hunk.old_count, 1) - 1
        if last < start:
            shift_start += hunk.new_count - hunk.old_count
        if hunk.old_start <= end and (hunk.old_count or hunk.old_start < end):
            shift_end += hunk.new_count - hunk.old_count
    first, final = start + shift_start, end + shift_end
    return (first, min(final, length)) if first <= min(final, length) else None


def _elsewhere(git: Git, reading: Reading, tree: str) -> Freshness:
    """The file is gone; its text may stand in another one, exactly once."""
    longest = max(reading.text.split("\n"), key=len).strip()
    if len(longest) >= 8:  # shorter ones are everywhere
        words = ("grep", "-F", "-l", "-z", "--no-color", "-e", longest, tree)
        named = git.call(*words).text.split("\0")
        places = []
        for name in [name for name in named if name][:_MAX_CANDIDATES]:
            path = name.partition(":")[2]
            lines = _lines(decode(git.read(tree, path) or b"") or "")
            places += [(path, start) for start in _matches(lines, reading.text)]
        if len(places) == 1:
            return _found(reading, "moved", places[0][0], places[0][1], "found by its text in another file")
    return _lost(reading, f"{reading.path} is no longer there, nor is its text anywhere else")


def _renamed(git: Git, reading: Reading, tree: str) -> tuple[str, str]:
    """The new path of a renamed file, and that in words; "" where git sees no rename or the old commit is gone."""
    done = git.call("diff-tree", "-r", "-M", "-z", "--diff-filter=R", f"{reading.rev}^{{tree}}", tree)
    fields = done.text.split("\0") if done.code == 0 else []
    for old, new in zip(fields[1::3], fields[2::3], strict=False):
        if old == reading.path:
            return new, f"the file was renamed from {old}"
    return "", ""


def _hunks(git: Git, old: str, new: str) -> list[Hunk] | None:
    try:
        return blob_hunks(git, old, new)
    except RepoError:  # the blob went with its commit: the text alone must do
        return None


def _matches(lines: list[str], text: str) -> list[int]:
    wanted = text.split("\n")
    return [
        start
        for start in range(1, len(lines) - len(wanted) + 2)
        if lines[start - 1 : start - 1 + len(wanted)] == wanted
    ]


def _says(lines: list[str], start: int, text: str) -> bool:
    wanted = text.split("\n")
    return lines[start - 1 : start - 1 + len(wanted)] == wanted


def _found(reading: Reading, state: State, path: str, start: int, reason: str) -> Freshness:
    return Freshness(state=state, path=path, start=start, end=start + reading.end - reading.start, reason=reason)


def _lost(reading: Reading, reason: str) -> Freshness:
    return Freshness(state="gone", path=reading.path, start=reading.start, end=reading.end, reason=reason)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _inside(root: Path, path: str, *, local: bool) -> str:
    """The path from the repository's root."""
    if local and os.path.isabs(path):
        try:
            return Path(path).resolve().relative_to(root).as_posix()
        except ValueError:
            raise UsageError(f"{path} lies outside {root}", hint="name a file of the target's repository") from None
    return os.path.normpath(path)


def _no_such_file(git: Git, commit: str, path: str) -> UsageError:
    files = git.files(commit)
    name = os.path.basename(path)
    near = [file for file in files if os.path.basename(file) == name][:3]
    near = near or difflib.get_close_matches(path, files, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}" if near else "`git ls-files` lists what there is"
    return UsageError(f"no file {path} at {commit[:12]}", hint=hint)
