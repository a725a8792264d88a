"""Hypotheses decide themselves where they carry a predicate: `probe.metric on arm OP number`.

Contract: supported when the whole interval of what was measured satisfies the predicate, refuted when the whole
interval does not, else still open. Only runs that started after the hypothesis was written count; older ones are
exploratory and decide nothing, which the reason says. A state that a person set stays. Free text is never decided
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.judge import assess
from lab.metric import Measurement
from lab.target import Probe, Target
from store.errors import LivepathError
from store.models import Hypothesis, HypothesisState, Predicate
from store.store import Store

LAB = "lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    state: HypothesisState
    reason: str
    evidence: tuple[dict[str, Any], ...] = ()


def predicate_text(predicate: Predicate) -> str:
    """The predicate as a person writes it."""
    return f"{predicate.probe}.{predicate.metric} on {predicate.arm} {predicate.operator} {predicate.number:g}"


def decide(
    hypothesis: Hypothesis,
    predicate: Predicate,
    probe: Probe,
    measurements: Sequence[Measurement],
    *,
    alpha: float = 0.05,
) -> Decision:
    """What the runs of the predicate's arm say.

    Raises:
        RunError: the runs reported nothing of the predicate's metric.
        UsageError: the predicate's metric is no expression.
    """
    if not measurements:
        return Decision(state="open", reason=f"`{predicate.probe}` has no run that counts on `{predicate.arm}`")
    fresh = [m for m in measurements if m.attempt.started_utc >= hypothesis.created_utc]
    estimate = assess(probe, predicate.metric, predicate.operator, predicate.number, fresh or measurements, alpha=alpha)
    evidence = tuple({"kind": "run", "id": m.run.id} for m in fresh or measurements)
    says = f"{estimate.text} on {predicate.arm}, predicted {predicate.operator} {predicate.number:g}"
    if not fresh:
        reason = f"exploratory, written after the run it would rest on: {says}"
        return Decision(state="open", reason=reason, evidence=evidence)
    if estimate.holds is None:
        return Decision(state="open", reason=f"{says}: the interval straddles the number", evidence=evidence)
    return Decision(state="supported" if estimate.holds else "refuted", reason=says, evidence=evidence)


def decide_hypotheses(
    store: Store, target: Target, measurements: Callable[[str, str], Sequence[Measurement]], *, alpha: float = 0.05
) -> list[Hypothesis]:
    """Decide every hypothesis that has a predicate and that no person has decided; returns those that changed.

    Args:
        store: the case.
        target: names the probes.
        measurements: gives what is on record, or what a run brings, for a probe and an arm's name.
        alpha: error of each side of an interval.
    """
    changed: list[Hypothesis] = []
    for hypothesis in store.hypotheses():
        if hypothesis.predicate is None or hypothesis.id is None or hypothesis.by not in ("", LAB):
            continue
        decision = _decide(hypothesis, hypothesis.predicate, target, measurements, alpha)
        wanted = replace(hypothesis, state=decision.state, by=LAB, reason=decision.reason, evidence=decision.evidence)
        if wanted != hypothesis:
            changed.append(
                store.set_hypothesis(
                    hypothesis.id, state=wanted.state, by=LAB, reason=wanted.reason, evidence=wanted.evidence
                )
            )
    return changed


def _decide(
    hypothesis: Hypothesis,
    predicate: Predicate,
    target: Target,
    measurements: Callable[[str, str], Sequence[Measurement]],
    alpha: float,
) -> Decision:
    try:
        probe = target.probe(predicate.probe)
        return decide(hypothesis, predicate, probe, measurements(predicate.probe, predicate.arm), alpha=alpha)
    except LivepathError as error:
        return Decision(state="open", reason=str(error))
