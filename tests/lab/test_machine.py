from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest

import lab.machine
from lab.machine import NO_GPU, gpu_names, machine_facts
from store.errors import TargetError
from tests.lab.conftest import Repo


def test_facts_are_json_and_speak_of_the_targets_interpreter(foreign_repo: Repo) -> None:
    facts = machine_facts(foreign_repo.target)

    assert json.loads(json.dumps(facts)) == facts
    assert facts["python"] == platform.python_version()
    assert facts["cpus"] >= 1
    assert len(facts["packages_sha256"]) == 64
    assert facts["given"] == ([] if facts["gpus"] else [NO_GPU])


@pytest.mark.parametrize("text", ["#!/bin/sh\necho no >&2; exit 1\n", "not a program\n"])
def test_an_interpreter_that_does_not_run_is_one_clear_error(foreign_repo: Repo, tmp_path: Path, text: str) -> None:
    broken = tmp_path / "python"
    broken.write_text(text)
    broken.chmod(0o755)

    with pytest.raises(TargetError, match=r"the target's interpreter .* does not") as caught:
        machine_facts(replace(foreign_repo.target, python=broken))
    assert "livepath.toml" in caught.value.hint


def test_a_gpu_is_found_by_asking_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu_names():
        pytest.skip("this machine has a GPU of its own")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA H200 (UUID: GPU-2)'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert lab.machine.gpu_names() == ("NVIDIA H200", "NVIDIA H200")
