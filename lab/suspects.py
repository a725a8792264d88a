"""The stack on trial: dead patches first, then the joint test, then culprits, then each live patch by itself.

Contract: a patch is judged only on a background with headroom, by probes that a planted fault of a suspected kind
proved able to see. The joint test of the whole stack comes before single ones; if it is equivalent no patch needs
runs of its own to be cleared, and those that are run all the same stand beside it. Every verdict names its probe,
background, control and runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lab.arms import Arm
from lab.culprits import Culprit, Search
from lab.dead import why_dead
from lab.inquiry import Inquiry
from lab.needs import Needs
from lab.sight import Sight, kinds_for, prefetch, sight
from lab.target import Probe
from store.models import Comparison, Patch, Verdict


@dataclass(slots=True)
class Trial:
    """The ground (without the stack), the whole (with it), and what came of the stack between them."""

    ground: Arm
    whole: Arm
    needs: Needs
    dead: set[str] = field(default_factory=set)
    joint: dict[str, Comparison] = field(default_factory=dict)  # by probe
    culprits: list[Culprit] = field(default_factory=list)


def judge_stack(inquiry: Inquiry, ground: Arm, whole: Arm) -> Trial:
    """Give every patch of the stack its verdicts on `whole`, with `ground` as what it is held against."""
    trial = Trial(ground=ground, whole=whole, needs=Needs(inquiry, whole, _quickest(inquiry)))
    probes = list(inquiry.case.target.probes.values())
    for probe in probes:
        inquiry.start(probe.name, whole)
    for probe in inquiry.standing:
        inquiry.start(probe.name, ground)
    patches = inquiry.case.stack
    _find_dead(inquiry, trial, patches, probes)
    live = [patch for patch in patches if patch.name not in trial.dead]
    prefetch(inquiry, whole, {kind for patch in live for kind in patch.suspected})
    _joint(inquiry, trial, probes)
    live = [patch for patch in live if patch.name not in {culprit.name for culprit in trial.culprits}]
    _singles(inquiry, trial, live, probes)
    return trial


def _quickest(inquiry: Inquiry) -> Probe:
    """The probe whose runs so far took least; it answers whether an arm can be tested, and what is live there."""
    store = inquiry.case.store

    def seconds(probe: Probe) -> float:
        spent = [
            attempt.wall_s
            for run in store.runs(probe=probe.name)
            for attempt in store.attempts(run.id or 0)
            if attempt.wall_s
        ]
        return min(spent, default=float("inf"))

    return min(inquiry.case.target.probes.values(), key=seconds)


def _find_dead(inquiry: Inquiry, trial: Trial, patches: list[Patch], probes: list[Probe]) -> None:
    """A patch none of whose acting lines ran in any probe is dead; where it ran in some, it is dead for the others."""
    for patch in patches:
        outcomes = [inquiry.outcome(probe.name, trial.whole) for probe in probes]
        outcomes = [outcome for outcome in outcomes if outcome.usable]
        found = [(outcome, inquiry.liveness(patch, outcome)) for outcome in outcomes]
        if not found or not all(live.dead for _, live in found):
            continue
        trial.dead.add(patch.name)
        given, reason, runs = why_dead(inquiry, trial, patch, outcomes)
        for outcome, live in found:
            inquiry.verdict(
                patch.name,
                "dead",
                live.why if reason in live.why else f"{live.why}; {reason}",
                probe=outcome.run.probe,
                background=trial.whole.name,
                given=given,
                runs=[outcome.run_id, *runs],
            )


def _joint(inquiry: Inquiry, trial: Trial, probes: list[Probe]) -> None:
    """The whole stack at once. Where it is worse, culprits are searched and taken out."""
    for probe in probes:
        if probe not in inquiry.standing or not inquiry.usable(probe.name, trial.ground):
            continue
        if not inquiry.usable(probe.name, trial.whole):
            continue
        comparison = inquiry.compare(probe, trial.ground.name, trial.ground, trial.whole)
        if comparison.outcome == "undecided":
            inquiry.more(probe.name, trial.ground, trial.whole)
            comparison = inquiry.compare(probe, trial.ground.name, trial.ground, trial.whole)
        if comparison.outcome == "worse":
            culprits, trial.whole = Search(inquiry, probe, trial.ground, trial.needs).run(trial.whole)
            trial.culprits += culprits
            for culprit in culprits:
                convict(inquiry, culprit)
            comparison = inquiry.compare(probe, trial.ground.name, trial.ground, trial.whole)
        trial.joint[probe.name] = comparison


def convict(inquiry: Inquiry, culprit: Culprit, more: str = "") -> None:
    """Write the verdict on a culprit down."""
    c = culprit.comparison
    tail = f"; {more}" if more else ""
    inquiry.verdict(
        culprit.name,
        "culprit",
        f"{c.metric} {c.difference:+.3g} (n {c.n}) between {culprit.parent.name} and {culprit.with_arm.name}, "
        f"bracketed on fresh items; steps: {', '.join(culprit.steps) or 'none between'}{tail}",
        probe=culprit.probe,
        background=culprit.parent.name,
        verdict_with=culprit.untested,
        comparison=c,
    )


def _singles(inquiry: Inquiry, trial: Trial, live: list[Patch], probes: list[Probe]) -> None:
    """Each live patch, or those that only go together, on every probe with sight of what it is suspected of."""
    trial.needs = Needs(inquiry, trial.whole, _quickest(inquiry))
    names = [patch.name for patch in live]
    shared: set[str] = set()
    groups: list[tuple[str, ...]] = []
    for name in names:
        if name in shared:
            continue
        group = tuple(other for other in trial.needs.closure(name) if other in names)
        shared.update(group)
        groups.append(group)
    plans = []
    for group in groups:
        suspected = tuple(dict.fromkeys(kind for patch in live if patch.name in group for kind in patch.suspected))
        without = trial.needs.removal(group[0])
        sighted = [(probe, kinds_for(probe, suspected)) for probe in probes]
        sighted = [(probe, kinds) for probe, kinds in sighted if kinds or not probe.controls or not suspected]
        for probe, _ in sighted:
            inquiry.start(probe.name, without)
        plans.append((group, without, sighted))
    for group, without, sighted in plans:
        for probe, kinds in sighted:
            _single(inquiry, trial, group, without, probe, kinds)


def _single(
    inquiry: Inquiry, trial: Trial, group: tuple[str, ...], without: Arm, probe: Probe, kinds: list[str]
) -> None:
    whole, background = trial.whole, trial.whole.name
    outcome = inquiry.outcome(probe.name, whole)
    out = inquiry.outcome(probe.name, without)

    def write(verdict: Verdict, reason: str, *, control: str = "", comparison: Comparison | None = None) -> None:
        for name in group:
            inquiry.verdict(
                name,
                verdict,
                reason,
                probe=probe.name,
                background=background,
                needs=trial.needs.of.get(name, ()),
                verdict_with=group,
                control=control,
                comparison=comparison,
                runs=[out.run_id, outcome.run_id],
            )

    if not outcome.usable or not out.usable:
        bad = outcome if not outcome.usable else out
        write("cannot_be_tested", f"{bad.arm.name} cannot be tested: {bad.attempt.reason}")
        return
    alive = [name for name in group if not inquiry.liveness(inquiry.patch(name), outcome).dead]
    if not alive:
        write("dead", f"no acting line of it ran under {probe.name}")
        return
    comparison = inquiry.compare_bracketed(probe, background, without, whole)
    if comparison.outcome == "undecided" and not comparison.deterministic:
        inquiry.more(probe.name, without, whole)
        comparison = inquiry.compare(probe, background, without, whole)
    by = f"{comparison.metric} {comparison.difference:+.3g} (n {comparison.n})"
    if comparison.outcome == "worse":
        write("culprit", f"worse with it, on fresh items too: {by}", comparison=comparison)
    elif comparison.outcome == "better":
        write("fix", f"better with it: {by}", comparison=comparison)
    elif not _headroom(inquiry, probe, whole):
        write("inconclusive", f"no headroom: {probe.name} is bad on {background} already", comparison=comparison)
    else:
        _clear(inquiry, trial, probe, kinds, comparison, by, write)


def _clear(
    inquiry: Inquiry,
    trial: Trial,
    probe: Probe,
    kinds: list[str],
    comparison: Comparison,
    by: str,
    write: Callable[..., None],
) -> None:
    """Equivalent, alone or jointly: exonerated if a planted fault proves the probe's sight."""
    joint = trial.joint.get(probe.name)
    if comparison.outcome != "equivalent":
        if joint is None or joint.outcome != "equivalent":
            write("inconclusive", f"undecided: {by}; more contexts would decide it", comparison=comparison)
            return
        by = f"{by}; jointly with the whole stack {joint.metric} {joint.difference:+.3g} (n {joint.n})"
    seen: list[Sight] = [sight(inquiry, probe, kind, trial.whole) for kind in kinds]
    proofs = [one for one in seen if one.seen]
    if proofs:
        controls = ", ".join(f"{one.control} ({one.kind})" for one in proofs)
        write("exonerated", f"{by}; sight by {controls}", control=proofs[0].control, comparison=comparison)
    else:
        write("inconclusive", f"no effect seen by {probe.name}: {by}; it has no sight", comparison=comparison)


def _headroom(inquiry: Inquiry, probe: Probe, arm: Arm) -> bool:
    judgement = inquiry.judge(probe, arm)
    return judgement is None or judgement.state != "bad"
