"""The journal: every change of a case, before and after, who made it and when. It is only ever added to.

Contract: one entry per inserted or changed row; an attempt's measurements are one entry with their counts, since
copying them would double the file. A worker's heartbeat and progress are not changes of the case and are not
recorded. `undo` reverses the newest change of the same actor by a change with its own entry; it refuses when the row
changed since.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from store.clock import utc_now
from store.db import Database
from store.errors import StoreError
from store.rows import Row, from_row, to_json
from store.search import index, unindex

Action = Literal["insert", "update", "delete", "record"]

# What was measured stays: an undo of these would take the ground from under what rests on it.
NEVER_UNDONE = frozenset({"case_info", "run", "attempt", "job"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change. `before` is None for an insert, `after` for a delete; `undoes` names the entry this one reverses."""

    id: int
    at_utc: str
    actor: str
    action: Action
    noun: str
    row_id: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    undoes: int | None


def log(
    db: Database,
    action: Action,
    noun: str,
    row_id: int,
    *,
    before: Row | None = None,
    after: Row | None = None,
    undoes: int | None = None,
) -> int:
    """Write one entry inside the transaction of the change it tells of."""
    sides = [None if side is None else to_json(side) for side in (before, after)]
    with db.transaction() as connection:
        cursor = connection.execute(
            "INSERT INTO journal (at_utc, actor, action, noun, row_id, before, after, undoes)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [utc_now(), db.actor, action, noun, row_id, *sides, undoes],
        )
        return int(cursor.lastrowid or 0)


def journal(db: Database, *, newest: int = -1) -> list[Entry]:
    """The entries, oldest first; with `newest`, only the last so many."""
    rows = db.query("SELECT * FROM journal ORDER BY id DESC LIMIT ?", [newest])
    return [from_row(Entry, row) for row in reversed(rows)]


def undo(db: Database) -> Entry:
    """Reverse the newest change of this actor that was not reversed yet, and return the entry that says so.

    Raises:
        StoreError: there is none, it is one of what was measured, the row changed since, or other rows rest on it.
    """
    with db.transaction() as connection:
        entry = _newest_change(db)
        where = f'"{entry.noun}" WHERE id = ?'
        found = db.query(f"SELECT * FROM {where}", [entry.row_id])
        if not found or json.loads(to_json(found[0])) != entry.after:
            raise StoreError(f"{entry.noun} {entry.row_id} changed again after change {entry.id}: nothing was undone")
        if entry.before is None:
            connection.execute(f"DELETE FROM {where}", [entry.row_id])
            unindex(db, entry.noun, entry.row_id)
        else:
            columns = ", ".join(f'"{name}" = ?' for name in entry.before)
            cells = [*entry.before.values(), entry.row_id]
            connection.execute(f'UPDATE "{entry.noun}" SET {columns} WHERE id = ?', cells)
            index(db, entry.noun, entry.before)
        action: Action = "delete" if entry.before is None else "update"
        written = log(db, action, entry.noun, entry.row_id, before=entry.after, after=entry.before, undoes=entry.id)
        return from_row(Entry, db.query("SELECT * FROM journal WHERE id = ?", [written])[0])


def _newest_change(db: Database) -> Entry:
    rows = db.query(
        "SELECT * FROM journal WHERE actor = ? AND undoes IS NULL"
        " AND id NOT IN (SELECT undoes FROM journal WHERE undoes IS NOT NULL) ORDER BY id DESC LIMIT 1",
        [db.actor],
    )
    if not rows:
        raise StoreError(f"{db.actor} has made no change that could be undone")
    entry = from_row(Entry, rows[0])
    if entry.action == "record" or entry.noun in NEVER_UNDONE:
        raise StoreError(
            f"the newest change of {db.actor} is the {entry.action} of {entry.noun} {entry.row_id}: that stays",
            hint="withdraw the finding that rests on it instead",
        )
    return entry
