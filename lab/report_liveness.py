"""What runs proved about a patch's own lines, in one row for the report.

Contract: the row speaks of the run that the patch's verdict rests on; every other run with the patch is listed below
it, since a patch may be live on one background and dead on another. Counts are of acting lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lab.words import DEAD, RAN
from store.models import ChangedLine, LivenessWord, Patch, PatchVerdict
from store.store import Store

_UNKNOWN: tuple[LivenessWord, ...] = ("not_seen_blind", "unknown")


def patch_liveness_row(store: Store, patch: Patch, verdict: PatchVerdict | None) -> dict[str, Any] | None:
    """The row, or None when no run with the patch is on record."""
    by_run: dict[int, list[ChangedLine]] = {}
    for line in store.changed_lines(patch.name):
        by_run.setdefault(line.run_id, []).append(line)
    if not by_run:
        return None
    cited = [run for run in (verdict.runs if verdict else ()) if run in by_run]
    chosen = cited[-1] if cited else max(by_run)
    if verdict and verdict.verdict == "dead":
        dead = [run for run in (*cited, *by_run) if _word(by_run[run]) in (*DEAD, "bound")]
        chosen = dead[-1] if dead else chosen
    runs = {run.id: run for run in store.runs()}
    return {
        **_count(by_run[chosen]),
        "count": None,
        "run": chosen,
        "given": list(verdict.given) if verdict else [],
        "arms": [
            {"run": run, "probe": runs[run].probe, "arm": runs[run].arm, **_count(lines)}
            for run, lines in sorted(by_run.items())
            if run in runs
        ],
    }


def _count(lines: Sequence[ChangedLine]) -> dict[str, Any]:
    acting = [line for line in lines if line.acting]
    words = Counter(line.word for line in acting)
    return {
        "word": _word(lines),
        "acting": len(acting),
        "executed": sum(words[word] for word in RAN),
        "unknown": sum(words[word] for word in _UNKNOWN),
    }


def _word(lines: Sequence[ChangedLine]) -> LivenessWord:
    """One word for all lines: what ran outweighs what is unknown, which outweighs what was not seen."""
    words = {line.word for line in lines if line.acting}
    for word in (*RAN, *_UNKNOWN, *DEAD):
        if word in words:
            return word
    return "bound"
