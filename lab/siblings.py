"""What ran instead: definitions of the same method name, in other classes and modules, that a run entered.

Contract: only definitions the recorder saw entered are named, best first: a shared base class, then the same file, then
the same folder. A dead `Fp8Method.apply` so points at the `Nvfp4Method.apply` that did the work.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from lab.changed import decode
from lab.git import Git
from lab.seen import Seen
from lab.source import Source, source_of
from lab.statements import Definition

MAX_SIBLINGS = 5
# Bases that nearly every class has: to share one says nothing.
_COMMON_BASES = {"object", "Protocol", "ABC", "abc.ABC", "Module", "nn.Module", "torch.nn.Module", "Exception"}


def siblings(
    git: Git, tree: str, seen: Seen, path: str, source: Source, line: int, *, limit: int = MAX_SIBLINGS
) -> tuple[dict[str, Any], ...]:
    """The definitions a run entered that could stand in for the one around a line.

    Returns:
        rows {path, start, end, qualname}, best first; none where the line is in no function.
    """
    mine = source.around(line)
    if mine is None or mine.kind != "function":
        return ()
    ranked = []
    for other_path in seen.files:
        raw = git.read(tree, other_path)
        other = source_of(other_path, decode(raw)) if raw is not None else None
        if other is None or seen.other_file(other_path, raw):
            continue
        page = seen.on(other_path, other)
        for each in other.definitions:
            same = other_path == path and each.qualname == mine.qualname
            if same or each.kind != "function" or _stem(each.name) != _stem(mine.name):
                continue
            rank = _rank(mine, each, path, other_path)
            if rank is not None and page.entered(each.qualname):
                ranked.append((rank, other_path, each))
    ranked.sort(key=lambda found: (found[0], found[1], found[2].start))
    return tuple(
        {"path": where, "start": each.start, "end": each.end, "qualname": each.qualname}
        for _, where, each in ranked[:limit]
    )


def _rank(mine: Definition, other: Definition, path: str, other_path: str) -> tuple[bool, bool, bool, bool] | None:
    """Lower is nearer; None where the likeness is only that every class has such a method."""
    related = bool((set(mine.bases) & set(other.bases)) - _COMMON_BASES)
    related = related or mine.owner in other.bases or other.owner in mine.bases
    same_file = path == other_path
    if mine.name.startswith("__") and not (related or same_file):
        return None
    if bool(mine.owner) != bool(other.owner) and not same_file:
        return None
    same_folder = PurePosixPath(path).parent == PurePosixPath(other_path).parent
    return (not related, not same_file, not same_folder, mine.name != other.name)


def _stem(name: str) -> str:
    """A reference and its kernel are two of a kind: `scores_ref` stands in for `scores`."""
    return name.removesuffix("_ref").removesuffix("_reference")
