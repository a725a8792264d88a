"""Source of one file with a liveness gutter: line number, sign, mark of a reading.

Contract: the text is what the gateway read at a commit; the signs say what one run proved of each line. Lines that a
fully traced run did not see are dimmed, so that a dead path looks dead before anybody reads it.
"""

from __future__ import annotations

from rich.cells import cell_len

from tui.view import Source
from tui.widgets.line_view import LineView
from tui.widgets.signs import gutter_span
from tui.widgets.spans import Spans, Tone, fit, one_line


class SourceView(LineView):
    """The lines of one file; the cursor is a line, `marking` a range that a person is choosing."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.source: Source | None = None
        self.waiting = "choose a reading, or press o to open a file of the traced folders"
        self.marked_from: int | None = None
        self._read: frozenset[int] = frozenset()
        self._find = ""
        self._digits = 3

    def show(self, source: Source | None, *, line: int | None = None) -> None:
        """Shows a file.

        Args:
            source: its lines and what a run proved of them; None while there is none.
            line: the line, from 1, to put the cursor on; None leaves it where it is.
        """
        self.source = source
        lines = source.lines if source else ()
        self._digits = max(3, len(str(len(lines))))
        self.sideways_width = max((cell_len(one_line(item.text)) for item in lines), default=0) + self._digits + 8
        self.lines_changed()
        if line is not None:
            self.marked_from = None
            self.scroll_to(x=0, animate=False)
            self.scroll_to(y=max(0, line - 1 - self.size.height // 3), animate=False, force=True)
            self.move_to(line - 1)

    def show_readings(self, ranges: tuple[tuple[int, int], ...]) -> None:
        self._read = frozenset(line for start, end in ranges for line in range(start, end + 1))
        self.refresh()

    @property
    def line(self) -> int:
        """The line under the cursor, from 1."""
        return self.cursor + 1

    @property
    def marking(self) -> tuple[int, int]:
        """First and last line of what would be marked now."""
        first = self.line if self.marked_from is None else self.marked_from
        return (min(first, self.line), max(first, self.line))

    def toggle_mark(self) -> None:
        """Starts choosing a range at the cursor, or stops choosing."""
        self.marked_from = self.line if self.marked_from is None else None
        self.refresh()

    def find(self, words: str, step: int = 1, *, here: bool = False) -> bool:
        """Moves to the next line (step 1) or the one before (-1) that contains the words; whether there is one."""
        self._find = words
        if not words or not self.source:
            return False
        count = len(self.source.lines)
        for offset in range(0 if here else 1, count + 1):
            index = (self.cursor + offset * step) % count
            if words.casefold() in self.source.lines[index].text.casefold():
                self.move_to(index, center=True)
                return True
        return False

    def find_again(self, step: int) -> bool:
        return self.find(self._find, step)

    def move_to(self, index: int, *, center: bool = False) -> None:
        super().move_to(index, center=center)
        if self.marked_from is not None:
            self.refresh()

    def line_count(self) -> int:
        return len(self.source.lines) if self.source else 1

    def selectable(self, index: int) -> bool:
        return self.source is not None

    def gutter_at(self, index: int) -> Spans:
        if self.source is None:
            return ()
        item = self.source.lines[index]
        chosen = self.marked_from is not None and self.marking[0] <= index + 1 <= self.marking[1]
        mark = "▌" if chosen else ("▐" if index + 1 in self._read else "│")
        tone: Tone = "mark" if chosen or index + 1 in self._read else "dim"
        return (
            (f"{index + 1:>{self._digits}} ", "dim"),
            gutter_span(item.word),
            (f" {mark} ", tone),
        )

    def line_at(self, index: int, width: int) -> Spans:
        if self.source is None:
            return ((fit(self.waiting, width), "dim"),)
        item = self.source.lines[index]
        tone: Tone = "dim" if item.word in ("not_seen", "absent") else "plain"
        return ((item.text, tone),)
