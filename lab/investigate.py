"""An investigation from the symptom to findings.

Contract: questions are answered before any run; then both ends; then the candidates, where the base is bad; then the
stack, on a background that has headroom; then readings and hypotheses; then findings. Everything it learns is in the
store when it returns, and what is there already is not run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from lab.arms import BASE, FIX, FULL, Arm, parse_arm
from lab.bench import Bench
from lab.case import Case
from lab.endpoints import Endpoints, measure_endpoints
from lab.findings import write_findings
from lab.fixes import try_candidates
from lab.hypotheses import decide_hypotheses
from lab.inquiry import Inquiry
from lab.live import reading_liveness
from lab.metric import Measurement
from lab.questions import answer_question
from lab.readings import freshness
from lab.recheck import recheck
from lab.suspects import Trial, judge_stack
from store.errors import LivepathError


def investigate(case: Case, bench: Bench) -> str:
    """Carry out the whole investigation; returns one line that says what came of it."""
    inquiry = Inquiry(case, bench)
    bench.pace.expect(_expected(inquiry))
    answer_questions(inquiry)
    _start_early(inquiry)
    ends = measure_endpoints(inquiry)
    read = read_readings(inquiry, FULL)
    fix = try_candidates(inquiry, [BASE, FULL])
    decide_hypotheses(case.store, case.target, measurements_for(inquiry))  # those whose runs are in; the rest below
    ground, whole = _background(inquiry, ends, fix)
    trial = judge_stack(inquiry, ground, whole)
    read_readings(inquiry, FULL if read else whole)  # again: by now more runs can say what makes a line dead
    decide_hypotheses(case.store, case.target, measurements_for(inquiry))
    findings = write_findings(inquiry, ends, trial)
    recheck(
        case.store, {r.id: freshness(case.git, r, case.store.case().head).state for r in case.store.readings() if r.id}
    )
    bench.pace.expect_no_more()
    bench.report()
    return _message(inquiry, ends, fix, trial, len(findings))


def answer_questions(inquiry: Inquiry) -> None:
    """Answer every open question that has a way of being answered without a run."""
    store = inquiry.case.store
    for question in store.questions():
        if question.state == "open" and question.how and question.id is not None:
            try:
                answer = answer_question(inquiry.case, question.how)
            except LivepathError as error:
                store.set_question(question.id, state="open", answer=f"could not be answered: {error}")
            else:
                store.set_question(question.id, state="answered", answer=answer.text, evidence=answer.evidence)


def _start_early(inquiry: Inquiry) -> None:
    """Put the runs that are needed whatever comes out into the queue, so that no worker idles."""
    probe = inquiry.primary.name
    inquiry.start(probe, BASE, FULL)
    for candidate in inquiry.case.candidates:
        if inquiry.bench.applies(BASE.with_(candidate.name)):
            inquiry.start(probe, BASE.with_(candidate.name))
    for hypothesis in inquiry.case.store.hypotheses():
        if hypothesis.predicate is not None:
            arm = _arm(inquiry, hypothesis.predicate.arm)
            if FIX not in arm.plus and inquiry.bench.applies(arm):
                inquiry.start(hypothesis.predicate.probe, arm)


def _arm(inquiry: Inquiry, name: str) -> Arm:
    return parse_arm(name, [patch.name for patch in inquiry.case.store.patches()])


def measurements_for(inquiry: Inquiry) -> Callable[[str, str], Sequence[Measurement]]:
    """How a hypothesis gets the runs that its predicate cites."""

    def measurements(probe: str, arm_name: str) -> Sequence[Measurement]:
        arm = _arm(inquiry, arm_name)
        if FIX in arm.plus and not inquiry.bench.fix:
            return []
        if not inquiry.bench.applies(arm) or not inquiry.usable(probe, arm):
            return []
        return inquiry.measurements(probe, arm)

    return measurements


def _background(inquiry: Inquiry, ends: Endpoints, fix: str) -> tuple[Arm, Arm]:
    """Where the stack is judged: with the fix in both arms when base was bad, plainly otherwise."""
    if ends.base == "bad" and fix:
        inquiry.bench.fix = fix
        inquiry.case.store.set_meta("fix", fix)
        return BASE.with_(FIX), FULL.with_(FIX)
    inquiry.case.store.set_meta("fix", "")
    return BASE, FULL


def read_readings(inquiry: Inquiry, arm: Arm) -> bool:
    """Hold every reading against an arm's run of the symptom's probe; False where that cannot be tested."""
    outcome = inquiry.outcome(inquiry.primary.name, arm)
    if not outcome.usable:
        return False
    for reading in inquiry.case.store.readings():
        inquiry.case.store.put_reading_liveness(reading_liveness(inquiry.case, reading, outcome.run, outcome.attempt))
    return True


def _expected(inquiry: Inquiry) -> list[str]:
    """The runs of the commonest course (bad at both ends, one fix, no culprit), to tell the time left."""
    probes = inquiry.case.target.probes.values()
    suspected = {kind for patch in inquiry.case.stack for kind in patch.suspected}
    count: Counter[str] = Counter()
    count[inquiry.primary.name] += 3 + 2 * len(inquiry.case.candidates)
    for probe in probes:
        count[probe.name] += 1 + (probe in inquiry.standing and probe != inquiry.primary)
        count[probe.name] += len(suspected & set(probe.controls))
        count[probe.name] += sum(bool(set(patch.suspected) & set(probe.controls)) for patch in inquiry.case.stack)
    return list(count.elements())


def _message(inquiry: Inquiry, ends: Endpoints, fix: str, trial: Trial, findings: int) -> str:
    parts: list[str] = [ends.story]
    if fix:
        parts.append(f"fixed by {fix}")
    if trial.culprits:
        parts.append(f"culprit {', '.join(culprit.name for culprit in trial.culprits)}")
    return f"{'; '.join(parts)}; {findings} findings"
