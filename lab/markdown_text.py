"""Foreign text made safe for a Markdown page, and the few shapes that a page is built from.

Contract: text of a repository, a probe or a person is data: markup, HTML, mentions, issue numbers, links, control and
reordering characters come out as the characters they are, so that nothing but the page's author shapes the page.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"([\\`*_\[\]~|])")
_LINE_START = re.compile(r"(?m)^([ \t]*)([-+=>]|\d+[.)])(?=\s|$)")
_REFERENCE = re.compile(r"([@#])(?=\w)")
_LINK = re.compile(r"(?i)\b(https?|ftp|www)(:|\.)")
_BREAK = "<!-- -->"  # ends what GitHub would take for a mention, a number or an address


def visible(text: str, *, keep: str = "") -> str:
    """The text with every control, formatting or unpaired character replaced by a visible sign."""
    return "".join(
        character if character in keep or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else "�"
        for character in text
    )


def escape(text: str) -> str:
    """Prose that shows exactly these characters, on one line."""
    line = visible(" ".join(str(text).split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _LINE_START.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", line))
    return _LINK.sub(rf"\1{_BREAK}\2", _REFERENCE.sub(rf"\1{_BREAK}", line))


def prose(text: str) -> str:
    """Like `escape`, but what stands between backticks stays code."""
    parts = " ".join(str(text).split()).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(code(part) if number % 2 else _spaced(part) for number, part in enumerate(parts) if part)


def code(text: str) -> str:
    """A code span, whatever backticks the text has."""
    line = visible(" ".join(str(text).split())) or " "
    fence = "`" * (max(map(len, re.findall(r"`+", line)), default=0) + 1)
    pad = " " if line[0] in "` " or line[-1] in "` " else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def block(text: str, language: str = "") -> str:
    """A fenced block, whatever fences the text has."""
    shown = visible(text, keep="\n\t").rstrip("\n")
    fence = "`" * max(3, max(map(len, re.findall(r"`+", shown)), default=0) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def folded(summary: str, body: str) -> str:
    """A part that opens on a click; the summary is Markdown already and must be plain prose."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; "" when it has no rows."""
    lines = [_row(row) for row in rows]
    return "\n".join([_row(head), _row(["---"] * len(head)), *lines]) if lines else ""


def bullets(lines: Iterable[str]) -> str:
    """A list of lines that are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)


def section(title: str, body: str, *, level: int = 2) -> str:
    """A headed part, or "" when it would be empty."""
    return f"{'#' * level} {title}\n\n{body}" if body else ""


def _row(cells: Sequence[str]) -> str:
    # A code span hides everything but the pipe from a table.
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) or " " for cell in cells) + " |"


def _spaced(text: str) -> str:
    """Escaped, with the one space kept that separates it from the code beside it."""
    before, after = " " * (text[0] == " "), " " * (text[-1] == " ")
    return before + escape(text) + after if text.strip() else " "
