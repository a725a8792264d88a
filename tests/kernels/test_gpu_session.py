"""The one command of a session on a GPU, with steps that need none."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_tests
from benchmarks.children import Ended, kill_tree, run_child, tail
from benchmarks.gpu import Step

# A module that exists anywhere and does what its argument says.
DO = "timeit"


def step(name: str, code: str, limit_s: float = 30.0) -> Step:
    return Step(name=name, limit_s=limit_s, command=(DO, "-n1", "-r1", code))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def test_a_step_that_fails_and_one_over_its_limit_do_not_keep_the_next_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        step("fails", "print('before it failed'); raise RuntimeError"),
        step("hangs", "print('before it hung', flush=True); import time; time.sleep(60)", limit_s=0.5),
        step("works", "print('done')"),
    ]
    monkeypatch.setattr(gpu, "steps_of", lambda out, quick: steps)

    assert gpu.main(["--out", str(tmp_path)]) == 1

    said = capsys.readouterr().out
    summary = said.partition("== summary")[2].splitlines()[1:]
    assert [line.split()[0] for line in summary] == ["fails", "hangs", "works"]
    assert "failed, exit 1" in summary[0]
    assert "over its limit" in summary[1]
    assert summary[2].endswith("ok")
    assert said.index("before it failed") < said.index("before it hung") < said.index("done")
    assert "before it hung" in (tmp_path / "hangs.log").read_text()
    kept = json.loads((tmp_path / "session.json").read_text())
    assert [(item["step"], item["code"]) for item in kept] == [("fails", 1), ("hangs", None), ("works", 0)]


def test_the_session_has_a_limit_of_its_own_and_steps_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step("slow", "import time; time.sleep(60)"), step("late", "print('never')"), step("quick", "pass")]
    monkeypatch.setattr(gpu, "steps_of", lambda out, quick: steps)

    assert gpu.main(["--out", str(tmp_path), "--limit", "0.5", "--steps", "slow,late"]) == 1
    summary = capsys.readouterr().out.partition("== summary")[2]
    assert "over its limit" in summary
    assert "not run, the session's time was over" in summary
    assert not (tmp_path / "late.log").exists()

    assert gpu.main(["--out", str(tmp_path), "--steps", "quick"]) == 0
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--out", str(tmp_path), "--steps", "quick,slw"])
    assert "no step slw; expected some of slow, late, quick" in capsys.readouterr().err


def test_a_checkout_without_git_must_be_told_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "steps_of", lambda out, quick: [])
    monkeypatch.delenv("BENCH_COMMIT", raising=False)

    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--out", str(tmp_path / "out")])

    assert "set BENCH_COMMIT" in capsys.readouterr().err
    monkeypatch.setenv("BENCH_COMMIT", "0123456")
    assert gpu.main(["--out", str(tmp_path / "out")]) == 0


def test_every_step_is_a_module_that_exists(tmp_path: Path) -> None:
    for quick in (False, True):
        for one in gpu.steps_of(tmp_path, quick=quick):
            assert Path(gpu.__file__).parent.joinpath(f"{one.command[0].removeprefix('benchmarks.')}.py").exists()


def test_what_a_stopped_child_started_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time;"
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True);"
        "print(c.pid, flush=True); time.sleep(60)"
    )

    ended = run_child([sys.executable, "-c", code], 2.0, tmp_path / "log")

    assert ended.code is None
    grandchild = int((tmp_path / "log").read_text())
    deadline = time.monotonic() + 5
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(grandchild)


def test_a_child_that_died_of_a_signal_has_failed(tmp_path: Path) -> None:
    ended = run_child(
        [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], 20.0, tmp_path / "log", {"UNUSED": "1"}
    )

    assert (ended.code, ended.verdict) == (-signal.SIGSEGV, "failed, exit -11")
    kill_tree(2**22 + 1)  # nobody has this id: nothing to end, no error


def test_a_tail_is_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\ntwo\nthree\n")

    assert tail(tmp_path / "log", 2) == "    two\n    three"


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (0, "...\n3 passed, 2 deselected in 1.0s\n", (True, 3, "3 passed, 2 deselected in 1.0s")),
        (1, "F..\n== 1 failed, 2 passed in 1.0s ==\n", (False, 2, "1 failed, 2 passed in 1.0s")),
        (5, "2 deselected in 0.5s\n", (True, 0, "2 deselected in 0.5s")),
        (-6, "..Fatal Python error: Aborted\n", (False, 0, "failed, exit -6")),
        (None, "...", (False, 0, "over its limit, stopped after 9 s")),
    ],
)
def test_a_file_is_green_when_pytest_says_so(
    code: int | None, text: str, expected: tuple[bool, int, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(text)

    outcome = gpu_tests.outcome_of(tmp_path / "test_x.py", Ended(code=code, seconds=9.0), log)

    assert (outcome.green, outcome.passed, outcome.verdict) == expected


def test_the_gpu_tests_of_a_file_run_in_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    mark = "import pytest\npytestmark = pytest.mark.gpu\n"
    good.write_text(f"{mark}def test_it(): pass\n")
    bad.write_text(f"{mark}def test_it(): assert 1 == 2, 'the reason'\n")

    assert gpu_tests.main([str(good), str(bad), "--jobs", "1"]) == 1

    said = capsys.readouterr().out
    assert "1 tests passed in 2 files; red: test_bad.py" in said
    assert "the reason" in said


def test_only_files_that_have_gpu_tests_are_run() -> None:
    found = {path.name for path in gpu_tests.files_with_gpu_tests()}

    assert {"test_experts_hopper.py", "test_index.py", "test_gpu.py"} <= found
    assert not {"test_experts_ref.py", "test_gpu_session.py"} & found
