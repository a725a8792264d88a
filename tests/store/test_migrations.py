"""A case file of any earlier schema is brought up to date; one of a later schema is left alone."""

import sqlite3
from pathlib import Path

import pytest
import sqlite_utils

from store.db import Database
from store.errors import StoreError
from store.migrations import applied_steps, known_steps, migrate
from store.schema import MIGRATIONS
from store.store import Store
from tests.store.conftest import INFO, make_patch


def schema(db: Database) -> list[str]:
    return [row["sql"] for row in db.query("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")]


def old_file(path: Path, stop_before: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    old = sqlite_utils.Database(path)
    MIGRATIONS.apply(old, stop_before=stop_before)
    old["case_info"].insert(
        {
            "id": 1, "slug": "old", "symptom": "wrong", "repo": "/r", "target_toml": "", "base": "b", "head": "h",
            "machine": "{}", "livepath_version": "0.0.1", "created_utc": "2026-01-01T00:00:00.000000Z",
        }
    )  # fmt: skip
    old.close()


@pytest.mark.parametrize("stop_before", known_steps()[1:])
def test_a_file_of_every_earlier_schema_keeps_its_case_and_becomes_a_new_one(
    path: Path, tmp_path: Path, stop_before: str
) -> None:
    old_file(path, stop_before)

    with Store.open(path) as upgraded, Store.create(tmp_path / "new.db", INFO) as new:
        upgraded.put_patch(make_patch())

        assert upgraded.case().symptom == "wrong"
        assert applied_steps(upgraded) == known_steps()
        assert schema(upgraded) == schema(new)


def test_opening_an_up_to_date_file_writes_nothing(store: Store, path: Path) -> None:
    before = path.read_bytes()

    Store.open(path).close()

    assert path.read_bytes() == before


def test_steps_are_numbered_in_order_without_a_gap() -> None:
    assert [name.split("_")[0] for name in known_steps()] == [f"m{n:03}" for n in range(1, len(known_steps()) + 1)]


def test_a_file_of_a_newer_schema_is_refused_and_left_alone(store: Store, path: Path) -> None:
    with store.transaction() as connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('livepath', 'm999_future', '')"
        )
    before = path.read_bytes()

    with pytest.raises(StoreError, match=r"newer Livepath.*m999_future"):
        Store.open(path)

    assert path.read_bytes() == before


def test_a_step_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_file(path, "m004_evidence")

    def broken(db: sqlite_utils.Database) -> None:
        db.execute("CREATE TABLE half_done (id INTEGER) STRICT")
        raise sqlite3.OperationalError("disk is full")

    last = MIGRATIONS.pending(sqlite_utils.Database(sqlite3.connect(path)))[-1]
    monkeypatch.setattr(last, "fn", broken)
    with pytest.raises(StoreError, match="disk is full"):
        Store.open(path)
    monkeypatch.undo()

    old = Database(path)
    assert applied_steps(old) == known_steps()[:3]
    assert not old.query("SELECT 1 FROM sqlite_master WHERE name = 'half_done'")
    old.close()


def test_migrating_twice_changes_nothing(store: Store) -> None:
    before = schema(store)

    migrate(store)

    assert schema(store) == before
