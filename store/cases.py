"""The case itself (one row), and small settings that belong to it."""

from __future__ import annotations

import json
from typing import Any

from store.clock import utc_now
from store.db import Database
from store.errors import StoreError
from store.journal import log
from store.models import CaseInfo
from store.rows import Row, from_row, to_json, to_row


def case(db: Database) -> CaseInfo:
    """What this case is about.

    Raises:
        StoreError: the file holds no case (its making was cut short).
    """
    row = _stored(db)
    if row is None:
        raise StoreError(f"{db.path} holds no case", hint="remove the file and make the case again")
    return from_row(CaseInfo, row)


def put_case(db: Database, info: CaseInfo) -> CaseInfo:
    """Write the case's row; its `created_utc` stays."""
    row = to_row(info)
    with db.transaction() as connection:
        before = _stored(db)
        row["created_utc"] = before["created_utc"] if before else info.created_utc or utc_now()
        after = {"id": 1, **row}
        if before == after:
            return from_row(CaseInfo, after)
        columns, marks = ", ".join(f'"{name}"' for name in after), ", ".join("?" for _ in after)
        connection.execute(f"INSERT OR REPLACE INTO case_info ({columns}) VALUES ({marks})", list(after.values()))
        log(db, "update" if before else "insert", "case_info", 1, before=before, after=after)
    return from_row(CaseInfo, after)


def close_case(db: Database) -> CaseInfo:
    """Mark the case as closed now; closing it again changes nothing."""
    with db.transaction():
        info = case(db)
        if info.closed_utc is not None:
            return info
        row = to_row(info) | {"closed_utc": utc_now()}
        return put_case(db, from_row(CaseInfo, row))


def meta(db: Database, key: str, default: Any = None) -> Any:
    """A small setting, as it was given to `set_meta`."""
    rows = db.query("SELECT value FROM meta WHERE key = ?", [key])
    return json.loads(rows[0]["value"]) if rows else default


def set_meta(db: Database, key: str, value: Any) -> None:
    """Keep a small JSON value under a key. Settings are not evidence and are not journalled."""
    with db.transaction() as connection:
        connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", [key, to_json(value)])


def _stored(db: Database) -> Row | None:
    rows = db.query("SELECT * FROM case_info")
    return rows[0] if rows else None
