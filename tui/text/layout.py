"""Plain text for a terminal: tones, wrapped paragraphs and tables that fit a width.

Contract: every word passes through `clean`, so nothing printed here can steer the terminal. A tone only repeats what
a word says; without colour nothing is lost. Tables keep their columns narrow and wrap the one column that is prose.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from tui.text.clean import clean

_CODES = {"good": "32", "bad": "31", "warn": "33", "cool": "36", "dim": "2", "strong": "1"}
_GAP = "  "
_NARROWEST_PROSE = 24
_WIDEST_CELL = 34


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a tone."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Where text goes: how wide it is, and whether it has colour."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, tone: str) -> str:
        """Text in a tone; as it is where there is no colour."""
        code = _CODES.get(tone)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text.strip() else text

    def heading(self, text: str) -> list[str]:
        """A heading with a blank line before it."""
        return ["", self.paint(clean(text), "strong"), self.paint("-" * min(cell_len(clean(text)), self.width), "dim")]

    def prose(self, text: str, *, indent: int = 0, hanging: int = 0, tone: str = "") -> list[str]:
        """A paragraph, wrapped; lines after the first are `hanging` further in."""
        lines = _wrap(text, self.width - indent, hanging)
        return [" " * indent + self.paint(line, tone) for line in lines]

    def block(self, text: str, *, indent: int = 2, tone: str = "", most: int | None = None) -> list[str]:
        """Lines as they are (code, a diff), cut at the width; `most` of them."""
        lines = text.splitlines()
        shown = lines if most is None or len(lines) <= most else lines[:most]
        out = [
            " " * indent + self.paint(_cut(clean(line), self.width - indent), tone or _diff_tone(line))
            for line in shown
        ]
        if len(shown) < len(lines):
            out.append(" " * indent + self.paint(f"... {len(lines) - len(shown)} more lines", "dim"))
        return out

    def table(
        self, head: Sequence[str], rows: Iterable[Sequence[Cell | str]], *, prose: int | None = None
    ) -> list[str]:
        """Rows under a head; the column numbered `prose` wraps into what the others leave."""
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        if not cells:
            return []
        titles = [Cell(title, "dim") for title in head]
        widths = self._widths([titles, *cells], prose)
        return [line for row in (titles, *cells) for line in self._row(row, widths, prose)]

    def _widths(self, rows: Sequence[Sequence[Cell]], prose: int | None) -> list[int]:
        columns = range(len(rows[0]))
        wanted = [max(cell_len(clean(row[column].text)) for row in rows) for column in columns]
        widths = [size if column == prose else min(size, _WIDEST_CELL) for column, size in enumerate(wanted)]
        if prose is not None:
            others = sum(widths) - widths[prose] + len(_GAP) * (len(widths) - 1)
            widths[prose] = min(widths[prose], max(self.width - others, _NARROWEST_PROSE))
        return widths

    def _row(self, row: Sequence[Cell], widths: Sequence[int], prose: int | None) -> list[str]:
        columns = [
            _wrap(cell.text, width, 0) if column == prose else [_cut(clean(cell.text), width)]
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines = []
        for number in range(max(map(len, columns))):
            parts = [column[number] if number < len(column) else "" for column in columns]
            padded = [
                self.paint(part, cell.tone) + " " * (width - cell_len(part))
                for part, cell, width in zip(parts, row, widths, strict=True)
            ]
            lines.append(_GAP.join(padded).rstrip())
        return lines


def _wrap(text: str, width: int, hanging: int) -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n"):
        fit = _wrap_characters(clean(paragraph), max(width, 12), hanging)
        if any(cell_len(line) > width for line in fit):
            # textwrap counts characters; a wide one takes two cells.
            fit = _wrap_characters(clean(paragraph), max(width // 2, 12), hanging)
        lines += fit or [""]
    return lines


def _wrap_characters(text: str, width: int, hanging: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * hanging, break_on_hyphens=False)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 3, 0)) + "..."


def _diff_tone(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "dim"
    return {"+": "good", "-": "bad", "@": "cool"}.get(line[:1], "")
