"""A session's text: what a terminal showed, which command printed it, what the command looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.session_looks import Look, Mark, Place, looks_of
from lab.session_steps import steps
from lab.session_text import MAX_BYTES, read_log, render
from store.errors import UsageError

CAST = '{"version": 2, "width": 80, "height": 24}'


def looks(command: str) -> list[tuple[object, ...]]:
    found = looks_of(command, Place())
    assert all(isinstance(one, Look) for one in found)
    return [(one.path, one.start, one.end) for one in found if isinstance(one, Look)]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;32mgreen\x1b[0m", "green"),
        ("\x1b]0;a title\x07$ ls\r", "$ ls"),
        ("lss\b\x1b[K -l", "ls -l"),
        ("50%\r100%", "100%"),
        ("abc\x1b[2D\x1b[Pd", "ad"),
        ("a\x00b\x9bc\x7f", "abc"),
        ("\x1b[?2004h$ echo", "$ echo"),
        ("before\x1b[?1049hvim's screen\x1b[?1049lafter", "beforeafter"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_escape_sequences_edit_the_line_or_vanish(raw: str, shown: str) -> None:
    assert render(raw) == [shown]


def test_a_screen_that_never_ends_hides_the_rest() -> None:
    assert render("one\n\x1b[?1049htwo\nthree") == ["one"]


def test_an_asciicast_is_read_by_its_output_events(tmp_path: Path) -> None:
    events = [[0.1, "o", "$ cat a\r\n"], [0.2, "i", "x"], [0.3, "o", "\x1b[31mred\x1b[0m\r\n"], [0.4, "o", "\ud800"]]
    file = tmp_path / "s.cast"
    file.write_text("\n".join([CAST, *map(json.dumps, events), "not json", "[1]", '{"a": 1}']))

    log = read_log(file)

    assert log.form == "asciicast"
    assert log.lines == ("$ cat a", "red", "?")
    assert log.notes == ("3 lines of the asciicast could not be read",)


def test_another_version_of_asciicast_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "s.cast").write_text('{"version": 1, "stdout": []}')

    with pytest.raises(UsageError, match="version 1") as caught:
        read_log(tmp_path / "s.cast")

    assert "convert" in caught.value.hint


def test_a_huge_log_is_cut_and_says_so(tmp_path: Path) -> None:
    with (tmp_path / "huge.log").open("wb") as file:
        file.write(b"$ cat a\n")
        file.truncate(MAX_BYTES + 10)

    log = read_log(tmp_path / "huge.log")

    assert log.lines[0] == "$ cat a"
    assert log.notes == (f"only the first {MAX_BYTES} bytes were read",)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.log cannot be read: No such file"):
        read_log(tmp_path / "nowhere.log")


def test_a_comment_in_a_printed_file_is_no_prompt() -> None:
    (step,) = steps(("dev@desk:~/x$ cat a.py", "# T tokens, D model dim.", "$ pip install x", "x = 1"))

    assert step.output == ("# T tokens, D model dim.", "$ pip install x", "x = 1")
    assert (step.host, step.folder) == ("dev@desk", "~/x")


def test_a_bare_root_prompt_needs_a_command_that_is_known() -> None:
    first, second = steps(("# cat a.py", "# T tokens", "# grep -n x a.py", "1:x"))

    assert first.output == ("# T tokens",)
    assert second.command == "grep -n x a.py"


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (("$ ssh h 'cd x", "sed -n 1p a'", "out"), "ssh h 'cd x\nsed -n 1p a'"),
        (("$ cat a \\", "> b", "out"), "cat a \\\nb"),
        (("$ echo it's", "out"), "echo it's"),
        (("(venv) $ cat a # don't", "out"), "cat a # don't"),
        (("[root@gpu7 src]# cat a", "out"), "cat a"),
    ],
)
def test_a_command_goes_on_while_a_quote_is_open(lines: tuple[str, ...], command: str) -> None:
    (step,) = steps(lines)

    assert step.command == command
    assert step.output[-1:] == ("out",)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sed -n 3,9p a.py", [("a.py", 3, 9)]),
        ("sed -n '3,9p;20p' a.py b.py", [("a.py", 3, 9), ("a.py", 20, 20), ("b.py", 3, 9), ("b.py", 20, 20)]),
        ('sed -n -e "3,+2p" -e "9,$p" a.py', [("a.py", 3, 5), ("a.py", 9, None)]),
        ("head -n 5 a.py; head -7 b.py; head c.py", [("a.py", 1, 5), ("b.py", 1, 7), ("c.py", 1, 10)]),
        ("cat a.py | sed -n 10,20p | head -3", [("a.py", 10, 12)]),
        ("nl -ba a.py | sed -n 5,6p", [("a.py", 5, 6)]),
        ("tail -n +30 a.py", [("a.py", 30, None)]),
        ("git show v1:x/a.py | head -4", [("x/a.py", 1, 4)]),
        ("sudo cat a.py && timeout 5 cat b.py", [("a.py", 1, None), ("b.py", 1, None)]),
        ("docker exec -it box bash -c 'sed -n 1,2p /app/a.py'", [("/app/a.py", 1, 2)]),
        ("grep -n x a.py", [("a.py", 1, None)]),
        ("grep -rnE 'x|y' -A 3 lib | head", [("lib", 1, None)]),
        ("cat a.py | grep -n x", [("a.py", 1, None)]),
    ],
)
def test_commands_that_print_lines_are_looks(command: str, expected: list[tuple[object, ...]]) -> None:
    assert looks(command) == expected


@pytest.mark.parametrize(
    "command",
    [
        *("wc -l a.py", "sed s/a/b/ a.py", "sed -n /x/p a.py", "head -c 9 a.py", "grep x a.py", "grep -nc x a.py"),
        *(
            "cat a.py | sort",
            "cat a.py | wc -l",
            "python a.py",
            "git status",
            "ls -l",
            "",
            "|",
            "'",
            "ssh",
            "sed",
            "git",
        ),
    ],
)
def test_commands_that_print_something_else_are_none(command: str) -> None:
    assert looks(command) == []


def test_ssh_and_cd_say_where_the_lines_are() -> None:
    mark, look = looks_of("ssh -p 22 root@gpu7 'cd ~/src\necho \"=== a ===\"; cat lib/a.py' 2>&1", Place(folder="here"))

    assert mark == Mark(text="=== a ===")
    assert isinstance(look, Look)
    assert (look.host, look.where, look.command) == ("root@gpu7", "~/src/lib/a.py", "cat lib/a.py")


def test_an_open_ssh_moves_the_shell_until_exit() -> None:
    place = Place(host="desk", folder="x")
    looks_of("ssh gpu7", place)
    assert (place.host, place.folder) == ("gpu7", "")
    looks_of("exit", place)
    assert place.host == ""


@given(st.text(alphabet=st.sampled_from("sedcatghlnp -'\"\\|;&\n$(){}<>#/:,0123456789.\x1b\r\b[K@"), max_size=200))
@settings(max_examples=150, deadline=None)
def test_no_text_breaks_the_reader(text: str) -> None:
    lines = tuple(render(f"$ {text}\n$ ssh h '{text}'\n{text}"))

    for step in steps(lines):
        for one in looks_of(step.command, Place()):
            assert isinstance(one, Mark) or one.start >= 1
