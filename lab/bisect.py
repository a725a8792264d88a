"""`livepath bisect start`: names the patch of the stack that makes one probe worse.

Contract: endpoints first, on the background that has headroom (base and full, both with the fix where a fix is on
record). The search itself is `lab/culprits.py`. A crash or a missing patch is never "bad". A culprit gets its verdict
and a finding with its diff; where the target has a scaling probe, the exponent with and without it is the confirmation.
The other probes that can judge an arm are asked, too: which of them notices the culprit, and which would have missed
it. Hypotheses are decided by the runs on record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lab.arms import BASE, FIX, FULL, Arm, parse_arm
from lab.bench import Bench
from lab.case import Case
from lab.culprits import Culprit, Search
from lab.findings import put_hypothesis_findings, put_patch_finding
from lab.hypotheses import decide_hypotheses
from lab.inquiry import Inquiry
from lab.investigate import measurements_for
from lab.metric import Measurement
from lab.needs import Needs
from lab.suspects import convict
from lab.target import Probe
from store.errors import RunError
from store.models import Bisect


def bisect(case: Case, bench: Bench, *, probe: str = "") -> str:
    """Search the stack with one probe; returns one line that says what came of it.

    Raises:
        RunError: an end cannot be tested.
    """
    inquiry = Inquiry(case, bench)
    chosen = case.target.probe(probe) if probe else inquiry.primary
    bench.fix = case.store.meta("fix") or ""
    ground, whole = (BASE.with_(FIX), FULL.with_(FIX)) if bench.fix else (BASE, FULL)
    bench.pace.expect([chosen.name] * (4 + max(1, len(bench.stack_names)).bit_length()))
    inquiry.start(chosen.name, ground, whole)
    for arm in (ground, whole):
        outcome = inquiry.outcome(chosen.name, arm)
        if not outcome.usable:
            raise RunError(
                f"`{chosen.name}` cannot be tested on {arm.name}: {outcome.attempt.reason}",
                hint="an end that cannot be tested is no bad end; mend it first",
            )
    if text := _older(inquiry, chosen, ground):
        case.store.put_bisect(
            Bisect(probe=chosen.name, background=ground.name, outcome="older than the stack", text=text)
        )
        return text
    search = Search(inquiry, chosen, ground, Needs(inquiry, whole, chosen))
    culprits, _ = search.run(whole)
    for culprit in culprits:
        text = "; ".join(filter(None, [confirm(inquiry, culprit), *witnesses(inquiry, culprit)]))
        convict(inquiry, culprit, text)
        put_patch_finding(inquiry, inquiry.patch(culprit.name))
        if text:
            search.record = case.store.put_bisect(replace(search.record, text=f"{search.record.text}; {text}"))
    _decide_hypotheses(inquiry)
    bench.pace.expect_no_more()
    bench.report()
    if not culprits:
        return f"{chosen.name}: {search.record.outcome} between {ground.name} and {whole.name}"
    return f"{chosen.name}: culprit {', '.join(culprit.name for culprit in culprits)}; {search.record.text}"


def _older(inquiry: Inquiry, probe: Probe, ground: Arm) -> str:
    """Why there is no headroom: the ground is bad by the probe's own word. "" where it is not."""
    judgement = inquiry.judge(probe, ground)
    if judgement is None or judgement.state != "bad":
        return ""
    return f"{ground.name} is bad already ({judgement.text}): the fault is older than the stack; look for a fix first"


def confirm(inquiry: Inquiry, culprit: Culprit) -> str:
    """The exponent of the routed scaling factor with the culprit and without it, where a probe measures it."""
    values = []
    for arm in (culprit.parent, culprit.with_arm):
        for name in inquiry.case.target.probes:
            rows = [
                metric.value
                for measurement in (inquiry.measurements(name, arm) if _ran(inquiry, name, arm) else [])
                for metric in measurement.metrics
                if metric.name == "exponent" and metric.tags.get("branch") == "routed"
            ]
            if rows:
                values.append((arm.name, min(rows), max(rows)))
                break
    if len(values) < 2:
        return ""
    said = [f"{low:.2f} to {high:.2f}" if high - low > 0.005 else f"{high:.2f}" for _, low, high in values]
    return f"exponent {said[1]} with it, {said[0]} without"


def witnesses(inquiry: Inquiry, culprit: Culprit) -> list[str]:
    """What every other probe that can judge an arm says of the culprit's arm and of its parent's."""
    others = [probe for probe in inquiry.standing if probe.name != culprit.probe]
    for probe in others:
        inquiry.start(probe.name, culprit.with_arm, culprit.parent)
    said = []
    for probe in others:
        with_, without = (inquiry.judge(probe, arm) for arm in (culprit.with_arm, culprit.parent))
        if with_ is None or without is None:
            said.append(f"{probe.name} cannot tell")
            continue
        notices = "does not notice it" if with_.state == without.state else "notices it"
        said.append(
            f"{probe.name} {notices}: {with_.state} with it ({with_.estimate.text}), "
            f"{without.state} without ({without.estimate.text})"
        )
    return said


def _decide_hypotheses(inquiry: Inquiry) -> None:
    """Decide what the runs on record decide; a bisect runs nothing for a hypothesis."""
    store, measured = inquiry.case.store, measurements_for(inquiry)

    def on_record(probe: str, arm_name: str) -> Sequence[Measurement]:
        arm = parse_arm(arm_name, [patch.name for patch in store.patches()])
        known = FIX not in arm.plus or bool(inquiry.bench.fix)
        return measured(probe, arm_name) if known and _ran(inquiry, probe, arm) else []

    decide_hypotheses(store, inquiry.case.target, on_record)
    put_hypothesis_findings(inquiry)


def _ran(inquiry: Inquiry, probe: str, arm: Arm) -> bool:
    if not inquiry.bench.applies(arm):
        return False
    return any(run.tree == inquiry.bench.assemble(arm).tree for run in inquiry.case.store.runs(probe=probe))
