"""The command as a process of its own, on a real repository with pytest as its probe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TOML = f"""
schema = 1
[target]
repo = "."
base = "v1"
head = "main"
python = "{sys.executable}"
trace = ["calc"]
[probe.tests]
command = "python3 -m pytest -q -p no:cacheprovider tests"
timeout_s = 60
"""

CALC = "def double(x):\n    return x * 2\n\n\ndef unused(x):\n    return x\n"
TEST = "from calc import double\n\n\ndef test_double():\n    assert double(2) == 4\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Two patches: one breaks the test, one edits a function that nobody calls."""
    folder = tmp_path / "calc-repo"
    (folder / "calc").mkdir(parents=True)
    (folder / "tests").mkdir()
    source = folder / "calc" / "__init__.py"
    source.write_text(CALC)
    (folder / "tests" / "test_calc.py").write_text(TEST)
    (folder / "livepath.toml").write_text(TOML)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "calc: start")
    git(folder, "tag", "v1")
    source.write_text(CALC.replace("return x\n", "y = x\n    return y\n"))
    commit(folder, "calc: tidy unused")
    source.write_text(source.read_text().replace("x * 2", "x * 3"))
    commit(folder, "calc: faster double")
    return folder


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.invalid"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


def livepath(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    command = [sys.executable, "-m", "tui", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_case_from_its_making_to_a_culprit_with_its_diff(repo: Path) -> None:
    assert livepath(repo, "patch", "list").returncode == 2
    assert livepath(repo, "case", "new", "wrong", "--symptom", "double is wrong").returncode == 0
    assert [row["name"] for row in json.loads(livepath(repo, "patch", "list", "--json").stdout)] == [
        "tidy-unused",
        "faster-double",
    ]
    livepath(repo, "reading", "add", "calc/__init__.py:5-7", "--note", "who calls this?")

    judged = livepath(repo, "ab", "faster-double")
    dead = livepath(repo, "ab", "tidy-unused")
    lines = json.loads(livepath(repo, "live", "calc/__init__.py:6-7", "--json").stdout)
    patches = {row["name"]: row["verdict"] for row in json.loads(livepath(repo, "patch", "list", "--json").stdout)}

    assert "culprit" in judged.stdout
    assert "dead" in dead.stdout
    assert patches == {"tidy-unused": "dead", "faster-double": "culprit"}
    assert {line["word"] for line in lines if line["arm"] == "full"} == {"not_seen"}
    report = json.loads(livepath(repo, "report", "--json").stdout)
    assert [row["freshness"] for row in report["readings"]] == ["fresh"]
    assert "x * 3" in livepath(repo, "patch", "show", "faster-double").stdout


def test_the_folder_may_be_below_or_named(repo: Path, tmp_path: Path) -> None:
    livepath(repo, "case", "new", "wrong", "--symptom", "double is wrong")

    assert "wrong" in livepath(repo / "calc", "case", "list").stdout
    assert "wrong" in livepath(tmp_path, "case", "list", "-C", str(repo)).stdout


def test_where_there_is_no_target_the_way_out_is_named(tmp_path: Path) -> None:
    answer = livepath(tmp_path, "patch", "list")

    assert answer.returncode == 2
    assert answer.stderr.startswith(f"error: no livepath.toml in {tmp_path} or above it\nhint: ")


def test_a_reader_that_goes_away_is_no_error_message(repo: Path) -> None:
    livepath(repo, "case", "new", "wrong", "--symptom", "double is wrong")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tui", "log", "--json"],
        cwd=repo,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    errors = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=30)

    assert errors == b""


def test_the_command_starts_without_torch_textual_git_or_the_lab() -> None:
    code = (
        "import sys, tui.__main__, tui.cli.root\n"
        "heavy = {'torch', 'textual', 'git', 'lab', 'sqlite_utils', 'numpy', 'scipy'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
