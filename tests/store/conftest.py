"""A case file in a temporary folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.models import Attempt, CaseInfo, Patch, Run
from store.store import Store

INFO = CaseInfo(
    slug="slow-recall", symptom="answers are wrong", repo="/repo", target_toml="schema = 1", base="b", head="h"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".livepath" / "slow-recall.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.create(path, INFO) as created:
        yield created


def make_patch(name: str = "splitk-decode", **fields: object) -> Patch:
    values = {
        "role": "stack",
        "kind": "commit",
        "position": 0,
        "commit": "c",
        "patch_id": name,
        "subject": name,
        "diff": "",
    }
    return Patch(name=name, **(values | fields))  # type: ignore[arg-type]


def make_run(key: str = "key", **fields: object) -> Run:
    values = {
        "probe": "needle",
        "arm": "base",
        "patches": (),
        "tree": "t",
        "seed": 0,
        "command": "run",
        "instrumentation": "plain",
    }
    return Run(key=key, **(values | fields))  # type: ignore[arg-type]


def make_attempt(run_id: int, **fields: object) -> Attempt:
    return Attempt(run_id=run_id, **({"number": 0, "status": "ok", "folder": "runs/1"} | fields))  # type: ignore[arg-type]
