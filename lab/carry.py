"""Changed lines, taken from the tree they were made in to the tree that ran, where other patches lie on top.

Contract: exact hunk arithmetic between the two versions of a file. A line that was rewritten there is judged by what
stands in its place; a line that was removed there acts no more; both say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from lab.changed import Change, Span
from lab.git import Git
from lab.hunks import Hunk, blob_hunks, hunk_at, map_line


def carry(git: Git, changes: Iterable[Change], *, after: str, tree: str) -> tuple[Change, ...]:
    """Take changes from the patch's own tree `after` into the tree that ran."""
    by_path = groupby(changes, key=lambda change: change.path)
    return tuple(moved for path, group in by_path for moved in _carry_file(git, list(group), path, after, tree))


def _carry_file(git: Git, changes: list[Change], path: str, after: str, tree: str) -> Iterator[Change]:
    blobs = git.blob(after, path), git.blob(tree, path)
    if blobs[0] == blobs[1] or blobs[0] is None:
        yield from changes
        return
    hunks = blob_hunks(git, blobs[0], blobs[1]) if blobs[1] is not None else []
    for change in changes:
        if change.place == "removed" or change.role == "unknown":
            yield change
        elif blobs[1] is None:
            yield replace(change, place="superseded", reason="another patch removed the file later")
        elif change.place == "gap":
            ends = [_moved_span(hunks, span) for span in (change.before, change.after)]
            line = map_line(hunks, change.line) or change.line
            yield replace(change, line=line, before=ends[0], after=ends[1])
        else:
            yield _moved_line(hunks, change)


def _moved_span(hunks: Sequence[Hunk], span: Span | None) -> Span | None:
    if span is None:
        return None
    first, last = map_line(hunks, span[0]), map_line(hunks, span[1])
    return (first, last) if first is not None and last is not None else None


def _moved_line(hunks: Sequence[Hunk], change: Change) -> Change:
    line = map_line(hunks, change.line)
    if line is not None:
        return replace(change, line=line)
    hunk = hunk_at(hunks, change.line)
    if hunk is None or not hunk.new_count:
        place = hunk.new_after if hunk else change.line
        return replace(change, line=place, place="superseded", reason="another patch removed the line later")
    now = (hunk.new_start, hunk.new_start + hunk.new_count - 1)
    return replace(
        change, line=hunk.new_start, place="rewritten", before=now, reason="another patch rewrote the line later"
    )
