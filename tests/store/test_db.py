"""One file, several processes, and what can go wrong with a file."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from store.db import Database, wal_is_safe
from store.errors import StoreError
from store.models import Question
from store.store import Store
from tests.store.conftest import INFO, make_patch, make_run

ROOT = Path(__file__).parents[2]


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


READ_THEN_WRITE = """
import sys
from pathlib import Path
from store.store import Store
with Store.open(Path(sys.argv[1])) as store:
    for _ in range(100):
        with store.transaction():
            store.set_meta("count", store.meta("count", 0) + 1)
"""


def test_two_processes_that_read_then_write_lose_no_update(store: Store, path: Path) -> None:
    writers = [child(READ_THEN_WRITE, path) for _ in range(2)]
    errors = [writer.communicate(timeout=60)[1] for writer in writers]

    assert errors == ["", ""]
    assert store.meta("count") == 200


def test_threads_share_one_store(store: Store) -> None:
    def work(worker: int) -> None:
        for number in range(20):
            store.add_question(Question(text=f"{worker}/{number}"))
            store.questions()

    threads = [threading.Thread(target=work, args=[worker]) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({question.text for question in store.questions()}) == 80


WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
from store.models import Attempt, Item
from store.store import Store
with Store.open(Path(sys.argv[1])) as store:
    while True:
        items = [Item(attempt_id=0, item=str(n), cluster="c", score=1.0) for n in range(200)]
        attempt = store.record_attempt(Attempt(run_id=1, number=0, status="ok", folder=""), items=items)
        print(attempt.number, flush=True)
"""


def test_a_process_killed_while_writing_loses_nothing_it_committed(store: Store, path: Path) -> None:
    run = store.put_run(make_run())
    writer = child(WRITE_UNTIL_KILLED, path)
    assert writer.stdout is not None
    committed = [int(writer.stdout.readline()) for _ in range(10)][-1]
    os.kill(writer.pid, signal.SIGKILL)
    rest, _ = writer.communicate(timeout=30)
    committed = max([committed, *map(int, rest.split())])

    with Store.open(path) as reopened:
        attempts = reopened.attempts(run.id)
        counts = {len(reopened.items(attempt.id)) for attempt in attempts}

        assert len(attempts) >= committed >= 10
        assert counts == {200}
        assert reopened.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_an_error_inside_a_transaction_takes_all_of_it_back(store: Store) -> None:
    def interrupted() -> None:
        with store.transaction():
            store.put_patch(make_patch())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert store.patches() == []
    assert [entry.noun for entry in store.journal()] == ["case_info"]


def test_the_version_grows_with_changes_of_this_and_of_other_connections(store: Store, path: Path) -> None:
    versions = [store.version(), store.version()]
    store.add_question(Question(text="here"))
    versions.append(store.version())
    with Store.open(path) as other:
        other.add_question(Question(text="elsewhere"))
    versions.append(store.version())

    assert versions[0] == versions[1] < versions[2] < versions[3]


def test_a_file_that_is_no_database_is_one_clear_error(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a case\n" * 500)

    with pytest.raises(StoreError, match="not a readable case file") as caught:
        Store.open(path)

    assert "put a copy of it back" in caught.value.hint


def test_a_file_with_damaged_pages_is_one_clear_error(store: Store, path: Path) -> None:
    for number in range(200):
        store.add_question(Question(text=f"question {number} " * 20))
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))

    with pytest.raises(StoreError, match="not a readable case file"):
        Store.open(path)


def test_a_missing_file_is_not_made_by_opening_it(path: Path) -> None:
    with pytest.raises(StoreError, match="no case file"):
        Store.open(path)

    assert not path.exists()


def test_a_case_whose_making_was_cut_short_can_be_made_again(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with pytest.raises(StoreError, match="holds no case"):
        Store.open(path)

    with Store.create(path, INFO) as made:
        assert made.case().slug == INFO.slug


def test_a_case_is_not_made_over_another(store: Store, path: Path) -> None:
    with pytest.raises(StoreError, match=r"a case in .* already"):
        Store.create(path, INFO)

    assert store.case().symptom == INFO.symptom


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()

    with pytest.raises(StoreError, match="closed"):
        store.patches()


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()

    with pytest.raises(StoreError, match="taken"):
        Store.create(tmp_path / "taken" / "case.db", INFO)


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 45, 0), False),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 53, 0), True),
    ],
)
def test_wal_is_used_only_with_a_release_that_has_the_fix(version: tuple[int, int, int], safe: bool) -> None:
    assert wal_is_safe(version) is safe


def test_the_journal_mode_follows_the_release(store: Store) -> None:
    expected = "wal" if wal_is_safe() else "delete"

    assert store.query("PRAGMA journal_mode") == [{"journal_mode": expected}]


def test_an_sqlite_without_strict_tables_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))

    with pytest.raises(StoreError, match=r"too old: case files need 3\.37"):
        Database(path)
