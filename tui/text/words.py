"""Verdicts, states, liveness, numbers and evidence as words with a tone, for the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tui.text.clean import clean
from tui.text.layout import Cell

_TONES = {
    "culprit": "bad",
    "does_not_apply": "warn",
    "needs": "warn",
    "cannot_be_tested": "warn",
    "inconclusive": "warn",
    "dead": "cool",
    "exonerated": "good",
    "fix": "good",
    "answered": "good",
    "supported": "good",
    "refuted": "bad",
    "dead_end": "cool",
    "verified": "good",
    "broken": "bad",
    "ok": "good",
    "good": "good",
    "bad": "bad",
    "failed": "bad",
    "infrastructure": "warn",
    "cancelled": "warn",
    "executed": "good",
    "not_seen": "bad",
    "absent": "bad",
    "not_seen_blind": "warn",
    "unknown": "warn",
    "bound": "cool",
}
# Liveness words as a person says them; the rest say themselves.
_SAID = {
    "executed": "live",
    "bound": "only bound",
    "entered_compiled": "live, compiled body",
    "at_capture": "live at capture",
    "launched": "kernel launched",
    "present": "present in the kernel",
    "absent": "dead, not in the kernel",
    "not_seen": "dead",
    "not_seen_blind": "not seen, blind",
}


def word(name: str | None, *, missing: str = "-") -> Cell:
    """A verdict, a state or a status."""
    return Cell(name.replace("_", " "), _TONES.get(name, "")) if name else Cell(missing, "dim")


def liveness(row: dict[str, Any] | None) -> Cell:
    """A liveness object of the report: its word, with what it holds given."""
    if not row or not row.get("word"):
        return Cell("no run", "dim")
    name = str(row["word"])
    count = f" {row['count']} times" if row.get("count") is not None else ""
    return Cell(_SAID.get(name, name.replace("_", " ")) + count, _TONES.get(name, ""))


def one_line(text: str) -> str:
    """Text of a repository on one clean line."""
    return clean(" ".join(text.split()))


def number(value: Any) -> str:
    """A number as short as it stays useful; NaN and infinities arrive as strings."""
    if value is None:
        return "?"
    if isinstance(value, str):
        return value
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.4g}"


def evidence(rows: Iterable[dict[str, Any]]) -> str:
    """Evidence rows in short: `run 3, reading 1`, or the place they name."""
    return ", ".join(_one(row) for row in rows)


def _one(row: dict[str, Any]) -> str:
    kind = str(row.get("kind", "evidence"))
    if row.get("id") is not None:
        return f"{kind} {row['id']}"
    if row.get("path"):
        start, end = row.get("start"), row.get("end")
        lines = f":{start}" if start else ""
        return f"{row['path']}{lines}{f'-{end}' if end and end != start else ''}"
    return kind
