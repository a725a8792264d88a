"""What the lab concludes: comparisons, verdicts, findings."""

from __future__ import annotations

from store.clock import utc_now
from store.db import Database
from store.errors import StoreError
from store.models import Bisect, Comparison, Finding, PatchVerdict
from store.rows import kinds
from store.table import RowId, add, change, get, insert, put, select


def add_comparison(db: Database, comparison: Comparison) -> Comparison:
    """Add a comparison; one that says the same of the same two runs is the one already there."""
    return add(db, comparison, keys=[name for name in kinds(Comparison) if name != "id"])


def comparisons(
    db: Database, *, patch: str | None = None, probe: str | None = None, background: str | None = None
) -> list[Comparison]:
    """All comparisons, oldest first; those a patch's verdicts rest on, of one probe, on one background."""
    wanted = {"probe": probe, "background": background}
    found = select(db, Comparison, **{name: value for name, value in wanted.items() if value is not None})
    if patch is None:
        return found
    cited = {verdict.comparison_id for verdict in verdicts(db, patch)}
    return [comparison for comparison in found if comparison.id in cited]


def comparison(db: Database, id: RowId) -> Comparison:
    """One comparison."""
    return get(db, Comparison, id)


def put_verdict(db: Database, verdict: PatchVerdict) -> PatchVerdict:
    """Write the verdict of one patch by one probe on one background, in the place of an earlier one."""
    return put(db, verdict, keys=["patch", "probe", "background"])


def verdicts(db: Database, patch: str | None = None) -> list[PatchVerdict]:
    """All verdicts, oldest first; or those on one patch."""
    return select(db, PatchVerdict, **({} if patch is None else {"patch": patch}))


def put_bisect(db: Database, bisect: Bisect) -> Bisect:
    """Write how far the search of one probe on one background is, in the place of what it said before."""
    return put(db, bisect, keys=["probe", "background"])


def bisects(db: Database) -> list[Bisect]:
    """All searches, oldest first."""
    return select(db, Bisect)


def put_finding(db: Database, finding: Finding) -> Finding:
    """Add a finding, or bring the one with its key up to date; a withdrawn finding stays withdrawn."""
    if not finding.key:
        return insert(db, finding)
    return put(db, finding, keys=["key"], keep=["withdrawn_utc", "withdrawn_reason"])


def findings(db: Database, *, include_withdrawn: bool = True) -> list[Finding]:
    """All findings, oldest first."""
    found = select(db, Finding)
    return found if include_withdrawn else [finding for finding in found if finding.withdrawn_utc is None]


def finding(db: Database, id: RowId) -> Finding:
    """One finding."""
    return get(db, Finding, id)


def withdraw_finding(db: Database, id: RowId, reason: str) -> Finding:
    """Take a finding back. It stays in the case, with the reason.

    Raises:
        StoreError: no reason was given, or it is withdrawn already.
    """
    if not reason.strip():
        raise StoreError(f"finding {id} cannot be withdrawn without a reason", hint="say why it no longer holds")
    with db.transaction():
        stored = finding(db, id)
        if stored.withdrawn_utc is not None:
            raise StoreError(f"finding {id} is withdrawn already: {stored.withdrawn_reason}")
        return change(db, Finding, id, withdrawn_utc=utc_now(), withdrawn_reason=reason)


def flag_finding(db: Database, id: RowId, why: str) -> Finding:
    """Say that something a finding rests on no longer holds; an empty `why` takes the flag off."""
    return change(db, Finding, id, flagged=why)
