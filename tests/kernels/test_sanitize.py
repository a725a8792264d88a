from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import result_file, sanitize
from benchmarks.children import ROOT
from benchmarks.sanitize import Row, read_log
from benchmarks.sanitizer_cases import CASES
from benchmarks.sanitizer_child import FAULTS
from benchmarks.table import markdown

LAUNCHED = 'launched: ["kernels.align._place"]\n'
# Launchers run whole, on tensors of the CPU, up to the launch itself.
LAUNCH_NOTHING = """
import json, types, torch, kernels.checks
kernels.checks.require_device = lambda op, *tensors: None
torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(multi_processor_count=132)
from triton.runtime.jit import JITFunction
JITFunction.run = lambda self, *args, **kwargs: None
from benchmarks.sanitizer_child import CASES, launchable_kernels, recorded
with recorded() as launched:
    for case in CASES.values():
        case("cpu")
print(json.dumps([sorted(launched), sorted(launchable_kernels())]))
"""


def test_every_kernel_is_launched_by_a_case() -> None:
    result = subprocess.run(
        [sys.executable, "-c", LAUNCH_NOTHING],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert result.returncode == 0, result.stderr[-3000:]
    launched, launchable = json.loads(result.stdout.splitlines()[-1])
    assert set(launchable) - set(launched) == set()
    assert {"kernels.align._place", "kernels.experts_hopper_gemm.expert_gemm"} <= set(launchable)


def test_the_experts_are_launched_with_every_tile_that_is_ever_chosen() -> None:
    from benchmarks.sanitizer_cases import HOPPER_EXPERTS, HOPPER_TOKENS, HOPPER_TOPK
    from kernels.experts_hopper import choose_tile

    chosen = {choose_tile(tokens * HOPPER_TOPK, HOPPER_EXPERTS) for tokens in HOPPER_TOKENS}

    assert chosen == {choose_tile(rows, 8) for rows in range(1, 8 * 2048)}


@pytest.mark.parametrize(("fp8", "rounded"), [(False, False), (True, False), (True, True)])
def test_so_are_the_experts_of_plain_weights(fp8: bool, rounded: bool) -> None:
    from benchmarks.sanitizer_cases import PLAIN_EXPERTS, PLAIN_TOKENS, PLAIN_TOPK
    from kernels.experts_plain import choose_tile

    chosen = {choose_tile(tokens * PLAIN_TOPK, PLAIN_EXPERTS, fp8=fp8, rounded=rounded) for tokens in PLAIN_TOKENS}

    assert chosen == {choose_tile(rows, 8, fp8=fp8, rounded=rounded) for rows in range(1, 8 * 2048)}


def test_a_run_of_the_tool_is_written_op_by_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import timing

    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--version) echo "Version 2026.4.0.0 (build 1)"; exit;; esac\n'
        'case "$*" in *beyond-the-end|*unguarded|*unordered-roles*) n=1;; *) n=0;; esac\n'
        'case "$*" in *each-thread-arrives) echo "rewritten: 7";; esac\n'
        "echo 'launched: [\"kernels.align._place\"]'\n"
        'echo "ERROR SUMMARY: $n errors"; echo "RACECHECK SUMMARY: $n hazards"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: tool)
    monkeypatch.setattr(sanitize.sys, "executable", str(tool))  # of the plain run
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(timing, "machine", lambda: {"gpu": "NVIDIA H200"})

    assert sanitize.main(["align", "--out", str(tmp_path)]) == 0

    (path,) = tmp_path.glob("*-sanitizer-h200.json")
    result = json.loads(path.read_text(encoding="utf-8"))
    assert [(row["tool"], row["verdict"]) for row in result["rows"]] == [
        ("plain", "clean"),
        ("memcheck", "clean"),
        ("racecheck", "clean"),
    ]
    assert result["sanitizer"] == "2026.4.0.0"
    # One op was asked for; of all of them, most kernels would have had no launch here.
    assert result["never_launched"] == []
    assert sanitize.main(["--out", str(tmp_path), "--jobs", "2"]) == 1
    result = json.loads(path.read_text(encoding="utf-8"))
    assert "kernels.combine._combine" in result["never_launched"]
    # Only racecheck needs kernels rewritten, and only those of warps with roles.
    assert {(row["op"], row["tool"]) for row in result["rows"] if row["rewritten"]} == {
        ("sparse_attention", "racecheck")
    }


@pytest.mark.parametrize(
    ("tool", "text", "code", "found", "verdict"),
    [
        ("memcheck", f"{LAUNCHED}========= ERROR SUMMARY: 0 errors\n", 0, 0, "clean"),
        ("memcheck", f"{LAUNCHED}========= ERROR SUMMARY: 28 errors\n", 1, 28, "28 found"),
        ("racecheck", f"{LAUNCHED}= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", 0, 0, "clean"),
        ("racecheck", "= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n", 0, 1, "1 found"),
        ("memcheck", "========= ERROR SUMMARY: 0 errors\n", 0, None, "the case itself failed, exit 0"),
        ("memcheck", f"{LAUNCHED}========= ERROR SUMMARY: 0 errors\n", 9, None, "the case itself failed, exit 9"),
        ("memcheck", "========= Error: Device not supported\n", 1, None, "the tool gave no count"),
        ("memcheck", f"{LAUNCHED}========= ERROR SUMMARY: 0 errors\n", None, None, "over its limit"),
        ("plain", LAUNCHED, 0, 0, "clean"),
        ("plain", "Traceback\n", 1, None, "the case itself failed, exit 1"),
    ],
)
def test_only_a_count_of_zero_from_a_case_that_launched_and_ended_well_is_clean(
    tool: str, text: str, code: int | None, found: int | None, verdict: str
) -> None:
    row = read_log("align", tool, text, code, 1.0)

    assert (row.found, row.verdict) == (found, verdict)
    assert row.clean == (verdict == "clean")


def test_an_op_that_fails_by_itself_is_not_put_under_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def check(sanitizer: Path, tool: str, op: str, *rest: object) -> Row:
        asked.append((op, tool))
        good = op == "align"
        return Row(
            op=op, tool=tool, found=0 if good else None, verdict="clean" if good else "bad", kernels=[], seconds=1.0
        )

    monkeypatch.setattr(sanitize, "check", check)

    ended = list(sanitize.run_all(tmp_path, ["index", "align"], ["memcheck", "racecheck"], tmp_path, 1.0, 1))

    assert asked == [("index", "plain"), ("align", "plain"), ("align", "memcheck"), ("align", "racecheck")]
    assert {rows[0].op: [row.clean for row in rows] for rows in ended} == {"index": [False], "align": [True] * 3}


def test_a_kernel_without_a_launch_is_named() -> None:
    rows = [Row(op="a", tool="plain", found=0, verdict="clean", kernels=["kernels.a._x"], seconds=1.0)]

    assert sanitize.never_launched(rows, {"kernels.a._x", "kernels.b._y"}) == ["kernels.b._y"]


def test_a_missing_sanitizer_is_said_and_one_in_a_toolkits_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "toolkit" / "bin" / "compute-sanitizer"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert sanitize.find_sanitizer() == tool

    # A wheel is there because somebody wanted it.
    wheel = tmp_path / "site" / "nvidia" / "cu13" / "bin" / "compute-sanitizer"
    wheel.parent.mkdir(parents=True)
    shutil.copy(tool, wheel)
    spec = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "site" / "nvidia")]
    monkeypatch.setattr(sanitize.importlib.util, "find_spec", lambda name: spec)
    assert sanitize.find_sanitizer() == wheel

    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    assert sanitize.main([]) == 2
    assert "neither on PATH nor in a CUDA toolkit's folder" in capsys.readouterr().err


def test_a_tool_that_misses_the_planted_fault_says_nothing_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = tmp_path / "compute-sanitizer"
    blind.write_text("#!/bin/sh\necho 'Error: Device not supported'\necho '========= ERROR SUMMARY: 0 errors'\n")
    blind.chmod(0o755)
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: blind)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    assert sanitize.main(["--out", str(tmp_path)]) == 2

    said = capsys.readouterr().err
    assert "memcheck does not find the fault beyond-the-end planted for it" in said
    assert "Device not supported" in said
    assert not list(tmp_path.glob("*.json"))


def test_faults_and_roles_are_cases_that_a_child_knows() -> None:
    faults = {fault for names in sanitize.FAULTS.values() for fault in names}

    assert faults == set(FAULTS)
    assert set(sanitize.ROLES) <= {*CASES, *FAULTS}
    assert set(sanitize.FAULTS) == set(sanitize.TOOLS)


def test_committed_runs_of_the_tool_that_follows_mbarriers_were_clean_and_name_their_kernels() -> None:
    paths = sorted(result_file.RESULTS.glob("*-sanitizer-*.json"))
    latest = json.loads(paths[-1].read_text(encoding="utf-8"))
    assert {row["tool"] for row in latest["rows"]} == {"plain", "memcheck", "racecheck"}
    for path in paths:
        result = json.loads(path.read_text(encoding="utf-8"))

        assert result["machine"]["commit"], path.name
        assert result["never_launched"] == [], path.name
        for row in result["rows"]:
            # Before 2026, by a tool that took the hand-overs of warps with roles for races.
            misjudged = "sanitizer" not in result and (row["op"], row["tool"]) == ("sparse_attention", "racecheck")
            assert row["kernels"], (path.name, row)
            assert row["verdict"] == "clean" or misjudged, (path.name, row)


def test_the_table_has_a_row_for_each_op_and_a_column_for_each_tool() -> None:
    machine = {"gpu": "NVIDIA H200", "torch": "2", "triton": "3", "driver": "5", "commit": "abc", "clocks_before": {}}
    ran = {"op": "align", "kernels": ["kernels.align._place"]}
    rows = [{**ran, "tool": "plain", "verdict": "clean"}, {**ran, "tool": "memcheck", "verdict": "2 found"}]
    roles = {"op": "roles", "tool": "racecheck", "verdict": "clean", "rewritten": 2, "kernels": ["kernels.a._x"]}

    table = markdown({"machine": machine, "tools": ["memcheck", "racecheck"], "rows": [*rows, roles]}, "file.json")

    assert table.splitlines()[-2:] == [
        "| align | clean | 2 found | not run | `align._place` |",
        "| roles | not run | not run | clean, 2 arrivals rewritten | `a._x` |",
    ]
