"""Recall by context length and depth: the cells of the heat map.

Contract: made of items that are right or wrong and carry the tags `length` and `depth`, pooled over seeds, one cell per
probe, arm, length and depth. The interval is Wilson's, over the clusters of the cell: questions on the same context are
not independent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lab.metric import Measurement, distinct
from lab.stats import wilson
from store.models import Item


def recall_cells(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """All cells, by probe and arm in order of first appearance, then length and depth."""
    cells: dict[tuple[str, str, float, float], list[tuple[int, Item]]] = {}
    for measurement in distinct(measurements):
        for item in measurement.items:
            length, depth = _number(item.tags.get("length")), _number(item.tags.get("depth"))
            if item.score in (0, 1) and length is not None and depth is not None:
                key = (measurement.run.probe, measurement.run.arm, length, depth)
                cells.setdefault(key, []).append((measurement.run.seed, item))
    order = {place: number for number, place in enumerate(dict.fromkeys(key[:2] for key in cells))}
    return [_cell(key, cells[key]) for key in sorted(cells, key=lambda key: (order[key[:2]], key[2], key[3]))]


def _cell(key: tuple[str, str, float, float], items: list[tuple[int, Item]]) -> dict[str, Any]:
    probe, arm, length, depth = key
    right = sum(item.score for _, item in items)
    clusters = len({(seed, item.cluster) for seed, item in items})
    low, high = wilson(right / len(items), clusters)
    return {
        "probe": probe,
        "arm": arm,
        "length": length,
        "depth": depth,
        "ok": int(right),
        "n": len(items),
        "low": round(low, 4),
        "high": round(high, 4),
    }


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
