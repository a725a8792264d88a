"""What a report does not show, in sentences: blind spots, missing sight, runs that were not made, questions left open.

Contract: every sentence follows from the record; nothing is left out because it is embarrassing. The order is fixed:
what weakens the verdicts first, then what was not done, then what nobody answered.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from lab.findings import summary_of
from store.models import Attempt, Patch, Run
from store.store import Store


def not_verified(store: Store, freshness: Mapping[int, str]) -> list[str]:
    """All sentences, without repeats."""
    probes = _probes(store.case().target_toml)
    attempts = [(run, attempt) for run in store.runs() for attempt in store.attempts(run.id or 0)]
    sentences = [
        *_patches(store, probes),
        *_blind(attempts),
        *_runs(attempts, probes),
        *_machine(store.case().machine),
        *_open_ends(store),
        *_readings(store, freshness),
        *_findings(store),
    ]
    return list(dict.fromkeys(sentences))


def _patches(store: Store, probes: Mapping[str, Any]) -> list[str]:
    sights = store.meta("sight") or []
    seen = {(row["probe"], row["kind"]) for row in sights if row["seen"]}
    found = [
        f"`{row['probe']}` did not see the planted fault `{row['control']}` ({row['kind']}): {row['text']}."
        for row in sights
        if not row["seen"]
    ]
    planted = {kind for probe in probes.values() for kind in probe.get("controls", {})}
    stack = store.patches("stack")
    for patch in (*stack, *store.patches("candidate")):
        verdicts = store.verdicts(patch=patch.name)
        if not verdicts:
            found.append(f"`{patch.name}` has no verdict.")
            continue
        worst = summary_of(verdicts)
        if worst.verdict in ("inconclusive", "cannot_be_tested"):
            found.append(f"`{patch.name}` is not decided: {worst.reason}.")
        if worst.verdict == "exonerated":
            by = {verdict.probe for verdict in verdicts if verdict.verdict == "exonerated"}
            found += _uncovered(patch, by, seen, planted)
    if len(stack) > 1:
        found.append(
            "Interactions were tested by the whole stack at once and by taking out one group at a time; "
            "no other subset ran."
        )
    return found


def _uncovered(patch: Patch, by: set[str], seen: set[tuple[str, str]], planted: set[str]) -> list[str]:
    """The kinds of fault a cleared patch is suspected of and no probe that cleared it was proved to see."""
    found = []
    for kind in patch.suspected:
        if kind not in planted:
            found.append(f"No probe has a planted fault of kind {kind}: `{patch.name}` is not cleared of it.")
        elif not any((probe, kind) in seen for probe in by):
            found.append(f"No probe that cleared `{patch.name}` was proved to see a fault of kind {kind}.")
    return found


def _blind(attempts: list[tuple[Run, Attempt]]) -> list[str]:
    spots: dict[str, int] = {}
    for _, attempt in attempts:
        for spot in attempt.blind:
            spots[spot] = spots.get(spot, 0) + 1
    return [
        f"The line recorder was blind in {count} of {len(attempts)} attempts: {spot}." for spot, count in spots.items()
    ]


def _runs(attempts: list[tuple[Run, Attempt]], probes: Mapping[str, Any]) -> list[str]:
    found = []
    ran = {run.probe for run, attempt in attempts if attempt.status in ("ok", "good", "bad")}
    found += [f"The probe `{name}` did not run." for name in probes if name not in ran]
    for run, attempt in attempts:
        if attempt.unreadable_events:
            found.append(
                f"{attempt.unreadable_events} event lines of `{run.probe}` on `{run.arm}` "
                f"could not be read (run {run.id})."
            )
    return found


def _machine(machine: Mapping[str, Any]) -> list[str]:
    given = machine.get("given") or []
    return [f"This machine has {fact}: what runs only there was not executed." for fact in given]


def _open_ends(store: Store) -> list[str]:
    floor = store.meta("noise_floor") or {}
    found = [f"The measure is not deterministic: {floor['text']}."] if floor.get("moved") else []
    found += [f"Open question: {q.text}" for q in store.questions() if q.state == "open"]
    for hypothesis in store.hypotheses():
        if hypothesis.state == "open":
            found.append(
                f"Open hypothesis: {hypothesis.text}" + (f" ({hypothesis.reason})" if hypothesis.reason else "")
            )
        elif hypothesis.predicate is None and hypothesis.state in ("supported", "refuted"):
            found.append(f"Judged by {hypothesis.by or 'a person'}, not by a predicate: {hypothesis.text}")
    for assumption in store.assumptions():
        if assumption.state != "verified":
            found.append(f"{assumption.state.capitalize()} assumption: {assumption.text}")
    return found


def _readings(store: Store, freshness: Mapping[int, str]) -> list[str]:
    found = []
    for reading in store.readings():
        where = f"`{reading.path}:{reading.start}-{reading.end}`"
        known = store.reading_liveness(reading.id or 0)
        if freshness.get(reading.id or 0) in ("changed", "gone"):
            found.append(f"The reading {where} is out of date: its lines are {freshness[reading.id or 0]}.")
        if not known:
            found.append(f"No run says whether the reading {where} is live.")
        elif known[-1].word in ("not_seen_blind", "unknown"):
            found.append(f"Whether the reading {where} is live is not known: {known[-1].reason}.")
    return found


def _findings(store: Store) -> list[str]:
    return [
        f"Finding {finding.id} rests on something that no longer holds: {finding.flagged}."
        for finding in store.findings()
        if finding.flagged and finding.withdrawn_utc is None
    ]


def _probes(toml: str) -> dict[str, Any]:
    try:
        return dict(tomllib.loads(toml).get("probe", {}))
    except tomllib.TOMLDecodeError:
        return {}
