"""Which patches of the stack make it worse: bisected in prefixes, bracketed with fresh items, until none is left.

Contract: the ground (base, or base + fix) is not worse and the whole is. The first prefix of the stack that is worse
names its last patch. A prefix that cannot be tested is never "bad": its neighbour is tried; patches whose prefixes
cannot be tested just before a culprit's share its verdict. A culprit counts when it and its parent, run again on fresh
items, differ the same way and lines of it ran; else the difference is void. Then it is taken out with what needs it,
and the search begins again on what is left. Every step is in the store as it falls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lab.arms import Arm
from lab.inquiry import Inquiry
from lab.needs import Needs
from lab.target import Probe
from store.models import Bisect, Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    name: str
    probe: str
    with_arm: Arm
    parent: Arm
    comparison: Comparison  # the bracket
    steps: tuple[str, ...]
    untested: tuple[str, ...] = ()  # patches between the parent and the culprit: it may be one of them


class Search:
    """One probe's search between a ground and a whole."""

    def __init__(self, inquiry: Inquiry, probe: Probe, ground: Arm, needs: Needs) -> None:
        self._inquiry = inquiry
        self._probe = probe
        self._ground = ground
        self._needs = needs
        self.record = inquiry.case.store.put_bisect(Bisect(probe=probe.name, background=ground.name))

    def run(self, whole: Arm) -> tuple[list[Culprit], Arm]:
        """Search until the whole without the culprits is no longer worse; returns them and what is left."""
        culprits: list[Culprit] = []
        while self._compare(whole).outcome == "worse":
            found = self._first_bad(whole)
            if found is None:
                break
            culprits.append(found)
            rest = whole.without(*self._needs.closure(found.name), *found.untested)
            if not self._testable(rest):
                break  # what is left cannot be searched
            whole = rest
        self._close(culprits)
        return culprits, whole

    def _compare(self, arm: Arm) -> Comparison:
        """Hold an arm against the ground; an undecided one gets one more seed on both."""
        comparison = self._inquiry.compare(self._probe, self._ground.name, self._ground, arm)
        if comparison.outcome == "undecided" and not comparison.deterministic:
            self._inquiry.more(self._probe.name, self._ground, arm)
            comparison = self._inquiry.compare(self._probe, self._ground.name, self._ground, arm)
        return comparison

    def _first_bad(self, whole: Arm) -> Culprit | None:
        names = [name for name in self._inquiry.bench.stack_names if name not in whole.minus]

        def prefix(length: int) -> Arm:
            return whole.without(*names[length:])

        tried: list[str] = []
        low, high = 0, len(names)
        while high - low > 1:
            # The middle first, then its neighbours: what cannot be tested is stepped over.
            for middle in sorted(range(low + 1, high), key=lambda length: abs(length - (low + high) // 2)):
                outcome = self._try(prefix(middle), names[middle - 1])
                tried.append(f"{names[middle - 1]}: {outcome.replace('_', ' ')}")
                if outcome != "cannot_be_tested":
                    low, high = (low, middle) if outcome == "worse" else (middle, high)
                    break
            else:
                break  # nothing between the two can be tested: the culprit is among those that lie between
        if not names:
            return None
        found = self._bracket(names[high - 1], prefix(high), prefix(low), tuple(tried))
        return replace(found, untested=tuple(names[low : high - 1])) if found else None

    def _try(self, arm: Arm, last: str) -> str:
        if not self._testable(arm):
            self._step(arm, last, "cannot_be_tested", None)
            return "cannot_be_tested"
        comparison = self._compare(arm)
        self._step(arm, last, comparison.outcome, comparison)
        return comparison.outcome

    def _testable(self, arm: Arm) -> bool:
        return self._inquiry.bench.applies(arm) and self._inquiry.usable(self._probe.name, arm)

    def _bracket(self, name: str, with_arm: Arm, parent: Arm, tried: tuple[str, ...]) -> Culprit | None:
        self._inquiry.more(self._probe.name, with_arm, parent)
        comparison = self._inquiry.compare(self._probe, parent.name, parent, with_arm)
        self._step(with_arm, name, f"bracket {comparison.outcome}", comparison)
        if comparison.outcome != "worse":
            return None
        live = self._inquiry.liveness(self._inquiry.patch(name), self._inquiry.outcome(self._probe.name, with_arm))
        if live.dead:
            # A difference between two arms whose only changed lines never ran is no evidence about those lines.
            self._step(with_arm, name, f"void: {live.why}", None)
            return None
        return Culprit(
            name=name, probe=self._probe.name, with_arm=with_arm, parent=parent, comparison=comparison, steps=tried
        )

    def _step(self, arm: Arm, last: str, outcome: str, comparison: Comparison | None) -> None:
        step: dict[str, Any] = {"arm": arm.name, "last": last, "outcome": outcome}
        if comparison is not None:
            step |= {"difference": comparison.difference, "n": comparison.n, "comparison": comparison.id}
        self._write(replace(self.record, steps=(*self.record.steps, step)))

    def _close(self, culprits: list[Culprit]) -> None:
        if not culprits:
            unfinished = bool(self.record.steps)
            self._write(replace(self.record, outcome="inconclusive" if unfinished else "not reproduced"))
            return
        said = "; ".join(
            f"{each.name}: {each.comparison.metric} {each.comparison.difference:+.3g} (n {each.comparison.n}) "
            f"against {each.parent.name}{_shared(each)}"
            for each in culprits
        )
        # A deterministic difference has no p-value: it was there in every value and again in the bracket.
        confidence = min(1 - (c.comparison.p_value or 0.0) for c in culprits)
        names = tuple(culprit.name for culprit in culprits)
        self._write(replace(self.record, outcome="culprit", culprits=names, text=said, confidence=confidence))

    def _write(self, record: Bisect) -> None:
        self.record = self._inquiry.case.store.put_bisect(record)


def _shared(culprit: Culprit) -> str:
    names = ", ".join(culprit.untested)
    return f"; it may be {names} as well, which cannot be tested without it" if names else ""
