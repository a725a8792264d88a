from __future__ import annotations

from typing import Any

import pytest

from lab.cache import run_key

BASE: dict[str, Any] = {
    "tree": "a" * 40,
    "command": "python3 -m probe",
    "env": {"A": "1", "B": "2"},
    "seed": 0,
    "instrumentation": "traced",
    "machine": {"python": "3.11.7", "packages_sha256": "x", "gpus": [], "cpus": 2},
}


def test_the_key_does_not_depend_on_order_or_on_the_number_of_cores() -> None:
    other = {**BASE, "env": {"B": "2", "A": "1"}, "machine": {**BASE["machine"], "cpus": 64, "git": "git version 3"}}

    assert run_key(**BASE) == run_key(**other)
    assert len(run_key(**BASE)) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"tree": "b" * 40},
        {"command": "python3 -m probe --x"},
        {"env": {"A": "1"}},
        {"seed": 1},
        {"instrumentation": "plain"},
        {"machine": {**BASE["machine"], "gpus": ["NVIDIA H200"]}},
        {"machine": {**BASE["machine"], "packages_sha256": "y"}},
        {"trace": ("engine",)},
        {"setup": "make"},
    ],
)
def test_everything_that_decides_an_outcome_changes_the_key(change: dict[str, Any]) -> None:
    assert run_key(**{**BASE, **change}) != run_key(**BASE)


def test_the_devices_a_person_hides_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_key(**BASE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")

    assert run_key(**BASE) != before
