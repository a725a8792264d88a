"""A recorded terminal session as plain lines: a log of commands and outputs, or an asciicast.

Contract: `read_log` gives the lines a person saw. Escape sequences are carried out where they edit a line (backspace,
carriage return, erase, cursor left and right) and dropped otherwise; full-screen programs leave nothing; no control
character but the tab survives. Bounded in bytes, lines and width; what was cut is said in `notes`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from store.errors import UsageError

MAX_BYTES = 16 << 20
MAX_LINES = 200_000
MAX_WIDTH = 4_000

_FULL_SCREEN = re.compile(r"\x1b\[\?(?:1049|1047|47)h.*?(?:\x1b\[\?(?:1049|1047|47)l|\Z)", re.DOTALL)
_STRING = re.compile(r"\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?")  # window titles, links and the like
_TOKEN = re.compile(r"\x1b\[(?P<number>[0-?]*)[ -/]*(?P<act>[@-~])|\x1b[ -/]*.?|(?P<char>.)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    lines: tuple[str, ...]
    form: Literal["plain", "asciicast"]
    notes: tuple[str, ...] = ()


def read_log(path: Path) -> Log:
    """Read a session from a file.

    Raises:
        UsageError: there is no such file, or it is an asciicast of another version.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint="name a log of commands and outputs, or an asciicast"
        ) from error
    notes = [f"only the first {MAX_BYTES} bytes were read"] if len(raw) > MAX_BYTES else []
    text = raw[:MAX_BYTES].decode("utf-8", "replace")
    header = _cast_header(text)
    if header is not None:
        if header.get("version") not in (2, 3):
            raise UsageError(
                f"{path} is an asciicast of version {header.get('version')!r}, expected 2",
                hint="`asciinema convert` writes version 2",
            )
        text, broken = _cast_output(text)
        notes += [f"{broken} lines of the asciicast could not be read"] if broken else []
    lines = render(text)
    if len(lines) > MAX_LINES:
        notes.append(f"only the first {MAX_LINES} lines were read")
    form: Literal["plain", "asciicast"] = "plain" if header is None else "asciicast"
    return Log(lines=tuple(lines[:MAX_LINES]), form=form, notes=tuple(notes))


def render(text: str) -> list[str]:
    """What a terminal showed, line by line."""
    text = _STRING.sub("", _FULL_SCREEN.sub("", text))
    return [_line(line) for line in text.removesuffix("\n").split("\n")]


def plain(line: str) -> str:
    """A line as it is compared: no control character but the tab, no blanks at its end."""
    return _CONTROL.sub("", line[:MAX_WIDTH]).rstrip()


def _line(raw: str) -> str:
    raw = raw.rstrip("\r")
    if not _CONTROL.search(raw):
        return raw[:MAX_WIDTH]
    cells: list[str] = []
    at = 0
    for token in _TOKEN.finditer(raw[: 8 * MAX_WIDTH]):
        char = token["char"]
        if char == "\b":
            at = max(0, at - 1)
        elif char == "\r":
            at = 0
        elif char is not None:
            if not _CONTROL.match(char) and at < MAX_WIDTH:
                cells[at : at + 1] = [char]
                at += 1
        elif token["act"]:
            at = _edit(cells, at, token["act"], token["number"])
    return "".join(cells)


def _edit(cells: list[str], at: int, act: str, given: str) -> int:
    """Carry out one control sequence on a line; returns where the cursor is."""
    number = min(int(given), MAX_WIDTH) if given.isdigit() else 0
    count = max(1, number)
    match act:
        case "K" if number == 0:
            del cells[at:]
        case "K" if number == 2:
            cells[:] = [" "] * at
        case "D":
            return max(0, at - count)
        case "C":
            cells += [" "] * (min(at + count, MAX_WIDTH) - len(cells))
            return min(at + count, MAX_WIDTH)
        case "G":
            cells += [" "] * (count - 1 - len(cells))
            return count - 1
        case "P":
            del cells[at : at + count]
        case "@":
            cells[at:at] = [" "] * count
    return at


def _cast_header(text: str) -> dict[str, Any] | None:
    first = text.partition("\n")[0].strip()
    if not first.startswith("{"):
        return None
    try:
        header = json.loads(first)
    except ValueError:
        return None
    return header if isinstance(header, dict) and "version" in header else None


def _cast_output(text: str) -> tuple[str, int]:
    """What the program printed, and how many lines are no events."""
    printed, broken = [], 0
    for line in text.split("\n")[1:]:
        if not line.strip():
            continue
        try:
            _, code, data = json.loads(line)
            if code == "o":
                # A lone half of a surrogate pair is valid JSON and no text.
                printed.append(data.encode("utf-8", "replace").decode("utf-8"))
        except (ValueError, TypeError, AttributeError, RecursionError):
            broken += 1
    return "".join(printed), broken
