"""The exponent of a constant: n = d log|output| / d log(constant), per layer, phase and branch.

Contract: read from metric rows named `exponent` with tags layer, phase, branch and perhaps residual. 1 is right, 2
doubled, 0 missing, -1 undone; on the shared branch, which the routed factor must not touch, 0 is right. An exponent
far from a whole number, or with a large residual, is no power law and is said to be none. The target's own `constant`
events are claims: the sites they name add up to a power as well, and where that power is not the exponent measured,
somebody multiplies without saying so, or says so without multiplying.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab.metric import Measurement, measure
from store.models import Claim, Finding, Run
from store.store import Store

METRIC = "exponent"
TOLERANCE = 0.05
MAX_RESIDUAL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponent:
    arm: str
    layer: int | str | None
    phase: str
    branch: str  # "routed" or "shared"
    value: float
    residual: float | None = None

    @property
    def expected(self) -> int:
        return 0 if self.branch == "shared" else 1

    @property
    def right(self) -> bool:
        return math.isfinite(self.value) and abs(self.value - self.expected) <= TOLERANCE and not self._crooked

    @property
    def reading(self) -> str:
        """The exponent in words."""
        if not math.isfinite(self.value):
            return "not a number"
        whole = round(self.value)
        if self._crooked or abs(self.value - whole) > TOLERANCE:
            return "no power law"
        if self.right:
            return "right"
        if whole == 0:
            return "missing"
        if whole == -1:
            return "undone"
        times = {1: "once", 2: "twice"}.get(whole, f"{whole} times")
        if self.branch == "shared":
            return f"applied {times} where it does not belong"
        return "doubled" if whole == 2 else f"applied {times}"

    @property
    def _crooked(self) -> bool:
        return self.residual is not None and not abs(self.residual) <= MAX_RESIDUAL

    def as_row(self) -> dict[str, Any]:
        return {**asdict(self), "reading": self.reading}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """What the events claim against what was measured."""

    exponent: Exponent
    claimed: int
    sites: tuple[str, ...]

    @property
    def text(self) -> str:
        e = self.exponent
        claims = f"{', '.join(self.sites)} (power {self.claimed})" if self.sites else "no multiplication"
        return (
            f"layer {e.layer}, {e.phase}, {e.branch}: the events claim {claims}, "
            f"the measured exponent is {e.value:.3f} ({e.reading})"
        )


def exponents(measurements: Iterable[Measurement]) -> list[Exponent]:
    """All exponents that attempts reported, in the order of arm, layer, phase, branch."""
    found = [
        Exponent(
            arm=measurement.run.arm,
            layer=row.tags.get("layer"),
            phase=str(row.tags.get("phase", "")),
            branch=str(row.tags.get("branch", "routed")),
            value=row.value,
            residual=_float(row.tags.get("residual")),
        )
        for measurement in measurements
        for row in measurement.metrics
        if row.name == METRIC
    ]
    return sorted(found, key=lambda e: (e.arm, _layer(e.layer), e.phase, e.branch))


def cross_check(found: Sequence[Exponent], claims: Iterable[Claim]) -> list[Disagreement]:
    """Where the power that `constant` events add up to is not the exponent measured.

    Every distinct site counts once per layer, phase and branch; a site that multiplies by the inverse counts -1. A
    target that sends no `constant` event at all claims nothing, and cannot disagree.
    """
    sites: dict[tuple[str, str, str], dict[str, float]] = {}
    for claim in claims:
        body = claim.body
        value = _float(body.get("value"))
        if claim.event == "constant" and value is not None and value > 0:
            place = (str(body.get("layer")), str(body.get("phase", "")), str(body.get("branch", "routed")))
            sites.setdefault(place, {}).setdefault(str(body.get("site", "?")), value)
    if not sites:
        return []
    reference = max((value for place in sites.values() for value in place.values()), key=lambda v: abs(math.log(v)))
    unit = abs(math.log(reference))
    disagreements = []
    for exponent in found:
        named = sites.get((str(exponent.layer), exponent.phase, exponent.branch), {})
        claimed = sum(round(math.log(value) / unit) for value in named.values()) if unit else 0
        if math.isfinite(exponent.value) and round(exponent.value) != claimed:
            disagreements.append(Disagreement(exponent=exponent, claimed=claimed, sites=tuple(sorted(named))))
    return disagreements


def disagreement_findings(store: Store) -> list[Finding]:
    """One finding per disagreement between claims and exponents, with every arm that shows it.

    Arms with a planted fault are left out: there the disagreement is what was planted.
    """
    planted = {patch.name for patch in store.patches("control")}
    runs_of: dict[tuple[str, ...], list[Run]] = {}
    texts: dict[tuple[str, ...], str] = {}
    for run in store.runs():
        found = None if planted & set(run.patches) else measure(store, run)
        if found is None or found.attempt.id is None:
            continue
        for one in cross_check(exponents([found]), store.claims(found.attempt.id, event="constant")):
            e = one.exponent
            key = (str(e.layer), e.phase, e.branch, str(one.claimed), e.reading)
            runs_of.setdefault(key, []).append(run)
            texts.setdefault(key, one.text)
    return [
        Finding(
            key=f"exponent:{'/'.join(key)}",
            claim=f"Claim and measurement disagree on {', '.join(dict.fromkeys(r.arm for r in runs))}: {texts[key]}",
            verdict=None,
            patch="",
            patch_id="",
            diff="",
            evidence=tuple({"kind": "run", "id": run.id} for run in runs),
        )
        for key, runs in runs_of.items()
    ]


def _layer(layer: int | str | None) -> tuple[int, str]:
    text = str(layer)
    return (int(text), text) if text.lstrip("-").isdigit() else (1 << 30, text)


def _float(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
