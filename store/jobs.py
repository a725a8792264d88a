"""Jobs: work asked for by any face and carried out by one worker process.

Contract: of all workers that claim a job, one wins. A worker proves that it lives by `beat`, which also tells it when
the job is no longer its own. Heartbeats and progress are not journalled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from store.clock import utc_ago, utc_now
from store.db import Database
from store.errors import StoreError
from store.models import Job
from store.rows import from_row
from store.table import RowId, change, get, insert, select


def add_job(db: Database, job: Job) -> Job:
    """Put a job into the queue."""
    return insert(db, job)


def job(db: Database, id: RowId) -> Job:
    """One job, as it stands now."""
    return get(db, Job, id)


def jobs(db: Database) -> list[Job]:
    """All jobs, oldest first."""
    return select(db, Job)


def claim_job(db: Database, id: RowId, pid: int, *, stale_s: float | None = None, from_pid: int | None = None) -> bool:
    """Take a job; True for the one winner.

    A queued job is free; a running one when its worker was silent for `stale_s` or is `from_pid`, known to be dead.
    """
    stale_before = "" if stale_s is None else utc_ago(stale_s)
    return _write(
        db,
        "UPDATE job SET state = 'running', pid = ?, heartbeat_utc = ? WHERE id = ?"
        " AND (state = 'queued' OR (state = 'running' AND (heartbeat_utc < ? OR pid = ?)))",
        [pid, utc_now(), id, stale_before, from_pid],
    )


def beat(db: Database, id: RowId, pid: int | None = None) -> bool:
    """Say that the worker lives. False: the job ended, or is no longer that of `pid`, and this worker must stop."""
    return _write(
        db,
        "UPDATE job SET heartbeat_utc = ? WHERE id = ? AND state = 'running' AND pid = coalesce(?, pid)",
        [utc_now(), id, pid],
    )


def progress(db: Database, id: RowId, done: int, total: int, note: str = "") -> None:
    """Say how far the job is."""
    _write(db, "UPDATE job SET done = ?, total = ?, note = ? WHERE id = ?", [done, total, note, id])


def request_cancel(db: Database, id: RowId) -> Job:
    """Ask for a job to stop; one that no worker has taken yet ends at once.

    Raises:
        StoreError: the job has ended already.
    """
    with db.transaction():
        stored = job(db, id)
        if stored.state == "queued":
            return finish_job(db, id, "cancelled", "cancelled before it started")
        if stored.state != "running":
            raise StoreError(f"job {id} is {stored.state} already")
        return change(db, Job, id, cancel_requested=True)


def cancel_requested(db: Database, id: RowId) -> bool:
    """Whether somebody asked for the job to stop."""
    return job(db, id).cancel_requested


def finish_job(db: Database, id: RowId, state: Literal["done", "failed", "cancelled"], message: str = "") -> Job:
    """Write how a job ended, in one line."""
    return change(db, Job, id, state=state, message=message, ended_utc=utc_now())


def stale_jobs(db: Database, seconds: float) -> list[Job]:
    """Running jobs whose worker has not been heard of for so long."""
    sql = "SELECT * FROM job WHERE state = 'running' AND heartbeat_utc < ? ORDER BY id"
    return [from_row(Job, row) for row in db.query(sql, [utc_ago(seconds)])]


def _write(db: Database, sql: str, parameters: Sequence[str | int | None]) -> bool:
    with db.transaction() as connection:
        return connection.execute(sql, parameters).rowcount == 1
