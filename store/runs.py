"""Runs and their attempts: what was executed, what it measured, what it said of itself and which lines ran.

Contract: a run is found by its key and is never deleted; each execution of it is an attempt. An attempt's whole
record is written in one transaction, so a record is there completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from store.clock import utc_now
from store.db import Database
from store.journal import log
from store.models import Attempt, Claim, ExecutedFile, Item, Metric, Run
from store.table import RowId, change, find, get, insert, replace_rows, select

MEASURED = ("ok", "good", "bad")


def put_run(db: Database, run: Run) -> Run:
    """Insert the run, or find the one with its key; only the arm's name may differ, and the new name is kept."""
    with db.transaction():
        found = find(db, Run, key=run.key)
        if found is None or found.id is None:
            return insert(db, run)
        return change(db, Run, found.id, arm=run.arm)


def runs(db: Database, *, probe: str | None = None, arm: str | None = None) -> list[Run]:
    """All runs, oldest first; of one probe, of one arm."""
    wanted = {"probe": probe, "arm": arm}
    return select(db, Run, **{name: value for name, value in wanted.items() if value is not None})


def run(db: Database, id: RowId) -> Run:
    """One run."""
    return get(db, Run, id)


def run_by_key(db: Database, key: str) -> Run | None:
    """The run with this key, if it was ever made."""
    return find(db, Run, key=key)


def add_attempt(db: Database, attempt: Attempt) -> Attempt:
    """Add an attempt; number 0 stands for the next free number of its run, no start for now."""
    with db.transaction():
        if attempt.number == 0:
            sql = "SELECT coalesce(max(number), 0) + 1 AS next FROM attempt WHERE run_id = ?"
            attempt = replace(attempt, number=db.query(sql, [attempt.run_id])[0]["next"])
        return insert(db, replace(attempt, started_utc=attempt.started_utc or utc_now()))


def update_attempt(db: Database, attempt: Attempt) -> Attempt:
    """Write every field of an attempt that is in the case already."""
    assert attempt.id is not None, "an attempt is updated after it was added"
    fields = [name for name in Attempt.__slots__ if name != "id"]
    return change(db, Attempt, attempt.id, **{name: getattr(attempt, name) for name in fields})


def attempts(db: Database, run_id: RowId) -> list[Attempt]:
    """The attempts of a run, in order."""
    return select(db, Attempt, order="number", run_id=run_id)


def last_good_attempt(db: Database, run_id: RowId) -> Attempt | None:
    """The newest attempt of a run that measured something, good or bad."""
    measured = [attempt for attempt in attempts(db, run_id) if attempt.status in MEASURED]
    return measured[-1] if measured else None


def record_attempt(
    db: Database,
    attempt: Attempt,
    *,
    items: Iterable[Item] = (),
    metrics: Iterable[Metric] = (),
    claims: Iterable[Claim] = (),
    executed: Iterable[ExecutedFile] = (),
) -> Attempt:
    """Add or update an attempt together with all it left behind, in one transaction.

    The rows take the attempt's id, whatever `attempt_id` they carry, and replace those an interrupted record left.
    """
    with db.transaction():
        stored = add_attempt(db, attempt) if attempt.id is None else update_attempt(db, attempt)
        assert stored.id is not None
        counts = {
            "items": replace_rows(db, Item, items, attempt_id=stored.id),
            "metrics": replace_rows(db, Metric, metrics, attempt_id=stored.id),
            "claims": replace_rows(db, Claim, claims, attempt_id=stored.id),
            "executed": replace_rows(db, ExecutedFile, executed, attempt_id=stored.id),
        }
        log(db, "record", "attempt", stored.id, after=counts)
    return stored


def items(db: Database, attempt_id: RowId) -> list[Item]:
    """What an attempt measured, item by item, in the order it was reported."""
    return select(db, Item, attempt_id=attempt_id)


def metrics(db: Database, attempt_id: RowId) -> list[Metric]:
    """The metrics an attempt reported."""
    return select(db, Metric, attempt_id=attempt_id)


def claims(db: Database, attempt_id: RowId, *, event: str | None = None) -> list[Claim]:
    """What a target said of itself in an attempt; of one kind of event."""
    values = {"attempt_id": attempt_id} if event is None else {"attempt_id": attempt_id, "event": event}
    return select(db, Claim, **values)


def executed(db: Database, attempt_id: RowId) -> dict[str, ExecutedFile]:
    """What the recorder saw in an attempt, by path."""
    return {file.path: file for file in select(db, ExecutedFile, order="path", attempt_id=attempt_id)}
