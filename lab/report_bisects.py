"""The report's section on bisects: every search of the stack, with its steps and the runs they rest on."""

from __future__ import annotations

from typing import Any

from store.models import Bisect
from store.store import Store


def bisect_rows(store: Store) -> list[dict[str, Any]]:
    """One row per search; one that was not finished is "running"."""
    return [_row(store, bisect) for bisect in store.bisects()]


def _row(store: Store, bisect: Bisect) -> dict[str, Any]:
    compared = [store.comparison(step["comparison"]) for step in bisect.steps if step.get("comparison")]
    return {
        "id": bisect.id,
        "probe": bisect.probe,
        "background": bisect.background,
        "verdict": bisect.outcome or "running",
        "text": bisect.text,
        "culprits": list(bisect.culprits),
        "runs": sorted({run for one in compared for run in (one.without_run, one.with_run)}),
        "confidence": bisect.confidence,
        "steps": [dict(step) for step in bisect.steps],
    }
