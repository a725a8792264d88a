"""Brings a case file to this version's schema; the steps themselves are in `store.schema`.

Contract: all pending steps run in one immediate transaction when a case is opened. A file that records a step unknown
to this version is newer and is refused, unread.
"""

from __future__ import annotations

from functools import cache

import sqlite_utils

from store.db import Database
from store.errors import StoreError
from store.schema import MIGRATIONS


@cache
def known_steps() -> list[str]:
    """The names of all steps of this version, in order."""
    empty = sqlite_utils.Database(memory=True, execute_plugins=False)
    try:
        return [step.name for step in MIGRATIONS.pending(empty)]
    finally:
        empty.close()


def applied_steps(db: Database) -> list[str]:
    """The names of the steps the file has been through."""
    if not db.query("SELECT 1 FROM sqlite_master WHERE name = '_sqlite_migrations'"):
        return []
    rows = db.query("SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY rowid", ["livepath"])
    return [row["name"] for row in rows]


def migrate(db: Database) -> None:
    """Bring the file to this version's schema; nothing is written when it is there already.

    Raises:
        StoreError: the file was written by a newer Livepath.
    """
    known, applied = known_steps(), applied_steps(db)
    newer = [name for name in applied if name not in known]
    if newer:
        raise StoreError(
            f"{db.path} was written by a newer Livepath: its schema is at {newer[-1]}, this version's at {known[-1]}",
            hint="open it with that version, or a later one",
        )
    if applied == known:
        return
    with db.transaction() as connection:
        # The registry's own transactions become savepoints of this one, so two openers cannot both apply a step.
        MIGRATIONS.apply(sqlite_utils.Database(connection, execute_plugins=False))
