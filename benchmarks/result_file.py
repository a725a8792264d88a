"""Result files: where they go, and what must stand in them.

Contract: {"machine": {gpu, torch, triton, driver, commit, clocks_before, ...}, "ceilings": {...}, "error_limit": x,
"rows": [{op, shape, us, floor_us, error, peers, ...}]}. `us` is microseconds, or None for a row whose error is above
the limit; `clean_us`, where a row has it, is the same from a cache without lines to write back. A run that broke off
has "stopped" with the reason, and the rows it got to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
MACHINE = ("gpu", "torch", "triton", "driver", "commit", "clocks_before")
# Of files without a limit of their own, which were written before files named it.
ERROR_LIMIT = 4.5e-3


def path_of(folder: Path, name: str, gpu: str) -> Path:
    """`<date>-<name>-<gpu>.json`, the card's name as one word: NVIDIA H200 is h200."""
    card = re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia ")).strip("-")
    return folder / f"{datetime.now(UTC):%Y-%m-%d}-{name}-{card}.json"


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def problems(result: dict[str, Any]) -> list[str]:
    """What is wrong with a result, a line each; none for a good one."""
    machine = result.get("machine", {})
    found = [f"machine: {key} is missing" for key in MACHINE if not machine.get(key)]
    rows = result.get("rows", [])
    if not rows:
        found.append("rows: none")
    limit = result.get("error_limit", ERROR_LIMIT)
    for number, row in enumerate(rows):
        found += [f"row {number}: {text}" for text in _row_problems(row, limit)]
    return found


def _row_problems(row: dict[str, Any], limit: float) -> Iterable[str]:
    missing = {"op", "shape", "us", "error"} - row.keys()
    if missing:
        yield f"{', '.join(sorted(missing))} missing"
        return
    for name, value in {"us": row["us"], **row.get("peers", {})}.items():
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            yield f"{name} is {value!r}, expected microseconds"
    # A floor of a few nanoseconds is rounded to 0.
    if not row.get("floor_us", 0.0) >= 0:
        yield f"floor_us is {row['floor_us']!r}, expected microseconds"
    # NaN is below no limit.
    if row["us"] is not None and not row["error"] <= row.get("error_limit", limit):
        yield f"error {row['error']} above the limit of {row.get('error_limit', limit)}, and yet a time"
