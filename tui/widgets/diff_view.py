"""A unified diff with the liveness of each changed line beside it.

Contract: `parse_diff` numbers the lines of any unified diff and never fails on a malformed one (what it cannot read
stays plain text). The gutter shows what a run proved of a changed line: only acting lines carry a sign, others cannot
act.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from store.models import ChangedLine
from tui.widgets.line_view import LineView
from tui.widgets.signs import gutter_span
from tui.widgets.spans import Spans, Tone, fit, one_line

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_SIGN: dict[str, tuple[Literal["context", "added", "removed"], Tone]] = {
    " ": ("context", "plain"),
    "+": ("added", "added"),
    "-": ("removed", "removed"),
}


@dataclass(frozen=True, slots=True)
class DiffLine:
    kind: Literal["file", "hunk", "context", "added", "removed", "other"]
    text: str
    tone: Tone
    path: str = ""
    old: int | None = None
    new: int | None = None


def parse_diff(diff: str) -> tuple[DiffLine, ...]:
    """The lines of a unified diff, numbered on both sides; headers reduced to one line per file."""
    lines: list[DiffLine] = []
    path = ""
    old = new = 0
    in_hunk = False
    for text in diff.splitlines():
        hunk = _HUNK.match(text)
        if hunk:
            old, new = int(hunk[1]), int(hunk[2])
            in_hunk = True
            lines.append(DiffLine("hunk", text, "cool", path))
        elif text.startswith("diff --git "):
            in_hunk = False
            path = text.rpartition(" b/")[2]
            lines.append(DiffLine("file", path, "strong", path))
        elif in_hunk and text[:1] in _SIGN:
            kind, tone = _SIGN[text[:1]]
            at_old = old if kind != "added" else None
            at_new = new if kind != "removed" else None
            lines.append(DiffLine(kind, text, tone, path, at_old, at_new))
            old += kind != "added"
            new += kind != "removed"
        elif text.startswith(("index ", "--- ", "+++ ", "similarity ", "old mode", "new mode")):
            continue
        else:
            lines.append(DiffLine("other", text, "dim", path))
    return tuple(lines)


class DiffView(LineView):
    """The diff of one patch."""

    def __init__(self, *, id: str | None = None, empty: str = "no diff") -> None:
        super().__init__(id=id)
        self.empty = empty
        self.diff_lines: tuple[DiffLine, ...] = ()
        self._diff = ""
        self._proved: dict[tuple[str, str, int], ChangedLine] = {}

    def show(self, diff: str, changed: tuple[ChangedLine, ...]) -> None:
        """Shows a diff.

        Args:
            diff: unified diff, as the store keeps it.
            changed: what one run proved of its lines.
        """
        proved = _by_text(changed)
        if diff == self._diff and proved == self._proved:
            return
        if diff != self._diff:
            self._diff = diff
            self.diff_lines = parse_diff(diff)
            self._proved = proved
            self._begin()
        self._proved = proved
        self.sideways_width = max((cell_len(one_line(line.text)) for line in self.diff_lines), default=0) + 16
        self.lines_changed()

    def _begin(self) -> None:
        """Puts the cursor on the hunk in which something can act: imports and comments come first in many diffs."""
        acting = (n for n, line in enumerate(self.diff_lines) if (proof := self.proved(line)) and proof.acting)
        first = next(acting, 0)
        hunks = [n for n in range(first) if self.diff_lines[n].kind == "hunk"]
        self.cursor = hunks[-1] if len(hunks) > 1 else 0
        self.scroll_to(0, max(0, self.cursor - 1), animate=False, force=True)

    def next_hunk(self, step: int) -> None:
        """Moves to the next hunk (step 1) or the one before (-1)."""
        index = self.cursor + step
        while 0 <= index < len(self.diff_lines):
            if self.diff_lines[index].kind == "hunk":
                self.move_to(index, center=True)
                return
            index += step

    def proved(self, line: DiffLine) -> ChangedLine | None:
        """What a run proved of this line of the diff, if it is a changed one."""
        if line.kind not in ("added", "removed"):
            return None
        at = line.new if line.kind == "added" else line.old
        text = line.text[1:].strip()
        return self._proved.get((line.path, text, at or 0)) or self._proved.get((line.path, text, 0))

    def line_count(self) -> int:
        return len(self.diff_lines) or 1

    def selectable(self, index: int) -> bool:
        return bool(self.diff_lines)

    def gutter_at(self, index: int) -> Spans:
        if not self.diff_lines:
            return ()
        line = self.diff_lines[index]
        if line.kind in ("file", "hunk", "other"):
            return ()
        proof = self.proved(line)
        sign = gutter_span(proof.word if proof and proof.acting else None)
        return ((f"{line.old or '':>4} {line.new or '':>4} ", "dim"), sign, (" ", "plain"))

    def line_at(self, index: int, width: int) -> Spans:
        if not self.diff_lines:
            return ((fit(self.empty, width), "dim"),)
        line = self.diff_lines[index]
        return ((line.text, line.tone),)


def _by_text(changed: tuple[ChangedLine, ...]) -> dict[tuple[str, str, int], ChangedLine]:
    """By (path, text, line), and by (path, text, 0): the patches above one shift the numbers of its lines."""
    found: dict[tuple[str, str, int], ChangedLine] = {}
    for line in changed:
        text = line.text.removeprefix("(removed) ").strip()
        found[(line.path, text, line.line)] = line
        known = found.get((line.path, text, 0))
        if known is None or (line.acting and not known.acting):
            found[(line.path, text, 0)] = line
    return found
