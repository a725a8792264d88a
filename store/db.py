"""The connection to one case file: pragmas, one writer at a time, immediate transactions, errors in words.

Contract: a `Database` may be used from any thread; a lock lets one through at a time, so a process has one writer per
open store. Every change happens in `transaction()`, which begins IMMEDIATE: a deferred transaction that reads first
and writes later fails with "database is locked" without waiting when another process wrote in between. Nested calls
join the outer one.

Several processes share a file (screen, command line, worker), which is the shape that the WAL-reset fault of SQLite
3.7.0 to 3.51.2 corrupts. WAL is therefore used only with a fixed release, and the rollback journal otherwise.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store.errors import StoreError
from store.rows import Row

BUSY_TIMEOUT_S = 20.0
MIN_SQLITE = (3, 37, 0)  # STRICT tables


def wal_is_safe(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """Whether this SQLite carries the fix of the WAL-reset fault: 3.51.3, or 3.50.7 and 3.44.6 on their branches."""
    branch = version[:2]
    if branch == (3, 50):
        return version >= (3, 50, 7)
    if branch == (3, 44):
        return version >= (3, 44, 6)
    return version >= (3, 51, 3)


class Database:
    """An open case file. `actor` is who the journal names for the changes made through it."""

    def __init__(self, path: Path, *, actor: str = "lab") -> None:
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise StoreError(
                f"SQLite {sqlite3.sqlite_version} is too old: case files need 3.37 or newer",
                hint="use a Python built with a newer SQLite",
            )
        self.path = path
        self.actor = actor
        self._lock = threading.RLock()
        with self.errors():
            # isolation_level=None: the sqlite3 module opens no transaction of its own, `transaction` opens all.
            self.connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self.connection.row_factory = sqlite3.Row
            self._set_pragmas()

    def _set_pragmas(self) -> None:
        try:
            self.connection.execute("PRAGMA foreign_keys = ON")
            mode = "WAL" if wal_is_safe() else "DELETE"
            # SQLite answers with the mode it took: on a network file system it stays with the rollback journal.
            (taken,) = self.connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()
            self.connection.execute(f"PRAGMA synchronous = {'NORMAL' if taken == 'wal' else 'FULL'}")
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        with self._lock:
            self.connection.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Say SQLite's errors in words that name the file and the next step."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise StoreError(
                f"{self.path}: the change breaks a rule of the case: {error}",
                hint="FOREIGN KEY means that it names a row which does not exist, or that other rows still rest on it",
            ) from error
        except sqlite3.OperationalError as error:
            raise StoreError(f"{self.path}: {error}", hint=_operational_hint(str(error))) from error
        except sqlite3.ProgrammingError as error:
            raise StoreError(f"{self.path}: {error}", hint="the case was closed; open it again") from error
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{self.path} is not a readable case file: {error}",
                hint="put a copy of it back, or move it away and start the case again",
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All changes inside are written together, or none is."""
        with self._lock, self.errors():
            if self.connection.in_transaction:
                yield self.connection
                return
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """The rows a SELECT gives, all at once: no cursor outlives the lock."""
        with self._lock, self.errors():
            return [dict(row) for row in self.connection.execute(sql, parameters)]

    def version(self) -> int:
        """A number that grows with every change of the file, made here or by another process; cheap enough to poll."""
        with self._lock, self.errors():
            (elsewhere,) = self.connection.execute("PRAGMA data_version").fetchone()
            return int(elsewhere) + self.connection.total_changes


def _operational_hint(message: str) -> str:
    if "locked" in message:
        return f"another process wrote for more than {BUSY_TIMEOUT_S:.0f} s; try again"
    if "unable to open" in message:
        return "check that the folder exists and may be written to"
    if "readonly" in message:
        return "the file or its folder may not be written to; check its permissions"
    if "disk is full" in message:
        return "make room on the disk; what was committed before is safe"
    return ""
