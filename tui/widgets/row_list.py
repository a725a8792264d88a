"""A list of rows in columns, with headings between them and a filter.

Contract: `show` replaces the rows and keeps the cursor on the row of the same key, so that a list can be redrawn while
somebody reads it. Column widths are fixed or share what is left; a column leaves when the view is narrower than its
`hide_below` or as wide as its `hide_from`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tui.widgets.line_view import LineView
from tui.widgets.spans import Span, Spans, fit, fit_middle

_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int = 0  # 0 shares what the fixed columns leave
    roomy: int = 0  # the width in a view of at least 100 cells, where it differs
    weight: int = 1
    hide_below: int = 0
    hide_from: int = 10_000
    right: bool = False
    middle: bool = False  # lose the middle, not the end: for paths


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    cells: tuple[Span, ...]
    heading: bool = False

    @property
    def words(self) -> str:
        return " ".join(text for text, _ in self.cells).casefold()


class RowList(LineView):
    """Rows in columns; `row` is the one under the cursor."""

    header_lines = 1

    def __init__(self, columns: Sequence[Column], *, empty: str, id: str | None = None) -> None:
        """Makes an empty list.

        Args:
            columns: the columns, first to last.
            empty: what to say while there is no row: what is missing and the next step.
            id: the widget's id.
        """
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.empty = empty
        self.filter = ""
        self._all: tuple[Row, ...] = ()
        self._rows: tuple[Row, ...] = ()

    @property
    def row(self) -> Row | None:
        if not self._rows or self.cursor >= len(self._rows) or self._rows[self.cursor].heading:
            return None
        return self._rows[self.cursor]

    def row_at(self, index: int) -> Row:
        return self._rows[index]

    def show(self, rows: Sequence[Row]) -> None:
        if tuple(rows) == self._all:
            return
        self._all = tuple(rows)
        self._apply()

    def set_filter(self, words: str) -> None:
        self.filter = words
        self._apply()

    def select(self, key: str) -> bool:
        """Puts the cursor on the row with this key, if it is shown."""
        for index, row in enumerate(self._rows):
            if row.key == key and not row.heading:
                self.move_to(index, center=True)
                return True
        return False

    def _apply(self) -> None:
        before = self.row.key if self.row else None
        words = self.filter.casefold().split()
        kept = [row for row in self._all if row.heading or all(word in row.words for word in words)]
        # A heading with nothing below it says nothing.
        self._rows = tuple(
            row
            for index, row in enumerate(kept)
            if not row.heading or (index + 1 < len(kept) and not kept[index + 1].heading)
        )
        keys = [None if row.heading else row.key for row in self._rows]
        if before in keys:
            self.cursor = keys.index(before)
        self.lines_changed()
        if self.row is not None and self.row.key != before:
            # The cursor may be where it was and yet on another row.
            self.post_message(self.Highlighted(self, self.cursor))

    def line_count(self) -> int:
        return len(self._rows) or 1

    def selectable(self, index: int) -> bool:
        return index < len(self._rows) and not self._rows[index].heading

    def _widths(self, width: int) -> list[int]:
        """One width per column; 0 hides it."""
        shown = [column.hide_below <= width < column.hide_from for column in self.columns]
        gaps = _GAP * max(0, sum(shown) - 1)
        sizes = [column.roomy if column.roomy and width >= 100 else column.width for column in self.columns]
        fixed = sum(size for size, on in zip(sizes, shown, strict=True) if on)
        weights = sum(column.weight for column, on in zip(self.columns, shown, strict=True) if on and not column.width)
        left = max(0, width - fixed - gaps)
        widths = []
        for column, size, on in zip(self.columns, sizes, shown, strict=True):
            if not on:
                widths.append(0)
            elif size:
                widths.append(size)
            else:
                share = left * column.weight // weights
                left -= share
                weights -= column.weight
                widths.append(share)
        return widths

    def _columns_line(self, cells: Sequence[Span], width: int) -> Spans:
        spans: list[Span] = []
        for column, cell_width, (text, tone) in zip(self.columns, self._widths(width), cells, strict=False):
            if cell_width:
                if spans:
                    spans.append((" " * _GAP, "plain"))
                cell = fit_middle(text, cell_width) if column.middle else fit(text, cell_width, right=column.right)
                spans.append((cell, tone))
        return tuple(spans)

    def header_at(self, line: int, width: int) -> Spans:
        if not self._all:
            return ()
        return self._columns_line([(column.title, "dim") for column in self.columns], width)

    def line_at(self, index: int, width: int) -> Spans:
        if not self._rows:
            words = f"nothing matches “{self.filter}” (esc clears the filter)" if self._all else self.empty
            return ((fit(words, width), "dim"),)
        row = self._rows[index]
        if row.heading:
            return tuple((fit(text, width), tone) for text, tone in row.cells[:1])
        return self._columns_line(row.cells, width)
