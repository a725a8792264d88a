"""Two grids of the report: recall by length and depth, exponents by layer.

Contract: every number stands with its n or its layers; rows that say the same are folded into one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar

from tui.text import words
from tui.text.layout import Cell, Page

Data = dict[str, Any]
K = TypeVar("K")


def recall_lines(cells: Sequence[Data], page: Page) -> list[str]:
    """A grid of the share of right answers, one row per length, one column per depth; arms that agree share a grid."""
    if not cells:
        return []
    arms: dict[tuple[str, str], list[Data]] = {}
    for cell in cells:
        arms.setdefault((str(cell.get("probe") or ""), cell["arm"]), []).append(cell)
    lines = page.heading("Right answers by length and depth (n per cell)")
    for names, own in _shared(arms, lambda cell: (cell["length"], cell["depth"], cell["ok"], cell["n"])):
        lines += page.prose("; ".join(arm for _, arm in names), tone="strong", hanging=2)
        lines += _grid(own, page)
    return lines


def _grid(cells: Sequence[Data], page: Page) -> list[str]:
    depths = sorted({cell["depth"] for cell in cells})
    rows: list[list[Cell | str]] = []
    for length, group in groupby(cells, key=lambda cell: cell["length"]):
        by_depth = {cell["depth"]: cell for cell in group}
        counts = sorted({cell["n"] for cell in by_depth.values()})
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
        rows.append([str(length), *(_share(by_depth.get(depth)) for depth in depths), Cell(n, "dim")])
    return [f"  {line}" for line in page.table(("length", *(f"@{depth:g}" for depth in depths), "n"), rows)]


def _shared(arms: dict[K, list[Data]], told: Callable[[Data], Any]) -> list[tuple[list[K], list[Data]]]:
    """Arms with the same numbers, folded: their names, and the rows of the first."""
    groups: dict[tuple[Any, ...], list[K]] = {}
    for name, rows in arms.items():
        groups.setdefault(tuple(map(told, rows)), []).append(name)
    return [(names, arms[names[0]]) for names in groups.values()]


def _share(cell: Data | None) -> Cell:
    if cell is None or not cell["n"]:
        return Cell("-", "dim")
    share = cell["ok"] / cell["n"]
    return Cell(f"{share:.2f}", "good" if share >= 0.95 else "warn" if share >= 0.8 else "bad")


def exponent_lines(exponents: Sequence[Data], page: Page) -> list[str]:
    """One row per branch, phase and value; layers that agree share a row, arms that agree a table."""
    if not exponents:
        return []
    arms: dict[str, list[Data]] = {}
    for row in exponents:
        arms.setdefault(row["arm"], []).append(row)
    lines = page.heading("Exponent of the routed scaling factor (1 is right, shared 0)")
    for names, own in _shared(arms, lambda row: (row["layer"], *_said(row))):
        groups: dict[tuple[str, ...], list[Any]] = {}
        for row in own:
            groups.setdefault(_said(row), []).append(row["layer"])
        rows = [
            (branch, phase, layer_list(layers), value, Cell(reading, "good" if reading == "right" else "bad"))
            for (branch, phase, value, reading), layers in groups.items()
        ]
        lines += page.prose("; ".join(names), tone="strong", hanging=2)
        lines += [f"  {line}" for line in page.table(("branch", "phase", "layers", "exponent", ""), rows)]
    return lines


def _said(row: Data) -> tuple[str, str, str, str]:
    return row["branch"], row["phase"], _value(row["value"]), str(row.get("reading", ""))


def _value(value: Any) -> str:
    return words.number(value) if isinstance(value, str) else f"{value + 0.0:.2f}".replace("-0.00", "0.00")


def layer_list(layers: Sequence[Any]) -> str:
    """`0-3, 7`: runs of numbers folded."""
    numbers = sorted({layer for layer in layers if isinstance(layer, int)})
    others = sorted({str(layer) for layer in layers if not isinstance(layer, int) and layer is not None})
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join([*parts, *others]) or "all"
