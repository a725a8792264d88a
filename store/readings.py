"""Lines somebody looked at, and what runs proved about them."""

from __future__ import annotations

from store.db import Database
from store.models import Reading, ReadingLiveness
from store.table import RowId, add, get, put, select


def add_reading(db: Database, reading: Reading) -> Reading:
    """Add a reading; the same lines of the same commit on the same host are one reading."""
    return add(db, reading, keys=["host", "path", "start", "end", "rev"])


def readings(db: Database) -> list[Reading]:
    """All readings, oldest first."""
    return select(db, Reading)


def reading(db: Database, id: RowId) -> Reading:
    """One reading."""
    return get(db, Reading, id)


def put_reading_liveness(db: Database, liveness: ReadingLiveness) -> ReadingLiveness:
    """Write what one run proved about a reading, in the place of what that run was known to prove."""
    return put(db, liveness, keys=["reading_id", "run_id"])


def reading_liveness(db: Database, reading_id: RowId) -> list[ReadingLiveness]:
    """What every run proved about a reading, oldest first."""
    return select(db, ReadingLiveness, reading_id=reading_id)
