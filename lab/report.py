"""The report of a case as one JSON object: everything a reader needs to judge the findings, and what is not verified.

Contract: plain JSON in a fixed order; the same case gives the same bytes. NaN and infinities are strings. Nothing is
computed here that a run did not bring: values are read from the store, intervals from their n. A patch is summarised by
the worst verdict any probe gave it; each verdict stands beside it with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lab.exponent import exponents
from lab.findings import summary_of
from lab.markdown import to_markdown
from lab.metric import Measurement, measure
from lab.report_bisects import bisect_rows
from lab.report_cells import recall_cells
from lab.report_liveness import patch_liveness_row
from lab.unverified import not_verified
from store.models import Comparison, Finding, Hypothesis, Patch, PatchVerdict, Reading, Run
from store.store import Store

SCHEMA = 1

__all__ = ["build_report", "to_markdown"]


def build_report(store: Store, *, version: str = "", freshness: Mapping[int, str] | None = None) -> dict[str, Any]:
    """The whole report.

    Args:
        store: an open case.
        version: of Livepath; "" takes the one the case was made with.
        freshness: reading id -> fresh, moved, changed or gone, where somebody has looked; else "not checked".
    """
    case = store.case()
    ends = store.meta("endpoints") or {}
    runs = store.runs()
    measured = {run.id: found for run in runs if (found := measure(store, run)) is not None}
    controls = {patch.name for patch in store.patches("control")}
    plain = [found for found in measured.values() if not controls & set(found.run.patches)]
    fresh = dict(freshness or {})
    report = {
        "schema": SCHEMA,
        "livepath": version or case.livepath_version,
        "case": case.slug,
        "symptom": case.symptom,
        "machine": case.machine,
        "base": {"commit": case.base, "verdict": ends.get("base")},
        "full": {
            "commit": case.head,
            "verdict": ends.get("full"),
            "story": ends.get("story"),
            "text": ends.get("text"),
        },
        "stack": [_patch(store, patch) for patch in store.patches("stack")],
        "candidates": [_patch(store, patch) for patch in store.patches("candidate")],
        "questions": [
            {"id": q.id, "text": q.text, "state": q.state, "answer": q.answer, "evidence": list(q.evidence)}
            for q in store.questions()
        ],
        "hypotheses": [_hypothesis(hypothesis) for hypothesis in store.hypotheses()],
        "assumptions": [
            {"id": a.id, "text": a.text, "about": a.about, "state": a.state, "reason": a.reason}
            for a in store.assumptions()
        ],
        "readings": [_reading(store, reading, fresh) for reading in store.readings()],
        "runs": [_run(store, run, measured.get(run.id)) for run in runs],
        "cells": recall_cells(plain),
        "exponents": [exponent.as_row() for exponent in exponents(plain)],
        "bisects": bisect_rows(store),
        "findings": [_finding(finding) for finding in store.findings()],
        "not_verified": not_verified(store, fresh),
    }
    return dict(_finite(report))


def _patch(store: Store, patch: Patch) -> dict[str, Any]:
    verdicts = store.verdicts(patch=patch.name)
    worst = summary_of(verdicts) if verdicts else None
    return {
        "name": patch.name,
        "commit": patch.commit,
        "patch_id": patch.patch_id,
        "subject": patch.subject,
        "tier": patch.tier,
        "reason": patch.reason,
        "verdict": worst.verdict if worst else None,
        "verdict_with": list(worst.verdict_with) if worst else [],
        "given": list(worst.given) if worst else [],
        "needs": sorted({name for verdict in verdicts for name in verdict.needs}),
        "liveness": patch_liveness_row(store, patch, worst),
        "per_probe": [_verdict(store, verdict) for verdict in verdicts],
        "control": worst.control if worst else "",
        "runs": sorted({run for verdict in verdicts for run in verdict.runs}),
    }


def _verdict(store: Store, verdict: PatchVerdict) -> dict[str, Any]:
    comparison = store.comparison(verdict.comparison_id) if verdict.comparison_id else None
    return {
        "probe": verdict.probe,
        "background": verdict.background,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "given": list(verdict.given),
        "verdict_with": list(verdict.verdict_with),
        "control": verdict.control,
        "runs": list(verdict.runs),
        "comparison": _comparison(comparison) if comparison else None,
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    dropped = ("probe", "background", "without_run", "with_run")
    return {name: value for name, value in asdict(comparison).items() if name not in dropped}


def _hypothesis(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "id": hypothesis.id,
        "text": hypothesis.text,
        "predicate": asdict(hypothesis.predicate) if hypothesis.predicate else None,
        "refuted_if": hypothesis.refuted_if,
        "state": hypothesis.state,
        "by": hypothesis.by,
        "reason": hypothesis.reason,
        "evidence": list(hypothesis.evidence),
    }


def _reading(store: Store, reading: Reading, freshness: Mapping[int, str]) -> dict[str, Any]:
    known = store.reading_liveness(reading.id or 0)
    last = known[-1] if known else None
    return {
        "id": reading.id,
        "path": reading.path,
        "start": reading.start,
        "end": reading.end,
        "rev": reading.rev,
        "host": reading.host,
        "qualname": reading.qualname,
        "note": reading.note,
        "freshness": freshness.get(reading.id or 0, "not checked"),
        "liveness": {
            "word": last.word,
            "count": last.count,
            "run": last.run_id,
            "given": list(last.given),
            "reason": last.reason,
        }
        if last
        else None,
        "sibling": dict(last.siblings[0]) if last and last.siblings else None,
    }


def _run(store: Store, run: Run, measured: Measurement | None) -> dict[str, Any]:
    attempts = store.attempts(run.id or 0)
    shown = measured.attempt if measured else attempts[-1] if attempts else None
    asked = [job.created_utc for job in store.jobs()]
    return {
        "id": run.id,
        "probe": run.probe,
        "arm": run.arm,
        "patches": list(run.patches),
        "tree": run.tree,
        "seed": run.seed,
        "command": run.command,
        "attempts": len(attempts),
        # Made before the latest job was asked for: that job took it from the record.
        "cached": bool(shown and asked and shown.started_utc < max(asked)),
        "wall_s": shown.wall_s if shown else None,
        "status": shown.status if shown else None,
        "reason": shown.reason if shown else "",
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "claim": finding.claim,
        "verdict": finding.verdict,
        "evidence": list(finding.evidence),
        "patch": finding.patch,
        "patch_id": finding.patch_id,
        "diff": finding.diff,
        "flagged": finding.flagged,
        "withdrawn": finding.withdrawn_reason or finding.withdrawn_utc,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
