"""Unified diffs without context, read into hunks, and the line arithmetic they allow.

Contract: a hunk replaces `old_count` lines from `old_start` by `new_count` lines from `new_start`; with a count of 0
the start is the line before the gap, as git writes it. A line no hunk touches has exactly one line on the other side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lab.git import Git

_HEADER = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def old_lines(self) -> range:
        return range(self.old_start, self.old_start + self.old_count)

    @property
    def new_lines(self) -> range:
        return range(self.new_start, self.new_start + self.new_count)

    @property
    def new_after(self) -> int:
        """The first line after the hunk on the new side."""
        return self.new_start + self.new_count if self.new_count else self.new_start + 1


@dataclass(slots=True, kw_only=True)
class FileDiff:
    """What a diff does to one file. A path is None where the file does not exist on that side."""

    old_path: str | None
    new_path: str | None
    hunks: list[Hunk] = field(default_factory=list)
    special: str = ""  # what lines cannot tell: a binary file, a mode, a submodule

    @property
    def path(self) -> str:
        return self.new_path or self.old_path or ""


def map_line(hunks: Sequence[Hunk], line: int) -> int | None:
    """Where an old line is on the new side; None where a hunk replaced or removed it."""
    shift = 0
    for hunk in hunks:
        if line in hunk.old_lines:
            return None
        if line < hunk.old_start or (line == hunk.old_start and not hunk.old_count):
            break
        shift += hunk.new_count - hunk.old_count
    return line + shift


def map_range(hunks: Sequence[Hunk], start: int, end: int) -> tuple[int, int] | None:
    """Where an old range is on the new side; None where a hunk changed a line of it or put one inside."""
    lines = [map_line(hunks, line) for line in (start, end)]
    first, last = lines
    if first is None or last is None or last - first != end - start:
        return None
    # Equal length does not suffice: a removal and an insertion inside the range may cancel out.
    touched = any(h.old_count and start <= h.old_start + h.old_count - 1 and h.old_start <= end for h in hunks)
    return None if touched else (first, last)


def hunk_at(hunks: Sequence[Hunk], line: int) -> Hunk | None:
    """The hunk that replaced or removed an old line."""
    return next((hunk for hunk in hunks if line in hunk.old_lines), None)


def blob_hunks(git: Git, old_blob: str, new_blob: str) -> list[Hunk]:
    """The hunks between two blobs, which may lie under any path.

    Raises:
        RepoError: one of them is not in the repository any more.
    """
    if old_blob == new_blob:
        return []
    words = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--text", "-U0", old_blob, new_blob)
    files = parse_diff(git.call_text(*words))
    return files[0].hunks if files else []


def parse_diff(text: str) -> list[FileDiff]:
    """Read `git diff -U0` output; text between files (a commit message) is passed over."""
    files: list[FileDiff] = []
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith("diff --git "):
            path = _same_path(line.removeprefix("diff --git "))
            files.append(FileDiff(old_path=path, new_path=path))
        elif files:
            _read_line(files[-1], line, lines)
    return files


def _read_line(file: FileDiff, line: str, lines: Iterator[str]) -> None:
    if line.startswith("--- "):
        file.old_path = _path(line[4:], "a/")
    elif line.startswith("+++ "):
        file.new_path = _path(line[4:], "b/")
    elif line.startswith("rename from "):
        file.old_path = _unquote(line.removeprefix("rename from "))
    elif line.startswith("rename to "):
        file.new_path = _unquote(line.removeprefix("rename to "))
    elif line.startswith("new file mode "):
        file.old_path = None
        file.special = _mode_note(line.removeprefix("new file mode "))
    elif line.startswith("deleted file mode "):
        file.new_path = None
    elif line.startswith("new mode "):
        file.special = f"file mode {line.removeprefix('new mode ')}"
    elif line.startswith(("GIT binary patch", "Binary files ")):
        file.special = "binary file"
    elif match := _HEADER.match(line):
        numbers = [int(number) if number is not None else 1 for number in match.groups()]
        file.hunks.append(_read_hunk(numbers, lines))


def _read_hunk(numbers: list[int], lines: Iterator[str]) -> Hunk:
    """Take exactly the lines the header counts: a removed `-- x` looks like the head of a file."""
    old_start, old_count, new_start, new_count = numbers
    removed: list[str] = []
    added: list[str] = []
    while len(removed) < old_count or len(added) < new_count:
        line = next(lines, None)
        if line is None:
            break
        if line.startswith("-"):
            removed.append(line[1:])
        elif line.startswith("+"):
            added.append(line[1:])
    return Hunk(
        old_start=old_start,
        old_count=old_count,
        new_start=new_start,
        new_count=new_count,
        removed=tuple(removed),
        added=tuple(added),
    )


def _mode_note(mode: str) -> str:
    return {"120000": "symbolic link", "160000": "submodule"}.get(mode.strip(), "")


def _path(text: str, prefix: str) -> str | None:
    text = _unquote(text.removesuffix("\t"))
    return None if text == "/dev/null" else text.removeprefix(prefix)


def _same_path(names: str) -> str:
    """The path of `a/P b/P`; where the two differ, the lines that follow name them."""
    if names.startswith('"'):
        return _unquote(names[: names.index('" ') + 1]).removeprefix("a/")
    return names[: len(names) // 2].removeprefix("a/")


def _unquote(text: str) -> str:
    if not text.startswith('"'):
        return text
    raw = re.sub(
        r"\\(\d{3}|.)",
        lambda found: chr(int(found[1], 8)) if found[1].isdigit() else _ESCAPES.get(found[1], found[1]),
        text[1:-1],
    )
    try:
        return raw.encode("latin-1").decode("utf-8")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return raw
