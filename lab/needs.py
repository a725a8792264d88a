"""Which patches of the stack need which others.

Contract: P needs Q when base+P does not apply, or cannot be tested, and base+Q+P can. Found from the removal side,
which costs least: taking Q out of a background takes out every patch that then no longer applies or makes the arm
crash; each need found by a crash is confirmed on base.
"""

from __future__ import annotations

from lab.arms import BASE, Arm
from lab.inquiry import Inquiry
from lab.target import Probe


class Needs:
    """Dependencies inside the stack, found as they are asked for."""

    def __init__(self, inquiry: Inquiry, ground: Arm, probe: Probe) -> None:
        self._inquiry = inquiry
        self._ground = ground
        self._probe = probe  # the probe that tells whether an arm can be tested: the cheapest will do
        self._closures: dict[str, tuple[str, ...]] = {}
        self.of: dict[str, tuple[str, ...]] = {}  # P -> the patches it needs

    def closure(self, name: str) -> tuple[str, ...]:
        """The patch and every patch that needs it, in stack order: what goes when the patch goes."""
        if name not in self._closures:
            self._closures[name] = self._find(name)
        return self._closures[name]

    def removal(self, name: str) -> Arm:
        """The background without the patch and without what needs it."""
        return self._ground.without(*self.closure(name))

    def textual_closure(self, name: str) -> tuple[str, ...]:
        """The patch and every later patch that does not apply without it; costs no run."""
        stack = self._stack()
        gone = [name]
        for number, other in enumerate(stack[stack.index(name) + 1 :], start=stack.index(name) + 2):
            if not self._inquiry.bench.applies(self._ground.without(*gone, *stack[number:])):
                gone.append(other)
        return tuple(gone)

    def _stack(self) -> list[str]:
        return [other for other in self._inquiry.bench.stack_names if other not in self._ground.minus]

    def _find(self, name: str) -> tuple[str, ...]:
        stack = self._stack()
        later = stack[stack.index(name) + 1 :]
        gone = list(self.textual_closure(name))
        for other in gone[1:]:
            self._note(other, name)
        if self._usable(gone):
            return tuple(gone)
        for other in later:
            if other not in gone and self._usable([*gone, other]):
                gone.append(other)
                if self._crashes_alone(other, name):
                    self._note(other, name)
                break
        return tuple(sorted(gone, key=stack.index))

    def _usable(self, gone: list[str]) -> bool:
        arm = self._ground.without(*gone)
        return self._inquiry.bench.applies(arm) and self._inquiry.usable(self._probe.name, arm)

    def _crashes_alone(self, name: str, needed: str) -> bool:
        alone, together = BASE.with_(name), BASE.with_(needed, name)
        bench = self._inquiry.bench
        if not bench.applies(together):
            return False
        self._inquiry.start(self._probe.name, *(arm for arm in (alone, together) if bench.applies(arm)))
        fails = not bench.applies(alone) or not self._inquiry.usable(self._probe.name, alone)
        return fails and self._inquiry.usable(self._probe.name, together)

    def _note(self, name: str, needed: str) -> None:
        self.of[name] = (*self.of.get(name, ()), needed)
