"""Patches under suspicion, and which of their lines a run reached."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from store.db import Database
from store.errors import StoreError
from store.models import ChangedLine, Patch, Role
from store.table import RowId, find, put, replace_rows, select

_ORDER = "CASE role WHEN 'stack' THEN 0 WHEN 'candidate' THEN 1 ELSE 2 END, position, id"


def put_patch(db: Database, patch: Patch) -> Patch:
    """Insert the patch, or bring the one of this name up to date."""
    return put(db, patch, keys=["name"])


def patches(db: Database, role: Role | None = None) -> list[Patch]:
    """The stack in order of application, then candidates, then controls; or those of one role. None that is gone."""
    found = select(db, Patch, order=_ORDER, **({} if role is None else {"role": role}))
    return found if role == "gone" else [patch for patch in found if patch.role != "gone"]


def patch(db: Database, name: str) -> Patch:
    """The patch of this name.

    Raises:
        StoreError: the case has none.
    """
    found = find(db, Patch, name=name)
    if found is None:
        names = ", ".join(known.name for known in patches(db) if known.role != "control")
        raise StoreError(f"there is no patch {name!r} in this case", hint=f"it has: {names}" if names else "")
    return found


def put_changed_lines(db: Database, lines: Iterable[ChangedLine]) -> None:
    """Write what runs proved about a patch's lines, in the place of what was known of that patch in that run."""
    ordered = sorted(lines, key=lambda line: (line.patch, line.run_id))
    with db.transaction():
        for (name, run_id), group in groupby(ordered, key=lambda line: (line.patch, line.run_id)):
            replace_rows(db, ChangedLine, group, patch=name, run_id=run_id)


def changed_lines(db: Database, patch: str, *, run_id: RowId = None) -> list[ChangedLine]:
    """The lines of a patch with their liveness, in every run or in one."""
    values = {"patch": patch} if run_id is None else {"patch": patch, "run_id": run_id}
    return select(db, ChangedLine, order="run_id, path, line, rowid", **values)
