"""Spans: text with a tone, the only form in which words reach the screen.

Contract: a span is (text, tone). Everything that is drawn passes through `strip_of`, which cleans the text of control,
escape and bidirectional characters and never reads markup; so no widget can be tricked by what a repository contains.
Tones are names, their colours are in `tones.py`; a tone only repeats what a sign or a word already says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from tui.text.clean import clean

# heat0 to heat4 are shades behind a number, from the worst to the best.
Tone = Literal[
    "plain", "dim", "strong", "good", "bad", "warn", "cool", "head", "added", "removed", "mark",
    "heat0", "heat1", "heat2", "heat3", "heat4",
]  # fmt: skip
Span = tuple[str, Tone]
Spans = tuple[Span, ...]


def plain(text: str) -> Spans:
    return ((text, "plain"),)


def one_line(text: str) -> str:
    """The text on one line: line breaks become spaces, the rest is cleaned."""
    return clean(" ".join(text.split("\n"))) if "\n" in text else clean(text)


def title(text: str) -> Text:
    """Words for the title of a border, which would read a plain string as markup."""
    return Text(one_line(text))


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells; what does not fit ends in an ellipsis."""
    text = one_line(text)
    if width <= 0:
        return ""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if right else text + " " * (width - size)


def fit_middle(text: str, width: int) -> str:
    """Like `fit`, but a long path loses its middle: its end says more than its start."""
    text = one_line(text)
    if cell_len(text) <= width or width < 8:
        return fit(text, width)
    tail = width * 2 // 3
    return fit(text[: width - tail - 1] + "…" + text[-tail:], width)


def width_of(spans: Iterable[Span]) -> int:
    return sum(cell_len(one_line(text)) for text, _ in spans)


def wrap(spans: Spans, width: int, *, indent: int = 0) -> list[Spans]:
    """Breaks spans into lines of at most `width` cells, at spaces where there are any.

    Args:
        spans: what to break; line breaks in the text are kept.
        width: cells of a line.
        indent: cells that continuation lines start with.
    """
    width = max(width, indent + 8)
    lines: list[Spans] = []
    line: list[Span] = []
    used = 0

    def end_line() -> None:
        nonlocal line, used
        lines.append(tuple(line))
        line = [(" " * indent, "plain")] if indent else []
        used = indent

    for text, tone in spans:
        for number, paragraph in enumerate(text.split("\n")):
            if number:
                end_line()
            for word in _words(clean(paragraph)):
                size = cell_len(word)
                if used + size > width and used > indent:
                    end_line()
                    word = word.lstrip(" ")
                    size = cell_len(word)
                while size > width - used:
                    head = _head(word, width - used)
                    line.append((head, tone))
                    word = word[len(head) :]
                    size = cell_len(word)
                    end_line()
                if word:
                    line.append((word, tone))
                    used += size
    end_line()
    return lines


def _words(text: str) -> list[str]:
    """Words, each with the spaces before it, so that joining them gives the text back."""
    words: list[str] = []
    start = 0
    for index in range(1, len(text)):
        if text[index] == " " and text[index - 1] != " ":
            words.append(text[start:index])
            start = index
    words.append(text[start:])
    return [word for word in words if word]


def _head(text: str, width: int) -> str:
    """The longest start of the text that fits; at least one character, so that breaking always ends."""
    used = 0
    for index, character in enumerate(text):
        used += cell_len(character)
        if used > width:
            return text[: max(index, 1)]
    return text


def strip_of(spans: Iterable[Span], style_of: Callable[[Tone], Style]) -> Strip:
    """The only place where words become cells."""
    return Strip([Segment(one_line(text), style_of(tone)) for text, tone in spans if text])
