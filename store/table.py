"""One table per dataclass: insert, change, find, each journalled and indexed for search in the same transaction.

Contract: the modules named after nouns (`patches`, `runs`, ...) are the only callers. A table is named after its
class, its columns after the fields. `created_utc` is filled in when it is empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from store.clock import utc_now
from store.db import Database
from store.errors import StoreError
from store.journal import log
from store.rows import Row, from_row, kinds, to_cell, to_row
from store.search import index


class Numbered(Protocol):
    """A dataclass of `store.models` that has an id once it is stored."""

    @property
    def id(self) -> int | None: ...


T = TypeVar("T", bound=Numbered)
U = TypeVar("U")
# What comes from the store has an id, yet its type says `int | None`; a None finds nothing and says so.
RowId = int | None


def table_of(cls: type) -> str:
    """`ReadingLiveness` is stored in `reading_liveness`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def insert(db: Database, thing: T) -> T:
    """Write a new row and return the thing with its id."""
    cls = type(thing)
    table = table_of(cls)
    row = to_row(thing)
    del row["id"]
    if row.get("created_utc") == "":
        row["created_utc"] = utc_now()
    columns, marks = _columns_and_marks(row)
    with db.transaction() as connection:
        cursor = connection.execute(f'INSERT INTO "{table}" ({columns}) VALUES ({marks})', list(row.values()))
        row["id"] = cursor.lastrowid
        log(db, "insert", table, row["id"], after=row)
        index(db, table, row)
    return from_row(cls, row)


def change(db: Database, cls: type[T], row_id: RowId, **changes: Any) -> T:
    """Change some fields of one row; a change that changes nothing leaves no trace.

    Raises:
        StoreError: there is no such row.
    """
    table = table_of(cls)
    with db.transaction() as connection:
        before = _row(db, cls, row_id)
        after = before | {name: to_cell(value) for name, value in changes.items()}
        changed = [name for name in after if after[name] != before[name]]
        if changed:
            columns = ", ".join(f'"{name}" = ?' for name in changed)
            cells = [*(after[name] for name in changed), row_id]
            connection.execute(f'UPDATE "{table}" SET {columns} WHERE id = ?', cells)
            log(db, "update", table, before["id"], before=before, after=after)
            index(db, table, after)
    return from_row(cls, after)


def put(db: Database, thing: T, *, keys: Sequence[str], keep: Sequence[str] = ()) -> T:
    """Insert, or change the row with the same `keys`; `id`, `created_utc` and the fields in `keep` stay as stored."""
    cls = type(thing)
    with db.transaction():
        found = find(db, cls, **{name: getattr(thing, name) for name in keys})
        if found is None or found.id is None:
            return insert(db, thing)
        kept = {"id", "created_utc", *keep}
        return change(db, cls, found.id, **{name: getattr(thing, name) for name in kinds(cls) if name not in kept})


def add(db: Database, thing: T, *, keys: Sequence[str]) -> T:
    """Insert, unless a row with the same `keys` is there: then that row, unchanged."""
    with db.transaction():
        return find(db, type(thing), **{name: getattr(thing, name) for name in keys}) or insert(db, thing)


def get(db: Database, cls: type[T], row_id: RowId) -> T:
    """The row with this id.

    Raises:
        StoreError: there is none.
    """
    return from_row(cls, _row(db, cls, row_id))


def find(db: Database, cls: type[U], **values: Any) -> U | None:
    """The first row whose columns hold these values."""
    return next(iter(select(db, cls, **values)), None)


def select(db: Database, cls: type[U], *, order: str = "rowid", **values: Any) -> list[U]:
    """The rows whose columns hold these values (a value of None finds NULL), in order."""
    where = " AND ".join(f'"{name}" IS ?' for name in values) or "1"
    sql = f'SELECT * FROM "{table_of(cls)}" WHERE {where} ORDER BY {order}'
    return [from_row(cls, row) for row in db.query(sql, [to_cell(value) for value in values.values()])]


def replace_rows(db: Database, cls: type, things: Iterable[Any], **owner: Any) -> int:
    """Put these rows in the place of all rows of their owner (an attempt, a patch in a run); returns how many."""
    table = table_of(cls)
    columns, marks = _columns_and_marks(kinds(cls))
    cells = [list(to_row(replace(thing, **owner)).values()) for thing in things]
    with db.transaction() as connection:
        where = " AND ".join(f'"{name}" = ?' for name in owner)
        connection.execute(f'DELETE FROM "{table}" WHERE {where}', list(owner.values()))
        connection.executemany(f'INSERT INTO "{table}" ({columns}) VALUES ({marks})', cells)
    return len(cells)


def _row(db: Database, cls: type, row_id: RowId) -> Row:
    rows = db.query(f'SELECT * FROM "{table_of(cls)}" WHERE id = ?', [row_id])
    if not rows:
        raise StoreError(f"there is no {table_of(cls).replace('_', ' ')} {row_id} in this case")
    return rows[0]


def _columns_and_marks(names: Iterable[str]) -> tuple[str, str]:
    listed = list(names)
    return ", ".join(f'"{name}"' for name in listed), ", ".join("?" for _ in listed)
