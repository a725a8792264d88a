"""Why a patch is dead on a background: which other patch took its path away, or which fact of the machine.

Contract: first the patch alone on base. If it is live there, the patch of the stack without which it is live again is
what makes it dead, the one that takes least with it first. If it is dead there too, no patch is to blame: the guard
around its lines and the machine's facts say why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.arms import BASE, Arm
from lab.bench import Outcome
from lab.given import machine_reason
from lab.inquiry import Inquiry
from store.models import Patch

if TYPE_CHECKING:
    from lab.suspects import Trial


def why_dead(
    inquiry: Inquiry, trial: Trial, patch: Patch, outcomes: list[Outcome]
) -> tuple[tuple[str, ...], str, tuple[int, ...]]:
    """Returns (given, reason in words, runs that show it). `given` is empty where nothing was found.

    Args:
        inquiry: the investigation.
        trial: the stack on trial.
        patch: the dead patch.
        outcomes: the runs on which it is dead, one per probe.
    """
    probe = min(outcomes, key=lambda outcome: outcome.attempt.wall_s or 0.0).run.probe
    runs: list[int] = []

    def live_on(arm: Arm) -> bool | None:
        """None where the arm cannot be tested."""
        if not inquiry.bench.applies(arm):
            return None
        found = inquiry.outcome(probe, arm)
        if not found.usable:
            return None
        runs.append(found.run_id)
        return inquiry.liveness(patch, found).acting_executed > 0

    alone = live_on(BASE.with_(*trial.needs.of.get(patch.name, ()), patch.name))
    if alone is not False:
        others = [name for name in inquiry.bench.stack_names if name != patch.name and name not in trial.whole.minus]
        # Earlier patches that nothing else needs come first: taking them out changes least.
        closures = {name: trial.needs.textual_closure(name) for name in others}
        for name in sorted(others, key=lambda name: (len(closures[name]), others.index(name))):
            if patch.name in closures[name]:
                continue
            if live_on(trial.whole.without(*closures[name])):
                return (name,), f"it is live again without {name}", tuple(runs)
    # A probe that came as far as a guard the machine decides says more than one that turned off before it.
    facts = set(inquiry.machine.get("given") or [])
    first: tuple[tuple[str, ...], str] | None = None
    for outcome in outcomes:
        found = machine_reason(inquiry.case.git, outcome.run.tree, inquiry.liveness(patch, outcome), inquiry.machine)
        first = first or found
        if facts & set(found[0]):
            return *found, tuple(runs)
    assert first is not None
    return *first, tuple(runs)
