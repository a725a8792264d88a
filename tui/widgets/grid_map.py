"""A grid of numbers with shades: recall by length and depth, exponents by layer and branch.

Contract: the number is printed in every cell; the shade behind it only reinforces. A cell without a measurement shows
dots, so that a gap never looks like a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tui.widgets.line_view import LineView
from tui.widgets.spans import Span, Spans, Tone, fit


@dataclass(frozen=True, slots=True)
class GridCell:
    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Grid:
    """One table: `rows` are (label, cells), one cell per column, None where nothing was measured."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[GridCell | None, ...]], ...]
    foot: str = ""


class GridMap(LineView):
    """One or more grids, side by side where there is room, else below each other."""

    pointer = False

    def __init__(self, *, id: str | None = None, empty: str = "nothing measured yet") -> None:
        super().__init__(id=id)
        self.empty = empty
        self.grids: tuple[Grid, ...] = ()
        self._lines: list[Spans] = []

    def show(self, grids: Sequence[Grid]) -> None:
        if tuple(grids) == self.grids:
            return
        self.grids = tuple(grids)
        self.lines_changed()

    def lines_changed(self) -> None:
        self._lay_out()
        super().lines_changed()

    def _lay_out(self) -> None:
        width = self.text_width
        if not self.grids:
            self._lines = [((fit(self.empty, width), "dim"),)]
            return
        blocks = [(_grid_width(grid), _grid_lines(grid)) for grid in self.grids]
        self._lines = []
        row: list[tuple[int, list[Spans]]] = []
        for block in blocks:
            if row and sum(size + 3 for size, _ in row) + block[0] > width:
                self._put(row)
                row = []
            row.append(block)
        self._put(row)

    def _put(self, row: list[tuple[int, list[Spans]]]) -> None:
        if self._lines:
            self._lines.append(())
        for number in range(max(len(lines) for _, lines in row)):
            spans: list[Span] = []
            for size, lines in row:
                line = lines[number] if number < len(lines) else ((" " * size, "plain"),)
                spans.extend(line)
                spans.append(("   ", "plain"))
            self._lines.append(tuple(spans))

    def line_count(self) -> int:
        return len(self._lines)

    def selectable(self, index: int) -> bool:
        return False

    def line_at(self, index: int, width: int) -> Spans:
        return self._lines[index]


def _sizes(grid: Grid) -> tuple[int, int]:
    label = max([len(grid.corner), *(len(name) for name, _ in grid.rows)]) + 1
    cell = max([5, *(len(name) + 1 for name in grid.columns)])
    for _, cells in grid.rows:
        cell = max([cell, *(len(item.text) + 2 for item in cells if item)])
    return label, cell


def _grid_width(grid: Grid) -> int:
    label, cell = _sizes(grid)
    return max(label + cell * len(grid.columns), min(len(grid.title), 60), min(len(grid.foot), 60))


def _grid_lines(grid: Grid) -> list[Spans]:
    label, cell = _sizes(grid)
    width = _grid_width(grid)
    rest = width - label - cell * len(grid.columns)
    lines: list[Spans] = [((fit(grid.title, width), "head"),)]
    header = fit(grid.corner, label) + "".join(fit(f"{name} ", cell, right=True) for name in grid.columns)
    lines.append(((header + " " * rest, "dim"),))
    for name, cells in grid.rows:
        spans: list[Span] = [(fit(name, label), "dim")]
        for item in cells:
            text, tone = (item.text, item.tone) if item else ("··", "dim")
            spans.append((fit(f"{text} ", cell, right=True), tone))
        spans.append((" " * rest, "plain"))
        lines.append(tuple(spans))
    if grid.foot:
        lines.append(((fit(grid.foot, width), "dim"),))
    return lines
