"""`livepath bisect start`: names the patch of the stack that makes one probe worse.

Contract: endpoints first, on the background that has headroom (base and full, both with the fix where a fix is on
record). The search itself is `lab/culprits.py`. A crash or a missing patch is never "bad". A culprit gets its verdict
and a finding with its diff; where the target has a scaling probe, the exponent with and without it is the confirmation.
"""

from __future__ import annotations

from dataclasses import replace

from lab.arms import BASE, FIX, FULL, Arm
from lab.bench import Bench
from lab.case import Case
from lab.culprits import Culprit, Search
from lab.findings import put_patch_finding
from lab.inquiry import Inquiry
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
        text = confirm(inquiry, culprit)
        convict(inquiry, culprit, text)
        put_patch_finding(inquiry, inquiry.patch(culprit.name))
        if text:
            case.store.put_bisect(replace(search.record, text=f"{search.record.text}; {text}"))
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


def _ran(inquiry: Inquiry, probe: str, arm: Arm) -> bool:
    return any(run.tree == inquiry.bench.assemble(arm).tree for run in inquiry.case.store.runs(probe=probe))
