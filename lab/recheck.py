"""What a finding rests on, looked at again: which findings no longer stand as they were written.

Contract: a finding is flagged when a reading it cites changed or is gone, when a run it cites no longer counts or is
not of the case's trees any more, when its patch is gone or has another diff, or when a finding it cites was withdrawn.
The flag says why, in one line; a flag whose reason has gone is taken off. A withdrawn finding is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from store.models import Finding, Patch, Reading
from store.store import Store

STALE = ("changed", "gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Everything findings can rest on, as it is now."""

    patches: Mapping[str, Patch]
    readings: Mapping[int, Reading]
    freshness: Mapping[int, str]  # reading id -> fresh, moved, changed, gone
    counting_runs: frozenset[int]  # runs with an attempt that counts
    withdrawn: Mapping[int, str]  # finding id -> reason


def why_flagged(finding: Finding, ground: Ground) -> str:
    """Why the finding no longer stands, or ""."""
    reasons = [_patch_changed(finding, ground)]
    reasons += [_evidence_gone(one, ground) for one in finding.evidence]
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def recheck(store: Store, freshness: Mapping[int, str]) -> list[Finding]:
    """Flag every finding that no longer stands, unflag those that do again; returns those that changed."""
    ground = ground_of(store, freshness)
    changed = []
    # A flag is about what is cited, not about other flags, so one pass is enough.
    for finding in store.findings(include_withdrawn=False):
        why = why_flagged(finding, ground)
        if why != finding.flagged and finding.id is not None:
            changed.append(store.flag_finding(finding.id, why))
    return changed


def ground_of(store: Store, freshness: Mapping[int, str]) -> Ground:
    """The ground as the store knows it, with the readings' freshness as somebody has just looked it up."""
    return Ground(
        patches={patch.name: patch for patch in store.patches()},
        readings={reading.id: reading for reading in store.readings() if reading.id is not None},
        freshness=freshness,
        counting_runs=frozenset(run.id for run in store.runs() if run.id and store.last_good_attempt(run.id)),
        withdrawn=_withdrawn(store.findings()),
    )


def _withdrawn(findings: Iterable[Finding]) -> dict[int, str]:
    return {f.id: f.withdrawn_reason for f in findings if f.id is not None and f.withdrawn_utc is not None}


def _patch_changed(finding: Finding, ground: Ground) -> str:
    if not finding.patch_id:
        return ""
    # The patch id is the patch: a new name or commit of the same diff is the same patch.
    if finding.patch_id in {patch.patch_id for patch in ground.patches.values()}:
        return ""
    return f"the diff of `{finding.patch}` changed" if finding.patch in ground.patches else f"`{finding.patch}` is gone"


def _evidence_gone(one: Mapping[str, Any], ground: Ground) -> str:
    kind, id_ = one.get("kind"), one.get("id")
    if not isinstance(id_, int):
        return ""
    match kind:
        case "reading" if id_ not in ground.readings:
            return f"reading {id_} is gone"
        case "reading" if ground.freshness.get(id_) in STALE:
            reading = ground.readings[id_]
            return f"reading {id_} ({reading.path}:{reading.start}-{reading.end}) is {ground.freshness[id_]}"
        case "run" if id_ not in ground.counting_runs:
            return f"run {id_} does not count any more"
        case "finding" if id_ in ground.withdrawn:
            return f"finding {id_} was withdrawn: {ground.withdrawn[id_]}"
    return ""
