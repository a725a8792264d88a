"""`livepath judge` as `git bisect run` calls it, on real repositories, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.conftest import Repo, living, make_foreign_repo, make_repo
from tui.__main__ import main

ROOT = Path(__file__).parents[2]

NOISY = """\
import json, os, pathlib
value = float(pathlib.Path("value.txt").read_text())
with open(os.environ["LIVEPATH_EVENTS"], "w") as events:
    for line in (
        {"event": "metric", "name": "loss", "value": value, "n": 1},
        {"event": "end", "status": "ok", "wall_s": 0.0},
    ):
        events.write(json.dumps({"v": 1, **line}) + chr(10))
"""


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return make_foreign_repo(tmp_path / "foreign", careful=True)


def livepath(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    command = [sys.executable, "-m", "tui", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def bisect_run(repo: Repo, *words: str) -> str:
    """`git bisect run livepath judge WORDS` between HEAD and v1; what git said."""
    repo.git("bisect", "start", "HEAD", "v1")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["git", "bisect", "run", sys.executable, "-m", "tui", "judge", *words],
        cwd=repo.path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    repo.git("bisect", "reset")
    return done.stdout + done.stderr


def test_git_bisect_run_names_the_breaking_commit(repo: Repo) -> None:
    head = repo.git("rev-parse", "HEAD")

    said = bisect_run(repo, "suite")

    assert f"{head} is the first bad commit" in said
    assert repo.git("worktree", "list").count("\n") == 0
    assert repo.git("status", "--porcelain") == ""


def test_a_commit_is_good_bad_or_cannot_be_tested(repo: Repo) -> None:
    codes = []
    for revision in ("main~1", "main"):
        repo.git("checkout", "--quiet", revision)
        codes.append(livepath(repo.path, "judge", "suite").returncode)
    repo.write("shop/price.py", "import nowhere\n")
    repo.commit("broken")
    broken = livepath(repo.path, "judge", "suite", "--json")

    assert codes == [0, 1]
    assert broken.returncode == 125
    assert json.loads(broken.stdout)["state"] == "cannot be tested"


def test_a_tree_is_run_once_only(repo: Repo) -> None:
    first, second = (json.loads(livepath(repo.path, "judge", "suite", "--json").stdout) for _ in range(2))

    assert first == second
    assert first["state"] == "bad"
    runs = json.loads(livepath(repo.path, "run", "show", "1", "--case", "judge", "--json").stdout)
    assert len(runs["attempts"]) == 1
    assert runs["run"]["command"] == f"git checkout {repo.git('rev-parse', 'HEAD')[:12]} && livepath judge suite"


def test_the_case_of_judgements_stays_out_of_the_way(repo: Repo) -> None:
    livepath(repo.path, "case", "new", "prices", "--symptom", "the till charges too much")

    livepath(repo.path, "judge", "suite")

    assert livepath(repo.path, "patch", "list").returncode == 0
    assert livepath(repo.path, "case", "new", "judge", "--symptom", "x").returncode == 2


@pytest.mark.parametrize(
    ("live", "code", "says"),
    [
        ("shop/price.py:5", 1, "exit code 1"),
        ("shop/price.py:9", 125, "shop/price.py:9-9 did not run"),
        ("shop/price.py:6@v1", 125, "did not run"),
        ("shop/price.py:2@v1", 1, "exit code 1"),
        ("shop/table.py", 1, "exit code 1"),
    ],
)
def test_a_commit_on_which_the_lines_did_not_run_is_void(
    repo: Repo, capsys: pytest.CaptureFixture[str], live: str, code: int, says: str
) -> None:
    ended = main(["judge", "suite", "-C", str(repo.path), "--live", live, "--plain"])

    assert (ended, says in capsys.readouterr().out) == (code, True)


def test_lines_that_are_not_there_yet_make_a_commit_void(repo: Repo) -> None:
    repo.git("checkout", "--quiet", "v1")

    answer = livepath(repo.path, "judge", "suite", "--live", "shop/table.py:1", "--json")

    assert (answer.returncode, json.loads(answer.stdout)["state"]) == (125, "void")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("judge", "nope"), "has no probe `nope`"),
        (("judge",), "Missing argument"),
        (("judge", "suite", "--live", "nowhere.py:3"), "no file nowhere.py"),
        (("judge", "suite", "--live", ":"), "names no lines"),
        (("--json", "judge", "suite"), "put options after the verb"),
        (("judge", "suite", "--bogus"), "No such option"),
        (("judge", "suite", "-C", "/nonexistent"), "no livepath.toml"),
    ],
)
def test_words_that_make_no_sense_stop_the_bisect(
    repo: Repo,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(repo.path)

    ended = main(words)

    said = capsys.readouterr().err
    assert ended == 128
    assert says in said
    assert "Traceback" not in said


def test_a_broken_target_or_case_stops_the_bisect(repo: Repo) -> None:
    livepath(repo.path, "judge", "suite")
    (repo.path / ".livepath" / "judge.db").write_bytes(b"no database at all" * 100)
    broken_case = livepath(repo.path, "judge", "suite").returncode
    repo.write("livepath.toml", "schema = 1\n[target]\nbogus = 1\n")

    assert (broken_case, livepath(repo.path, "judge", "suite").returncode) == (128, 128)


def test_git_stops_where_the_judge_cannot_be_asked(repo: Repo) -> None:
    assert "first bad commit" not in bisect_run(repo, "nope")


def test_uncommitted_changes_take_no_part_and_are_named(repo: Repo) -> None:
    repo.git("checkout", "--quiet", "HEAD~1")
    repo.write("shop/price.py", "def price(amount):\n    return 0\n")

    answer = livepath(repo.path, "judge", "suite")

    assert answer.returncode == 0
    assert "shop/price.py has uncommitted changes" in answer.stderr


def test_livepath_toml_may_lie_outside_the_repository(repo: Repo, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    text = (repo.path / "livepath.toml").read_text(encoding="utf-8")
    (outside / "livepath.toml").write_text(text.replace('repo = "."', 'repo = "../foreign"'), encoding="utf-8")
    repo.git("rm", "--quiet", "livepath.toml")
    repo.commit("shop: no target here")

    assert livepath(repo.path, "judge", "suite").returncode == 128
    assert livepath(repo.path, "judge", "suite", "-C", str(outside)).returncode == 1


def test_a_metric_is_judged_by_what_livepath_toml_calls_good(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "noisy")
    repo.write("probe.py", NOISY)
    toml = f'schema = 1\n[target]\npython = "{sys.executable}"\nbase = "HEAD"\nhead = "HEAD"\n[probe.loss]\n'
    rules = 'command = "python3 probe.py"\nmetric = "loss"\nhigher_is_better = false\n'
    codes = []
    for value, good in (("0.5", 'good = "<= 1"\n'), ("2.5", 'good = "<= 1"\n'), ("2.5", "")):
        repo.write("value.txt", value)
        repo.write("livepath.toml", toml + rules + good)
        repo.commit(f"loss {value}")
        codes.append(livepath(repo.path, "judge", "loss").returncode)

    assert codes == [0, 1, 128]


def test_a_stopped_judge_leaves_nothing_and_stops_the_bisect(repo: Repo) -> None:
    repo.write(
        "tests/test_price.py", f"import time\n\n\ndef test_slow():\n    time.sleep(60)  # {repo.path.parent.name}\n"
    )
    repo.commit("slow")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    judge = subprocess.Popen(
        [sys.executable, "-m", "tui", "judge", "suite"],
        cwd=repo.path,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    marker = str(repo.path / ".livepath" / "judge")
    deadline = time.monotonic() + 30
    while not living(marker) and time.monotonic() < deadline:
        time.sleep(0.05)

    judge.send_signal(signal.SIGINT)

    assert judge.wait(timeout=30) >= 128
    assert living(marker) == []
    assert repo.git("worktree", "list").count("\n") == 0
