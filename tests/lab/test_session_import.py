"""A session in the case: matched by what was printed, kept where it matches nothing, with its liveness."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.arms import FULL
from lab.bench import Bench
from lab.case import Case, create_case
from lab.demo import make_demo
from lab.inquiry import Inquiry
from lab.investigate import read_readings
from lab.series import PATCHES
from lab.session import import_session
from lab.session_replay import replay
from lab.worked import open_worked_case
from tests.lab.conftest import Repo, make_foreign_repo

LONG = "\n".join(f"def function_{number}(value):\n    return value + {number}\n" for number in range(1, 41))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """The foreign repository with one longer file, of which a first version had another beginning."""
    repo = make_foreign_repo(tmp_path / "foreign")
    repo.write("shop/long.py", f"# the first version\n{LONG}")
    repo.commit("shop: a long file")
    repo.write("shop/long.py", LONG)
    repo.commit("shop: without its head")
    return repo


@pytest.fixture
def case(repo: Repo) -> Iterator[Case]:
    with create_case(repo.path, "prices", "the till charges too much") as opened:
        yield opened


def sh(folder: Path, command: str) -> str:
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def take(case: Case, tmp_path: Path, log: str, host: str = "") -> list[tuple[str, str, int, int]]:
    """Import a log and return (state, path, start, end) of what came of it."""
    file = tmp_path / "session.log"
    file.write_text(log, encoding="utf-8", errors="surrogateescape")
    return [
        (one.state, one.reading.path, one.reading.start, one.reading.end)
        for one in import_session(case, file, host).readings
    ]


def recorded(repo: Repo, command: str, prompt: str = "$") -> str:
    return f"{prompt} {command}\n{sh(repo.path, command)}"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sed -n 4,6p shop/long.py", [("matched", "shop/long.py", 4, 6)]),
        ("sed -n '4,6p;10,11p' shop/long.py", [("matched", "shop/long.py", 4, 6), ("matched", "shop/long.py", 10, 11)]),
        ("head -n 3 shop/long.py", [("matched", "shop/long.py", 1, 3)]),
        ("tail -n 4 shop/long.py", [("matched", "shop/long.py", 116, 119)]),
        ("cat -n shop/price.py", [("matched", "shop/price.py", 1, 9)]),
        ("cd shop && cat price.py", [("matched", "shop/price.py", 1, 9)]),
        ("grep -n 'function_7\\b' shop/*.py", [("matched", "shop/long.py", 19, 19)]),
        ("grep -n -A1 'function_7\\b' shop/long.py", [("matched", "shop/long.py", 19, 20)]),
        ("grep -rn 'function_7\\b' --include=*.py .", [("matched", "shop/long.py", 19, 19)]),
        ("ls; echo '=== it'; sed -n 2p shop/price.py; pwd", [("matched", "shop/price.py", 2, 2)]),
        (
            "echo A; sed -n 1,2p shop/price.py; echo B; cat shop/table.py",
            [("matched", "shop/price.py", 1, 2), ("matched", "shop/table.py", 1, 1)],
        ),
        ("git show v1:shop/price.py", [("matched", "shop/price.py", 1, 6)]),
        ("git diff HEAD~3 HEAD~2", [("matched", "shop/price.py", 2, 8)]),
        ("git show HEAD~2", [("matched", "shop/price.py", 2, 8)]),
    ],
)
def test_what_was_printed_is_found_at_its_lines(
    case: Case, repo: Repo, tmp_path: Path, command: str, expected: list[tuple[str, str, int, int]]
) -> None:
    assert take(case, tmp_path, recorded(repo, command)) == expected


def test_a_reading_is_of_the_commit_that_says_it(case: Case, repo: Repo, tmp_path: Path) -> None:
    old = sh(repo.path, "git show HEAD~1:shop/long.py | head -3")

    take(case, tmp_path, f"$ sed -n 1,3p ~/somewhere/shop/long.py\n{old}")

    (reading,) = case.store.readings()
    assert reading.rev == repo.git("rev-parse", "HEAD~1")
    assert reading.blob == repo.git("rev-parse", "HEAD~1:shop/long.py")
    assert reading.text == old.rstrip("\n")


def test_a_file_that_has_shifted_is_found_by_its_text(case: Case, repo: Repo, tmp_path: Path) -> None:
    shifted = sh(repo.path, "sed -n 4,8p shop/long.py")

    assert take(case, tmp_path, f"$ sed -n 104,108p shop/long.py\n{shifted}") == [("elsewhere", "shop/long.py", 4, 8)]
    assert "printed as lines 104-108" in case.store.readings()[0].note


def test_what_matches_nothing_is_kept_with_its_text(case: Case, tmp_path: Path) -> None:
    prompt = "root@gpu7:/srv#"
    log = f"{prompt} cat other.py\nx = 1\n{prompt} sed -n 1,2p shop/price.py\nan edit that\nnobody committed\n"
    edited = log.replace("nobody", "somebody")

    found = take(case, tmp_path, log) + take(case, tmp_path, edited)

    assert found[:2] == [("unmatched", "/srv/other.py", 1, 1), ("unmatched", "/srv/shop/price.py", 1, 2)]
    texts = [(reading.blob, reading.host, reading.text) for reading in case.store.readings()]
    assert texts == [
        ("", "root@gpu7", "x = 1"),
        ("", "root@gpu7", "an edit that\nnobody committed"),
        ("", "root@gpu7", "an edit that\nsomebody committed"),
    ]


def test_a_command_that_read_nothing_makes_no_reading(case: Case, tmp_path: Path) -> None:
    refused = "$ cat gone.py\ncat: gone.py: No such file or directory\n"
    log = f"{refused}$ sed -n 1,3p shop/price.py\n$ grep -n zzz shop/price.py\n"

    assert take(case, tmp_path, log) == []


def test_a_text_that_fits_two_files_is_matched_to_neither(case: Case, repo: Repo, tmp_path: Path) -> None:
    for folder in ("left", "right"):
        repo.write(f"{folder}/same.py", "def the_same_everywhere():\n    return 1\n")
    repo.commit("twins")
    case.close()

    with create_case(repo.path, "twins", "x") as twins:
        text = "def the_same_everywhere():\n    return 1\n"
        assert take(twins, tmp_path, f"$ cat same.py\n{text}$ cat left/same.py\n{text}") == [
            ("unmatched", "same.py", 1, 2),
            ("matched", "left/same.py", 1, 2),
        ]
        assert "fits several files: left/same.py, right/same.py" in twins.store.readings()[0].note


def test_cut_lines_and_an_output_that_ends_early_match_as_far_as_they_go(
    case: Case, repo: Repo, tmp_path: Path
) -> None:
    lines = sh(repo.path, "cat shop/long.py").split("\n")

    log = "\n".join(["$ cat shop/long.py", lines[0][:14] + "...", *lines[1:5], "[... 114 lines omitted ...]"])

    assert take(case, tmp_path, log) == [("matched", "shop/long.py", 1, 5)]
    assert "the output ends after 5 lines" in case.store.readings()[0].note


def test_ssh_names_the_host_and_the_option_the_rest(case: Case, repo: Repo, tmp_path: Path) -> None:
    inner = recorded(repo, "cat shop/table.py").partition("\n")[2]
    log = f"$ ssh -q root@gpu7 'cd /opt/till && cat shop/table.py'\n{inner}$ cat shop/table.py\n{inner}"

    take(case, tmp_path, log, host="desk")

    assert [reading.host for reading in case.store.readings()] == ["root@gpu7", "desk"]


def test_the_same_session_again_adds_nothing(case: Case, repo: Repo, tmp_path: Path) -> None:
    log = recorded(repo, "sed -n 4,6p shop/long.py") + "$ cat other.py\nx = 1\n"

    take(case, tmp_path, log)
    again = import_session(case, tmp_path / "session.log")

    assert len(case.store.readings()) == 2
    assert again.text.startswith(
        "2 commands, 2 looks at files: 2 readings (1 matched, 0 at other lines, 1 unmatched), 0 new"
    )


def test_a_dead_reading_says_so_from_the_runs_on_record(case: Case, repo: Repo, tmp_path: Path) -> None:
    with Bench(case, job_id=None) as bench:
        bench.run("suite", FULL)
    log = recorded(repo, "grep -n return shop/price.py")

    take(case, tmp_path, log)

    words = {r.start: case.store.reading_liveness(r.id)[-1].word for r in case.store.readings()}
    assert words == {5: "executed", 9: "not_seen"}
    with Bench(case, job_id=None) as bench:
        read_readings(Inquiry(case, bench), FULL)  # an investigation looks at them again, unmatched ones too


@given(st.binary(max_size=400))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_bytes_in_a_log_are_harmless(case: Case, tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "hostile.log"
    file.write_bytes(b"$ cat shop/price.py\n" + raw + b"\n$ grep -n x " + raw.replace(b"\n", b"") + b"\n1:" + raw)

    import_session(case, file)

    for reading in case.store.readings():
        assert "\x1b" not in reading.text + reading.path + reading.note


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_range_that_was_really_printed_is_found_again(
    case: Case, repo: Repo, tmp_path: Path, data: st.DataObject
) -> None:
    start = data.draw(st.integers(1, 119), label="start")
    end = data.draw(st.integers(start, 119), label="end")
    script = f"sed -n {start},{end}p shop/long.py"
    command = data.draw(
        st.sampled_from([script, f"ssh h {shlex.quote(script)}", f"head -n {end} shop/long.py | tail -n +{start}"])
    )
    shown = sh(repo.path, script)

    ((state, path, first, last),) = take(case, tmp_path, f"me@desk:~/till$ {command}\n{shown}") or [("", "", 0, 0)]

    if shown.strip():  # blank lines are no reading
        assert (state, path, first, last) == ("matched", "shop/long.py", start, end)


def test_the_session_that_ships_with_the_demo_is_what_its_commands_print(tmp_path: Path) -> None:
    demo = make_demo(tmp_path / "demo")
    log = (PATCHES / "session.log").read_text(encoding="utf-8")

    assert replay(log, demo) == log, "the engine has changed: `./run refresh-patches` writes the session anew"


def test_every_look_of_that_session_is_found_in_the_head_of_the_demo(tmp_path: Path) -> None:
    demo = make_demo(tmp_path / "demo")

    with create_case(demo, "recall", "x") as case:
        found = import_session(case, PATCHES / "session.log")

        assert {(one.state, one.reading.host) for one in found.readings} == {("matched", "root@gpu7")}
        assert "Fp8MoEMethod.apply" in {one.reading.qualname for one in found.readings}
        assert {one.reading.rev for one in found.readings} == {case.store.case().head}


@pytest.mark.e2e
def test_what_the_session_read_of_the_fp8_path_is_dead_and_names_what_ran(tmp_path: Path) -> None:
    with open_worked_case(tmp_path / "demo") as case:
        with Bench(case, job_id=None) as bench:
            bench.run("scaling", FULL)

        found = import_session(case, PATCHES / "session.log").readings

        assert not any(one.new for one in found)  # the worked case holds them already
        proofs = {(one.reading.path, one.reading.qualname): one.liveness for one in found if one.liveness is not None}
        dead = proofs["engine/methods/fp8.py", "Fp8MoEMethod.apply"]
        assert dead.word == "not_seen"
        assert dead.siblings[0]["qualname"] == "NvFp4MoEMethod.apply"
        assert proofs["engine/topk.py", "HashTopK.forward"].word == "executed"
