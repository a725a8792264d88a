"""The names of arms: `base`, `full`, `base+C`, `full-P`, `full+fix`, `full+fix-P`, several names joined by commas.

Contract: an arm is a root (`base` or the full stack), what is added to it and what is taken away; its name says all
three, and a name parses back to the same arm. `fix` stands for the candidate that was chosen as the fix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from store.errors import UsageError

FIX = "fix"


@dataclass(frozen=True, slots=True)
class Arm:
    root: Literal["base", "full"]
    plus: tuple[str, ...] = ()
    minus: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        plus = "+" + ",".join(self.plus) if self.plus else ""
        minus = "-" + ",".join(self.minus) if self.minus else ""
        return f"{self.root}{plus}{minus}"

    def with_(self, *names: str) -> Arm:
        return Arm(self.root, (*self.plus, *(name for name in names if name not in self.plus)), self.minus)

    def without(self, *names: str) -> Arm:
        return Arm(self.root, self.plus, (*self.minus, *(name for name in names if name not in self.minus)))

    def patches(self, stack: Sequence[str], fix: str = "") -> tuple[str, ...]:
        """The names to apply, in order of application: what is left of the stack, then what is added."""
        kept = () if self.root == "base" else tuple(name for name in stack if name not in self.minus)
        return kept + tuple(fix if name == FIX else name for name in self.plus)


BASE = Arm("base")
FULL = Arm("full")


def parse_arm(name: str, known: Iterable[str]) -> Arm:
    """Read an arm's name. Patch names contain hyphens, so the known names decide where one ends.

    Raises:
        UsageError: the name is no arm of this case.
    """
    known = {*known, FIX}
    for root in ("base", "full"):
        rest = name.removeprefix(root)
        if rest == name:
            continue
        plus, rest = _names(rest, "+", known)
        minus, rest = _names(rest, "-", known)
        if not rest:
            return Arm("base" if root == "base" else "full", plus, minus)
    raise UsageError(
        f"`{name}` is no arm of this case",
        hint="write base, full, base+C, full+C, full-P or full+fix-P with names from `livepath patch list`",
    )


def _names(text: str, sign: str, known: set[str]) -> tuple[tuple[str, ...], str]:
    """The known names behind a sign, joined by commas, and what is left of the text."""
    names: list[str] = []
    rest = text
    while rest.startswith("," if names else sign):
        match = max((name for name in known if rest.startswith(name, 1)), key=len, default="")
        if not match:
            return (), text
        names.append(match)
        rest = rest[1 + len(match) :]
    return tuple(names), rest
