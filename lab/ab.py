"""Single steps a person asks for: one probe on one arm, or one patch with and without.

Contract: the same bench, cache, liveness and statistics as in an investigation; a patch whose changed lines never ran
is not compared, it is dead.
"""

from __future__ import annotations

from functools import partial

from lab.arms import Arm, parse_arm
from lab.bench import Bench
from lab.case import Case
from lab.inquiry import Inquiry
from lab.needs import Needs
from lab.target import Probe
from store.errors import UsageError
from store.models import Patch, PatchVerdict


def run_arm(case: Case, bench: Bench, *, probe: str, arm: str, seed: int | None = None) -> str:
    """Run one probe on one arm."""
    case.target.probe(probe)
    bench.fix = case.store.meta("fix") or ""
    parsed = parse_arm(arm, [patch.name for patch in case.store.patches()])
    outcome = bench.run(probe, parsed, seed=seed)
    state = "cached" if outcome.cached else f"{outcome.attempt.wall_s:.1f} s"
    reason = f": {outcome.attempt.reason}" if outcome.attempt.reason else ""
    return f"{probe} on {arm}: {outcome.attempt.status} ({state}){reason}"


def compare_patch(case: Case, bench: Bench, *, patch: str, probe: str = "", background: str = "full") -> str:
    """Compare a background with and without a patch; writes the verdict down and says it.

    Raises:
        UsageError: the patch is a planted fault, or the background leaves it out.
    """
    inquiry = Inquiry(case, bench)
    chosen = case.target.probe(probe) if probe else inquiry.primary
    bench.fix = case.store.meta("fix") or ""
    row = case.store.patch(patch)
    known = [other.name for other in case.store.patches()]
    ground = parse_arm(background, known)
    if row.role == "control":
        raise UsageError(f"`{patch}` is a planted fault, no suspect", hint="name a patch of `livepath patch list`")
    if row.role == "stack" and ground.root == "full" and patch not in ground.minus:
        with_, without = ground, Needs(inquiry, ground, chosen).removal(patch)
    else:
        with_, without = ground.with_(patch), ground
    inquiry.start(chosen.name, *(arm for arm in (with_, without) if bench.applies(arm)))
    found = _judge(inquiry, row, chosen, ground, without, with_)
    return f"`{patch}` under {chosen.name} on {ground.name}: {found.verdict}, {found.reason}"


def _judge(inquiry: Inquiry, patch: Patch, probe: Probe, ground: Arm, without: Arm, with_: Arm) -> PatchVerdict:
    write = partial(inquiry.verdict, patch.name, probe=probe.name, background=ground.name)
    for arm in (with_, without):
        if not inquiry.bench.applies(arm):
            return write("does_not_apply", f"{arm.name} does not apply")
        outcome = inquiry.outcome(probe.name, arm)
        if not outcome.usable:
            return write("cannot_be_tested", f"{arm.name}: {outcome.attempt.reason}", runs=[outcome.run_id])
    outcome = inquiry.outcome(probe.name, with_)
    live = inquiry.liveness(patch, outcome)
    if live.dead:
        return write("dead", live.why, runs=[outcome.run_id])
    comparison = inquiry.compare_bracketed(probe, ground.name, without, with_)
    text = f"{comparison.metric} {comparison.difference:+.3g} (n {comparison.n}), {comparison.outcome}"
    if comparison.outcome == "worse":
        return write("culprit", text, comparison=comparison)
    if comparison.outcome == "better":
        return write("fix", text, comparison=comparison)
    if comparison.outcome == "equivalent" and (
        control := proven_sight(inquiry, probe.name, ground.name, patch.suspected)
    ):
        return write("exonerated", f"{text}; sight by {control}", comparison=comparison, control=control)
    # This A/B plants no fault of its own, so without one on record it cannot exonerate.
    return write("inconclusive", f"{text}; a planted fault would be needed to exonerate it", comparison=comparison)


def proven_sight(inquiry: Inquiry, probe: str, background: str, suspected: tuple[str, ...]) -> str:
    """The planted fault of a suspected kind that this probe was seen to catch on this background, or ""."""
    for row in inquiry.case.store.meta("sight") or []:
        if row["seen"] and row["probe"] == probe and row["background"] == background and row["kind"] in suspected:
            return str(row["control"])
    return ""
