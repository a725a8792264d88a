"""The promise behind "dead": a patch that changes what a program does is never called dead."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.git import Git
from lab.live import patch_liveness
from store.models import ExecutedFile
from tests.lab.conftest import Repo
from tests.lab.recording import attempt, commit_patch

PROGRAM = """\
LIMIT = 3
out = []


def helper(x, step=1):
    y = x + step
    if y > LIMIT:
        y = y - 1
        out.append(y)
    else:
        y = y * 2
    return y


class Base:
    scale = 2

    def apply(self, x):
        return x * self.scale


class Fast(Base):
    scale = 5

    def apply(self, x):
        total = 0
        for i in range(x):
            if i == 2:
                continue
            total += i
        else:
            total += 1
        return total + super().apply(x)


class Unused(Base):
    def apply(self, x):
        out.append("unused")
        return x - 1


def dead(x):
    out.append("dead")
    return x


def main(flag):
    try:
        out.append(helper(1))
        out.append(helper(9))
        if flag:
            out.append(dead(1))
        elif LIMIT == 3:
            out.append(Fast().apply(4))
        value = int("no")
    except ValueError:
        out.append("caught")
        value = 0
    finally:
        out.append("done")
    while value < 2:
        value += 1
    out.append(value)
    return value


main(False)
"""

LINES = PROGRAM.split("\n")
Edit = tuple[str, int, int]
edits = st.lists(
    st.tuples(
        st.sampled_from(["cut", "twice", "swap", "number", "nest", "move", "pass"]),
        st.integers(0, 70),
        st.integers(0, 70),
    ),
    min_size=1,
    max_size=3,
)


def edited(plan: list[Edit]) -> str:
    lines = list(LINES)
    for what, at, to in plan:
        at %= len(lines) - 1
        to %= len(lines) - 1
        line = lines[at]
        indent = line[: len(line) - len(line.lstrip())]
        if what == "cut":
            del lines[at]
        elif what == "twice":
            lines.insert(at, line)
        elif what == "swap":
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
        elif what == "number":
            lines[at] = line.translate(str.maketrans("1234", "2345"))
        elif what == "nest":
            lines[at : at + 1] = [f"{indent}if LIMIT == 4:", f"    {line}"]
        elif what == "move":
            lines.insert(to, lines.pop(at))
        elif what == "pass":
            lines[at] = f"{indent}pass"
    return "\n".join(lines)


def run(text: str) -> tuple[Any, ExecutedFile]:
    """What a program does, and the lines and arcs a recorder sees of it."""
    lines: set[int] = set()
    arcs: set[tuple[int, int]] = set()
    last: dict[FrameType, int] = {}
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != "subject.py":
            return None
        steps += 1
        if steps > 3000:
            raise TimeoutError
        first = frame.f_code.co_firstlineno
        if event == "line":
            arcs.add((last.get(frame, -first), frame.f_lineno))
            lines.add(frame.f_lineno)
            last[frame] = frame.f_lineno
        elif event == "return":
            arcs.add((last.get(frame, -first), -first))
        return trace

    code: CodeType = compile(text, "subject.py", "exec")
    space: dict[str, Any] = {"__name__": "subject"}
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        exec(code, space)
        ended = "ended"
    except Exception as error:
        ended = type(error).__name__
    finally:
        sys.settrace(before)
    file = ExecutedFile(attempt_id=1, path="subject.py", sha256="", lines=tuple(lines), arcs=tuple(arcs))
    return (ended, [str(each) for each in space.get("out", [])]), file


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    repo = Repo(tmp_path_factory.mktemp("property"))
    repo.git("init", "--quiet")
    return repo


def commit(git: Git, text: str, *parents: str) -> str:
    blob = git.run("hash-object", "-w", "--stdin", stdin=text.encode())
    return git.commit_tree(git.run("mktree", stdin=f"100644 blob {blob}\tsubject.py\n".encode()), *parents)


@settings(max_examples=40, deadline=None)
@given(plan=edits)
def test_a_patch_that_changes_what_a_program_does_is_never_dead(scratch: Repo, plan: list[Edit]) -> None:
    text = edited(plan)
    try:
        compile(text, "subject.py", "exec")
    except SyntaxError:
        return
    git = Git(scratch.path)
    first = commit(git, PROGRAM)
    second = commit(git, text, first)
    did_before, _ = run(PROGRAM)
    did_after, seen_after = run(text)

    found = patch_liveness(
        git,
        commit_patch("p", second, git.diff(first, second)),
        tree=second,
        executed={"subject.py": seen_after},
        attempt=attempt(),
        run_id=1,
        trace=(".",),
    )

    # A program that ends in an error cannot be tested, and nothing is called dead there.
    if did_before != did_after and did_after[0] == "ended":
        assert not found.dead, found.why
