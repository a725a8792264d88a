"""Candidates: does any of them mend the symptom, on base and on the full stack?

Contract: a candidate is a fix where its arm is decidedly better and, by the probe's own word, good. One that is
better and still not good stays inconclusive and says so; one whose changed lines never ran is dead and no A/B is run.
"""

from __future__ import annotations

from functools import partial

from lab.arms import Arm
from lab.inquiry import Inquiry
from lab.sight import kinds_for, sight
from store.models import Comparison, Patch, Verdict


def try_candidates(inquiry: Inquiry, grounds: list[Arm]) -> str:
    """Judge every candidate on every ground; returns the first that fixes the first ground, or ""."""
    probe = inquiry.primary
    grounds = [ground for ground in grounds if inquiry.usable(probe.name, ground)]
    for candidate in inquiry.case.candidates:
        for ground in grounds:
            if inquiry.bench.applies(ground.with_(candidate.name)):
                inquiry.start(probe.name, ground.with_(candidate.name))
    fix = ""
    for candidate in inquiry.case.candidates:
        for ground in grounds:
            verdict = _judge_candidate(inquiry, candidate, ground)
            if verdict == "fix" and ground == grounds[0] and not fix:
                fix = candidate.name
    return fix


def _judge_candidate(inquiry: Inquiry, candidate: Patch, ground: Arm) -> Verdict:
    probe, arm = inquiry.primary, ground.with_(candidate.name)
    write = partial(inquiry.verdict, candidate.name, probe=probe.name, background=ground.name)
    if not inquiry.bench.applies(arm):
        return write("does_not_apply", f"does not apply on {ground.name}").verdict
    if inquiry.bench.assemble(arm) == inquiry.bench.assemble(ground):
        return write("inconclusive", f"no effect: {ground.name} holds it already, the tree does not change").verdict
    outcome = inquiry.outcome(probe.name, arm)
    if not outcome.usable:
        return write("cannot_be_tested", f"{arm.name}: {outcome.attempt.reason}", runs=[outcome.run_id]).verdict
    live = inquiry.liveness(candidate, outcome)
    if live.dead:
        return write("dead", live.why, runs=[outcome.run_id]).verdict
    comparison = inquiry.compare_bracketed(probe, ground.name, ground, arm)
    verdict, reason, control = _weigh(inquiry, candidate, ground, comparison)
    return write(verdict, reason, comparison=comparison, control=control).verdict


def _weigh(inquiry: Inquiry, candidate: Patch, ground: Arm, comparison: Comparison) -> tuple[Verdict, str, str]:
    probe, arm = inquiry.primary, ground.with_(candidate.name)
    by = f"{comparison.metric} {comparison.difference:+.3g} (n {comparison.n})"
    if comparison.outcome == "better":
        judgement = inquiry.judge(probe, arm)
        if judgement is not None and judgement.state != "good":
            return "inconclusive", f"better, not good: {judgement.text}", ""
        return "fix", f"{by}" + (f"; {judgement.text}" if judgement else ""), ""
    if comparison.outcome == "worse":
        return "culprit", f"makes it worse: {by}", ""
    if comparison.outcome == "equivalent":
        for kind in kinds_for(probe, candidate.suspected):
            seen = sight(inquiry, probe, kind, ground)
            if seen.seen:
                return "exonerated", f"no effect: {by}", seen.control
        return "inconclusive", f"no effect seen by {probe.name}: {by}", ""
    return "inconclusive", f"undecided: {by}; more contexts would decide it", ""
