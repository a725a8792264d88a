"""Sight: which probe sees which kind of planted fault, measured on this target.

Contract: a probe has sight of a kind of fault when it decides "worse" between a background and the same background
with a planted fault of that kind. A probe without sight of the kinds a patch is suspected of can say "no effect
seen", never "exonerated".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lab.arms import Arm
from lab.inquiry import Inquiry
from lab.target import Probe
from store.errors import PatchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a probe made of one planted fault."""

    probe: str
    kind: str
    control: str
    background: str
    seen: bool
    text: str


def sight(inquiry: Inquiry, probe: Probe, kind: str, background: Arm, *, control: str = "") -> Sight:
    """Plant the probe's control of that kind (or `control`) on the background and see whether the probe notices."""
    control = control or control_name(inquiry, probe, kind)
    planted = background.with_(control)
    try:
        outcome = inquiry.outcome(probe.name, planted)
    except PatchError as error:
        seen, text = False, f"{control} does not apply on {background.name}: {error}"
    else:
        if not outcome.usable:
            seen, text = False, f"{control} cannot be tested: {outcome.attempt.reason}"
        elif not inquiry.usable(probe.name, background):
            seen, text = False, f"{background.name} cannot be tested"
        else:
            comparison = inquiry.compare(probe, background.name, background, planted)
            seen = comparison.outcome == "worse"
            text = f"{comparison.metric} {comparison.difference:+.3g} (n {comparison.n})"
    found = Sight(probe=probe.name, kind=kind, control=control, background=background.name, seen=seen, text=text)
    _remember(inquiry, found)
    return found


def control_name(inquiry: Inquiry, probe: Probe, kind: str) -> str:
    """The name of the planted fault of that kind for this probe."""
    path = (inquiry.case.target.folder / probe.controls[kind]).resolve()
    for patch in inquiry.case.store.patches(role="control"):
        if (inquiry.case.target.folder / patch.source).resolve() == path:
            return patch.name
    raise PatchError(f"control `{kind}` of probe `{probe.name}` is not on record: {probe.controls[kind]}")


def kinds_for(probe: Probe, suspected: tuple[str, ...]) -> list[str]:
    """The suspected kinds that the probe has a planted fault for."""
    return [kind for kind in suspected if kind in probe.controls]


def prefetch(inquiry: Inquiry, background: Arm, kinds: set[str]) -> None:
    """Start every control run that will be asked for."""
    for probe in inquiry.case.target.probes.values():
        for kind in sorted(kinds & set(probe.controls)):
            planted = background.with_(control_name(inquiry, probe, kind))
            if inquiry.bench.applies(planted):
                inquiry.start(probe.name, planted)


def _remember(inquiry: Inquiry, found: Sight) -> None:
    """Keep the measured table with the case; a later measurement of the same cell replaces the earlier one."""
    rows = [
        row
        for row in inquiry.case.store.meta("sight") or []
        if (row["probe"], row["kind"], row["control"]) != (found.probe, found.kind, found.control)
    ]
    rows.append(asdict(found))
    inquiry.case.store.set_meta("sight", sorted(rows, key=lambda row: (row["probe"], row["kind"], row["control"])))
