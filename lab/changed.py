"""The lines of a patch that can act, and where to look for proof that they did.

Contract: from the trees without and with a patch come `Change` rows; `lab/carry.py` takes them into the tree that ran.

    line        a line the patch adds, where it is in the run's tree
    gap         statements the patch removes from code that is still there, and the siblings around them
    removed     a definition or file the patch removes: only a run without the patch can tell whether it would have run
    rewritten   a line another patch replaced later: the lines that stand there now
    superseded  a line another patch removed later: the patch no longer acts there

Comments, docstrings and formatting give no row (statements are compared as syntax). Files that are no Python, and
Python this interpreter cannot parse, give rows of role `unknown`; prose (README, docs/) gives none.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lab.git import Git
from lab.hunks import FileDiff, Hunk, map_line, parse_diff
from lab.source import Source, parse, source_of
from lab.statements import Statement

Role = Literal["acting", "bound", "unknown"]
Place = Literal["line", "gap", "removed", "rewritten", "superseded"]
Span = tuple[int, int]

_PROSE = (".md", ".rst", "LICENSE", ".gitignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed line, or one gap, and where to look for proof that it acted."""

    path: str
    line: int  # in the run's tree; for a gap the line after it; for `removed` a line of the tree without the patch
    text: str
    role: Role
    place: Place = "line"
    before: Span | None = None  # gap: the statement before it in its block; rewritten: the lines that stand there now
    after: Span | None = None  # gap: the statement after it; removed: its lines in the tree without the patch
    qualname: str = ""
    reason: str = ""


def changed_lines(git: Git, *, before: str, after: str, trace: Sequence[str] = (".",)) -> tuple[Change, ...]:
    """What a patch changes.

    Args:
        before: tree or commit without the patch.
        after: the same with it.
        trace: the folders the recorder watches.

    Raises:
        RepoError: a tree is unknown.
    """
    changes: list[Change] = []
    for file in parse_diff(git.diff(before, after, context=0)):
        changes += _file_changes(git, file, before, after, trace)
    return tuple(changes)


def is_traced(path: str, trace: Sequence[str]) -> bool:
    """Whether a path lies under one of the traced folders."""
    folders = [folder.strip("/") for folder in trace]
    return any(folder in ("", ".") or path == folder or path.startswith(f"{folder}/") for folder in folders)


def _file_changes(git: Git, file: FileDiff, before: str, after: str, trace: Sequence[str]) -> Iterator[Change]:
    path = file.path
    if path.endswith(_PROSE) and (not is_traced(path, trace) or "/" not in path or path.startswith("docs/")):
        return
    if file.special or not file.hunks:
        what = file.special or ("an empty file came or went" if file.old_path != file.new_path else "file mode")
        yield Change(path=path, line=1, text="", role="unknown", reason=f"{what}: no line can show what it does")
        return
    old, new = (
        parse("") if name is None else source_of(name, _text(git, treeish, name))
        for name, treeish in ((file.old_path, before), (file.new_path, after))
    )
    if old is None or new is None:
        python = path.endswith(".py")
        reason = "this Python cannot parse the file" if python else "no Python source: read as data, if at all"
        for hunk in file.hunks:
            text = (hunk.added or hunk.removed)[0]
            line = hunk.new_start if hunk.new_count else hunk.new_after
            yield Change(path=path, line=line, text=text.strip(), role="unknown", reason=reason)
    elif file.new_path is None:
        if any(statement.kind != "nothing" for statement in old.statements):
            end = max(1, len(old.lines))
            yield Change(path=path, line=1, text="(file removed)", role="acting", place="removed", after=(1, end))
    elif not old.same_program(new):
        yield from _hunk_changes(path, file.hunks, old, new)
        yield from _reparented(path, file.hunks, old, new)


def _hunk_changes(path: str, hunks: Sequence[Hunk], old: Source, new: Source) -> Iterator[Change]:
    gone: set[str] = set()
    for hunk in hunks:
        removed, unreplaced, came = _difference(hunk, old, new)
        for line, text in zip(hunk.new_lines, hunk.added, strict=True):
            owners = [each for each in new.owners(line) if id(each) in came]
            if not owners:
                continue
            role: Role = "acting" if any(_acts(owner, old, new) for owner in owners) else "bound"
            yield Change(path=path, line=line, text=text.strip(), role=role, qualname=owners[0].qualname)
        for definition in _removed_definitions(path, removed, old, new):
            if definition.qualname not in gone:
                gone.add(definition.qualname)
                yield definition
        lost = [s for s in unreplaced if s.kind != "header" and _acts(s, new, old) and not _inside(s.qualname, gone)]
        yield from _gaps(path, hunk, hunks, lost, old, new)


def _reparented(path: str, hunks: Sequence[Hunk], old: Source, new: Source) -> Iterator[Change]:
    """Untouched lines that an edit elsewhere put into another block: below a moved `def`, a gone `elif`."""
    for statement in old.statements:
        line = map_line(hunks, statement.start)
        if line is None or statement.kind == "nothing":
            continue
        same = [each for each in new.owners(line) if each.shape == statement.shape]
        if same and all(each.block != statement.block for each in same):
            role: Role = "acting" if same[0].kind == "acting" else "bound"
            yield Change(
                path=path,
                line=line,
                text=new.lines[line - 1].strip(),
                role=role,
                qualname=same[0].qualname,
                reason="the line is as it was, the block around it is another",
            )


def _touched(source: Source, lines: range) -> list[Statement]:
    seen: dict[int, Statement] = {id(each): each for line in lines for each in source.owners(line)}
    return [each for each in seen.values() if each.kind != "nothing"]


def _difference(hunk: Hunk, old: Source, new: Source) -> tuple[list[Statement], list[Statement], set[int]]:
    """What a hunk removes, what of that nothing in the same block stands for now, and the ids of what it brings.

    The same statement in the same place is neither removed nor brought.
    """
    removed: list[Statement] = []
    unreplaced: list[Statement] = []
    came: set[int] = set()
    before, after = _touched(old, hunk.old_lines), _touched(new, hunk.new_lines)
    keys = [[(each.shape, each.place) for each in side] for side in (before, after)]
    for tag, i, j, k, m in difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        blocks = {each.block for each in after[k:m] if _acts(each, old, new)}
        removed += before[i:j]
        unreplaced += [each for each in before[i:j] if each.block not in blocks]
        came |= {id(each) for each in after[k:m]}
    return removed, unreplaced, came


def _acts(statement: Statement, old: Source, new: Source) -> bool:
    """Whether a statement that is new here does more than bind a new name.

    A `def` or `class` line acts if it changes the signature of what was there before, an import if it gives a name that
    was there before another origin.
    """
    if statement.kind == "header":
        before = [each for each in old.statements if each.qualname == statement.qualname and each.kind == "header"]
        return bool(before) and all(each.shape != statement.shape for each in before)
    if statement.kind == "import":
        known, names = set(old.imports().items()), old.names()
        brought = new.imports(statement.start).items()
        return any(name == "*" or (name in names and (name, origin) not in known) for name, origin in brought)
    return statement.kind == "acting"


def _removed_definitions(path: str, gone: list[Statement], old: Source, new: Source) -> Iterator[Change]:
    for statement in gone:
        if statement.kind == "header" and new.named(statement.qualname) is None:
            outer, _, _ = statement.qualname.rpartition(".")
            definition = old.named(statement.qualname)
            if definition is not None and (not outer or new.named(outer) is not None):
                yield Change(
                    path=path,
                    line=definition.start,
                    text=old.lines[statement.start - 1].strip(),
                    role="acting",
                    place="removed",
                    after=(definition.start, definition.end),
                    qualname=statement.qualname,
                )


def _inside(qualname: str, outer: set[str]) -> bool:
    return any(qualname == name or qualname.startswith(f"{name}.") for name in outer)


def _gaps(
    path: str, hunk: Hunk, hunks: Sequence[Hunk], removed: list[Statement], old: Source, new: Source
) -> Iterator[Change]:
    """One gap per block that lost statements; a statement inside a removed one is spoken for by the outer."""
    outer = [s for s in removed if not any(o is not s and _contains(o.extent, s.extent) for o in removed)]
    seen: set[tuple[Span | None, Span | None, str]] = set()
    for statement in outer:
        before = _survivor(old, statement, hunks, "previous")
        after = _survivor(old, statement, hunks, "next") or (None if before else _stand_in(statement, hunk, new))
        key = (before, after, statement.qualname)
        if key not in seen:
            seen.add(key)
            text = old.lines[statement.start - 1].strip()
            yield Change(
                path=path,
                line=min(hunk.new_after, max(1, len(new.lines))),
                text=f"(removed) {text}",
                role="acting",
                place="gap",
                before=before,
                after=after,
                qualname=statement.qualname,
            )


def _contains(outer: Span, inner: Span) -> bool:
    return outer != inner and outer[0] <= inner[0] and inner[1] <= outer[1]


def _survivor(
    old: Source, statement: Statement, hunks: Sequence[Hunk], side: Literal["previous", "next"]
) -> Span | None:
    """The nearest sibling on one side whose first and last line are still there, in lines of the new side."""
    sibling = statement.previous if side == "previous" else statement.next
    while sibling is not None:
        ends = map_line(hunks, sibling[0]), map_line(hunks, sibling[1])
        owner = next((each for each in old.owners(sibling[0]) if each.extent == sibling), None)
        if ends[0] is not None and ends[1] is not None and owner is not None and owner.kind != "nothing":
            return ends[0], ends[1]
        if owner is None:
            return None
        sibling = owner.previous if side == "previous" else owner.next
    return None


def _stand_in(removed: Statement, hunk: Hunk, new: Source) -> Span | None:
    """Where a whole block was replaced: the statement of the new block nearest to the hunk."""
    block = [each for each in new.statements if each.block == removed.block]
    nearest = min(block, key=lambda each: abs(each.start - hunk.new_start), default=None)
    return nearest.extent if nearest else None


def _text(git: Git, treeish: str, path: str) -> str | None:
    raw = git.read(treeish, path)
    return None if raw is None else decode(raw)


def decode(raw: bytes) -> str | None:
    """The text of a file with its line ends made one kind, as Python reads it; None for what is no UTF-8 text."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.replace("\r\n", "\n")
