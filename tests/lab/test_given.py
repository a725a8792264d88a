"""What makes lines dead: patches, the machine, or a condition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.callers import Stop, find_stops
from lab.git import Git
from lab.given import machine_reason, patches_given
from lab.live import patch_liveness
from tests.lab.conftest import Repo
from tests.lab.recording import attempt, commit_patch, record, seen

DISPATCH = """\
def pick(device):
    if device == "cuda":
        return "triton"
    return "reference"


def scores(x, device):
    how = pick(device)
    if how == "triton":
        from kernels import index

        return index.scores(x)
    return x
"""


MAIN = """\
import sys
from kernels.dispatch import scores


def serve(fast):
    if not fast:
        return slow()
    return quick()


def slow():
    return scores(1, "cpu")


def quick():
    return 1


serve(False)
"""


@pytest.fixture
def made(repo: Repo) -> Repo:
    repo.write("kernels/__init__.py", "")
    repo.write("kernels/dispatch.py", DISPATCH)
    repo.write("kernels/index.py", "def scores(x):\n    return launch(x)\n\n\ndef launch(x):\n    return x * 2\n")
    repo.write("main.py", MAIN)
    repo.commit("base")
    return repo


def stops(repo: Repo, path: str, line: int) -> tuple[Stop, ...]:
    git = Git(repo.path)
    return find_stops(git, git.tree("HEAD"), seen(record(repo.path, "main.py")), path, line)


def test_a_patch_that_was_there_when_the_lines_ran_is_no_cause() -> None:
    dead = frozenset({"hash", "nvfp4", "mhc", "guard"})

    assert patches_given(dead, [frozenset({"guard"}), frozenset({"guard", "mhc"}), frozenset({"guard", "hash"})]) == (
        "nvfp4",
    )


def test_several_patches_are_named_where_the_runs_do_not_tell_them_apart() -> None:
    assert patches_given(frozenset({"a", "b", "p"}), [frozenset({"p"})]) == ("a", "b")


def test_where_every_patch_is_cleared_by_itself_the_smallest_difference_is_named() -> None:
    dead = frozenset({"a", "b", "p"})

    assert patches_given(dead, [frozenset({"a", "p"}), frozenset({"b"})]) == ("b",)


def test_no_patch_is_named_without_a_run_in_which_the_lines_were_live() -> None:
    assert patches_given(frozenset({"a"}), []) == ()


names = st.frozensets(st.sampled_from("abcde"))


@settings(max_examples=60, deadline=None)
@given(dead=names, live=st.lists(names, max_size=4))
def test_only_patches_of_the_dead_run_are_named(dead: frozenset[str], live: list[frozenset[str]]) -> None:
    named = patches_given(dead, live)

    assert set(named) <= dead
    assert not (live and named) or any(set(named) & (dead - each) for each in live)


def test_a_line_in_an_entered_function_is_stopped_by_its_own_condition(made: Repo) -> None:
    assert stops(made, "kernels/dispatch.py", 12) == (
        Stop(path="kernels/dispatch.py", line=9, text='if how == "triton":'),
    )


def test_a_module_nobody_loaded_is_followed_up_to_the_condition_before_its_import(made: Repo) -> None:
    assert stops(made, "kernels/index.py", 6) == (Stop(path="kernels/dispatch.py", line=9, text='if how == "triton":'),)


def test_a_function_nobody_called_is_followed_up_to_the_early_exit_before_its_call(made: Repo) -> None:
    assert stops(made, "main.py", 16) == (Stop(path="main.py", line=6, text="if not fast:"),)


def test_code_nobody_names_has_no_stop(made: Repo) -> None:
    made.write("kernels/lost.py", "def forgotten():\n    return 1\n")
    made.commit("lost")

    assert stops(made, "kernels/lost.py", 2) == ()


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"given": ["no GPU"]}, ("no GPU",)),
        ({"given": []}, ('kernels/dispatch.py:9 if how == "triton":',)),
    ],
)
def test_the_machine_is_named_only_where_it_lacks_what_the_condition_asks_for(
    made: Repo, facts: dict[str, list[str]], expected: tuple[str, ...]
) -> None:
    made.write("kernels/index.py", "def scores(x):\n    return launch(x) + 1\n\n\ndef launch(x):\n    return x * 2\n")
    commit = made.commit("kernel")
    git = Git(made.path)
    patch = commit_patch("kernel", commit, git.diff("HEAD^", "HEAD"))
    live = patch_liveness(
        git,
        patch,
        tree=git.tree("HEAD"),
        executed=record(made.path, "main.py"),
        attempt=attempt(),
        run_id=1,
        trace=("kernels",),
    )

    given_, reason = machine_reason(git, git.tree("HEAD"), live, facts)

    assert live.dead
    assert given_ == expected
    assert "kernels/dispatch.py:9" in reason
