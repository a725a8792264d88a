"""Findings the lab writes by itself: a claim, its verdict, what it rests on, and the diff of the patch it concerns.

Contract: each finding has a key, so that running the investigation again renews it instead of adding a second; a
finding that a person withdrew stays withdrawn.
"""

from __future__ import annotations

from typing import Any

from lab.claims import route_findings
from lab.endpoints import Endpoints
from lab.exponent import disagreement_findings
from lab.inquiry import Inquiry
from lab.suspects import Trial
from store.models import (
    VERDICTS_WORST_FIRST,
    Finding,
    Hypothesis,
    Patch,
    PatchVerdict,
    Reading,
    ReadingLiveness,
    Verdict,
)


def write_findings(inquiry: Inquiry, ends: Endpoints, trial: Trial | None) -> list[Finding]:
    """Write every finding the record supports and return them."""
    store = inquiry.case.store
    found = [_endpoint_finding(inquiry, ends)]
    if trial is not None and trial.joint:
        found.append(_joint_finding(trial))
    for patch in [*inquiry.case.candidates, *inquiry.case.stack]:
        verdicts = store.verdicts(patch=patch.name)
        if verdicts:
            found.append(_patch_finding(patch, verdicts))
    found += [_hypothesis_finding(inquiry, hypothesis) for hypothesis in store.hypotheses() if _decided(hypothesis)]
    for reading in store.readings():
        liveness = store.reading_liveness(reading.id or 0)
        if liveness and liveness[-1].word in ("not_seen", "absent"):
            found.append(_reading_finding(reading, liveness[-1]))
    found += disagreement_findings(store)
    found += route_findings(store, inquiry.case.git)
    return [store.put_finding(finding) for finding in found]


def put_patch_finding(inquiry: Inquiry, patch: Patch) -> Finding:
    """Write the finding on one patch down, from all its verdicts."""
    return inquiry.case.store.put_finding(_patch_finding(patch, inquiry.case.store.verdicts(patch=patch.name)))


def put_hypothesis_findings(inquiry: Inquiry) -> list[Finding]:
    """Write a finding for every hypothesis that runs have decided."""
    store = inquiry.case.store
    decided = [hypothesis for hypothesis in store.hypotheses() if _decided(hypothesis)]
    return [store.put_finding(_hypothesis_finding(inquiry, hypothesis)) for hypothesis in decided]


def _endpoint_finding(inquiry: Inquiry, ends: Endpoints) -> Finding:
    claims = {
        "older than the stack": "The fault is older than the stack",
        "regression": "The stack brings the fault: base is good, the full stack is bad",
        "mended by the stack": "The stack mends the fault: base is bad, the full stack is good",
        "not reproduced": "Not reproduced",
        "undecided": "The ends are undecided",
    }
    runs = [run for arm in ("base", "full") for run in inquiry.case.store.runs(probe=inquiry.primary.name, arm=arm)]
    return Finding(
        key="endpoints",
        claim=f"{claims[ends.story]}: {ends.text}{_by_length(inquiry)}",
        verdict=None,
        patch="",
        patch_id="",
        diff="",
        evidence=tuple({"kind": "run", "id": run.id} for run in runs),
    )


def _by_length(inquiry: Inquiry) -> str:
    """The measure by context length, where the items say their length: whole within reach, fallen beyond it."""
    lines = []
    for arm in ("base", "full"):
        cells: dict[Any, list[float]] = {}
        for run in inquiry.case.store.runs(probe=inquiry.primary.name, arm=arm):
            attempt = inquiry.case.store.last_good_attempt(run.id or 0)
            for item in inquiry.case.store.items(attempt.id or 0) if attempt else ():
                if "length" in item.tags:
                    cells.setdefault(item.tags["length"], []).append(item.score)
        if cells:
            row = ", ".join(f"{length}: {sum(v) / len(v):.2f} (n {len(v)})" for length, v in sorted(cells.items()))
            lines.append(f"{arm} by length {row}")
    return "; " + "; ".join(lines) if lines else ""


def summary_of(verdicts: list[PatchVerdict]) -> PatchVerdict:
    """The verdict that is shown for a patch: the worst any probe gave it on any background."""
    # A probe under which nothing of the patch ran says nothing against one under which it ran and was cleared.
    spoken = [verdict for verdict in verdicts if verdict.verdict != "dead"] or verdicts
    return min(spoken, key=lambda verdict: VERDICTS_WORST_FIRST.index(verdict.verdict))


def _joint_finding(trial: Trial) -> Finding:
    """The whole stack at once, held against the ground without it."""
    said = "; ".join(
        f"{probe}: {c.metric} {c.outcome}, {c.difference:+.3g} (n {c.n})" for probe, c in trial.joint.items()
    )
    left = f" without {', '.join(culprit.name for culprit in trial.culprits)}" if trial.culprits else ""
    return Finding(
        key="joint",
        claim=f"The whole stack{left} against {trial.ground.name}: {said}",
        verdict=None,
        patch="",
        patch_id="",
        diff="",
        evidence=tuple({"kind": "comparison", "id": c.id} for c in trial.joint.values()),
    )


_SAYS: dict[Verdict, str] = {
    "culprit": "is a culprit",
    "fix": "is a fix",
    "exonerated": "is exonerated",
    "dead": "is dead",
    "inconclusive": "is undecided",
    "needs": "needs another patch",
    "does_not_apply": "does not apply",
    "cannot_be_tested": "cannot be tested",
}


def _patch_finding(patch: Patch, verdicts: list[PatchVerdict]) -> Finding:
    worst = summary_of(verdicts)
    with_ = f" together with {', '.join(f'`{name}`' for name in worst.verdict_with)}" if worst.verdict_with else ""
    given = f" given {', '.join(worst.given)}" if worst.given else ""
    reasons = _reasons([verdict for verdict in verdicts if verdict.verdict == worst.verdict])
    runs = dict.fromkeys(run for verdict in verdicts for run in verdict.runs)
    comparisons = dict.fromkeys(verdict.comparison_id for verdict in verdicts if verdict.comparison_id)
    return Finding(
        key=f"patch:{patch.name}",
        claim=f"`{patch.name}` {_SAYS[worst.verdict]}{with_}{given}: {reasons}",
        verdict=worst.verdict,
        patch=patch.name,
        patch_id=patch.patch_id,
        diff=patch.diff,
        evidence=(
            *({"kind": "run", "id": run} for run in runs),
            *({"kind": "comparison", "id": comparison} for comparison in comparisons),
        ),
    )


def _reasons(verdicts: list[PatchVerdict]) -> str:
    """Each reason once, with the probes and backgrounds it holds for; a dead patch needs only its first."""
    where: dict[str, list[str]] = {}
    for verdict in verdicts:
        place = f"{verdict.probe} on {verdict.background}" if verdict.probe else ""
        where.setdefault(verdict.reason, []).append(place)
    if verdicts[0].verdict == "dead":
        probes = ", ".join(dict.fromkeys(verdict.probe for verdict in verdicts))
        return f"{verdicts[0].reason} (on {verdicts[0].background}, under {probes})"
    return "; ".join(
        f"{', '.join(filter(None, places))}: {reason}" if any(places) else reason for reason, places in where.items()
    )


def _decided(hypothesis: Hypothesis) -> bool:
    return hypothesis.by == "lab" and hypothesis.state in ("supported", "refuted")


def _hypothesis_finding(inquiry: Inquiry, hypothesis: Hypothesis) -> Finding:
    """A decided hypothesis; it carries the diff of the one patch its arm adds, if there is one."""
    arm = hypothesis.predicate.arm if hypothesis.predicate else ""
    added = [patch for patch in inquiry.case.candidates if arm.endswith(f"+{patch.name}")]
    patch = added[0] if len(added) == 1 else None
    return Finding(
        key=f"hypothesis:{hypothesis.id}",
        claim=f"{hypothesis.state.capitalize()}: {hypothesis.text}. {hypothesis.reason}",
        verdict=None,
        patch=patch.name if patch else "",
        patch_id=patch.patch_id if patch else "",
        diff=patch.diff if patch else "",
        evidence=hypothesis.evidence,
    )


def _reading_finding(reading: Reading, liveness: ReadingLiveness) -> Finding:
    where = f"{reading.path}:{reading.start}-{reading.end}"
    ran = ", ".join(f"`{s['qualname']}` ({s['path']}:{s['start']}-{s['end']})" for s in liveness.siblings[:2])
    instead = f"; what ran is {ran}" if ran else ""
    return Finding(
        key=f"reading:{reading.id}",
        claim=f"The reading of `{reading.qualname or where}` ({where}) is dead: {liveness.reason}{instead}",
        verdict="dead",
        patch="",
        patch_id="",
        diff="",
        evidence=({"kind": "reading", "id": reading.id}, {"kind": "run", "id": liveness.run_id}),
    )
