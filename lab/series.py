"""The patch series that ships with the embedded engine: unified diffs under `engine/patches/`.

Contract: `base.patch` takes the healthy checkout back to the engine of the story; `stack/NN-name.patch` follow in
order; `candidates/`, `zoo/` (planted faults) and `later/` hold patches that are tried on top. A file is `Subject:
...`, a blank line, why, a blank line, the diff.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from store.errors import PatchError

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "engine" / "patches"
# What the demo repository is made of, relative to ROOT; `engine/patches` itself stays out.
ROOMS = ("engine", "kernels")
# The groups that are tried on top of the stack; in the demo repository they are folders of the same names.
TRIED = ("candidates", "zoo", "later")
_LEFT_OUT = ("__pycache__", "patches")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPatch:
    """One file of the series."""

    path: Path
    name: str
    subject: str
    why: str
    diff: str

    @property
    def text(self) -> str:
        why = f"{self.why}\n\n" if self.why else ""
        return f"Subject: {self.subject}\n\n{why}{self.diff}"


def read_patch(path: Path) -> SeriesPatch:
    """Read one file of the series.

    Raises:
        PatchError: the file has no `Subject:` line or no diff.
    """
    text = path.read_text(encoding="utf-8")
    head, mark, diff = text.partition("diff --git ")
    subject, _, why = head.partition("\n")
    if not mark or not subject.startswith("Subject: "):
        raise PatchError(
            f"{path.name} is no patch of the series: expected a `Subject:` line and a `diff --git` line",
            hint="write it with `./run refresh-patches`",
        )
    return SeriesPatch(
        path=path,
        name=re.sub(r"^\d+-", "", path.stem),
        subject=subject.removeprefix("Subject: ").strip(),
        why=why.strip(),
        diff=mark + diff,
    )


def read_group(group: str) -> list[SeriesPatch]:
    """The patches of `stack`, `candidates`, `zoo` or `later`, in file order."""
    return [read_patch(path) for path in sorted((PATCHES / group).glob("*.patch"))]


def source_files(root: Path = ROOT) -> list[Path]:
    """The files of the embedded engine and its kernels, relative to `root`, in a fixed order."""
    return sorted(
        path.relative_to(root)
        for room in ROOMS
        for path in (root / room).rglob("*")
        if path.is_file() and not any(part in _LEFT_OUT for part in path.relative_to(root).parts)
    )
