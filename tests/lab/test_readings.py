"""Readings: how they are written, what they hold, and how they are found again."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.git import Git
from lab.readings import Spec, freshness, make_reading, parse_spec
from store.errors import RepoError, UsageError
from store.models import Reading
from tests.lab.conftest import Repo

FILE = """\
import math


class Fp8Method:
    def apply(self, x):
        y = x * 2
        return y


def area(radius):
    return math.pi * radius ** 2
"""


@pytest.fixture
def read(repo: Repo) -> Reading:
    """The body of `Fp8Method.apply`."""
    repo.write("engine/methods.py", FILE)
    repo.commit("first")
    return make_reading(Git(repo.path), "engine/methods.py:5-7", "looked at")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a/b.py", Spec(path="a/b.py")),
        ("a/b.py:3", Spec(path="a/b.py", start=3, end=3)),
        ("a/b.py:3-9", Spec(path="a/b.py", start=3, end=9)),
        ("a/b.py:3-9@v1", Spec(path="a/b.py", start=3, end=9, rev="v1")),
        ("a/b.py@HEAD~2", Spec(path="a/b.py", rev="HEAD~2")),
        ("a/b.py:3@HEAD@{1}", Spec(path="a/b.py", start=3, end=3, rev="HEAD@{1}")),
        ("gpu1:a/b.py:3-9", Spec(path="a/b.py", host="gpu1", start=3, end=9)),
        ("root@gpu1:a/b.py", Spec(path="a/b.py", host="root@gpu1")),
        ("root@gpu1:a/b.py:3-9@v1", Spec(path="a/b.py", host="root@gpu1", start=3, end=9, rev="v1")),
    ],
)
def test_specs_are_read(text: str, spec: Spec) -> None:
    assert parse_spec(text) == spec


@pytest.mark.parametrize("text", ["", ":3-4", "a.py:9-3", "a.py:0", "host:"])
def test_specs_without_lines_of_a_file_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no lines"):
        parse_spec(text)


def test_a_reading_holds_commit_blob_text_and_qualified_name(repo: Repo, read: Reading) -> None:
    text = "    def apply(self, x):\n        y = x * 2\n        return y"

    assert (read.path, read.start, read.end, read.qualname) == ("engine/methods.py", 5, 7, "Fp8Method.apply")
    assert (read.rev, read.blob) == (repo.git("rev-parse", "HEAD"), repo.git("rev-parse", "HEAD:engine/methods.py"))
    assert (read.text, read.text_sha256) == (text, hashlib.sha256(text.encode()).hexdigest())
    assert read.note == "looked at"


def test_a_reading_takes_an_absolute_path_inside_the_repository(repo: Repo, read: Reading) -> None:
    git = Git(repo.path)

    assert make_reading(git, f"{repo.path}/engine/methods.py:5-7").path == read.path
    with pytest.raises(UsageError, match="outside"):
        make_reading(git, "/etc/hostname")


def test_a_whole_file_is_a_reading(repo: Repo, read: Reading) -> None:
    found = make_reading(Git(repo.path), "engine/methods.py")

    assert (found.start, found.end, found.text) == (1, 11, FILE.removesuffix("\n"))


def test_a_wrong_path_names_the_nearest(repo: Repo, read: Reading) -> None:
    with pytest.raises(UsageError, match=r"no file methods\.py") as error:
        make_reading(Git(repo.path), "methods.py:5")

    assert "engine/methods.py" in error.value.hint


def test_lines_beyond_the_end_say_how_many_there_are(repo: Repo, read: Reading) -> None:
    with pytest.raises(UsageError, match="has 11 lines"):
        make_reading(Git(repo.path), "engine/methods.py:10-12")


def test_folders_binaries_and_unknown_commits_are_refused(repo: Repo, read: Reading) -> None:
    (repo.path / "data.bin").write_bytes(b"\0\1")
    repo.commit("binary")
    git = Git(repo.path)

    with pytest.raises(UsageError, match="no file engine "):
        make_reading(git, "engine")
    with pytest.raises(UsageError, match="no text"):
        make_reading(git, "data.bin:1")
    with pytest.raises(RepoError, match="no commit `nowhere`"):
        make_reading(git, "engine/methods.py:5@nowhere")


def test_an_untouched_file_is_fresh(repo: Repo, read: Reading) -> None:
    repo.write("other.py", "x = 1\n")
    repo.commit("other")

    assert freshness(Git(repo.path), read, "HEAD").state == "fresh"


def test_lines_below_the_reading_leave_it_fresh(repo: Repo, read: Reading) -> None:
    repo.write("engine/methods.py", FILE + "\nLIMIT = 1\n")
    repo.commit("below")

    found = freshness(Git(repo.path), read, "HEAD")
    assert (found.state, found.start, found.end) == ("fresh", 5, 7)


def test_lines_above_move_it(repo: Repo, read: Reading) -> None:
    repo.write("engine/methods.py", FILE.replace("import math\n", "import math\nimport sys\nimport re\n"))
    repo.commit("above")

    found = freshness(Git(repo.path), read, "HEAD")
    assert (found.state, found.start, found.end) == ("moved", 7, 9)


def test_a_rename_moves_it(repo: Repo, read: Reading) -> None:
    repo.git("mv", "engine/methods.py", "engine/fp8.py")
    repo.write("engine/fp8.py", "# head\n" + FILE)
    repo.commit("renamed")

    found = freshness(Git(repo.path), read, "HEAD")
    assert (found.state, found.path, found.start) == ("moved", "engine/fp8.py", 6)
    assert "renamed" in found.reason


def test_an_edit_changes_it_and_says_where(repo: Repo, read: Reading) -> None:
    repo.write("engine/methods.py", "# head\n" + FILE.replace("x * 2", "x * 3"))
    repo.commit("edited")

    found = freshness(Git(repo.path), read, "HEAD")
    assert (found.state, found.start, found.end) == ("changed", 6, 8)


def test_a_line_inserted_inside_changes_it(repo: Repo, read: Reading) -> None:
    repo.write("engine/methods.py", FILE.replace("        return y\n", "        y += 1\n        return y\n"))
    repo.commit("inserted")

    found = freshness(Git(repo.path), read, "HEAD")
    assert (found.state, found.start, found.end) == ("changed", 5, 8)


def test_a_removed_definition_is_gone(repo: Repo, read: Reading) -> None:
    repo.write("engine/methods.py", FILE[FILE.index("def area") :])
    repo.commit("removed")

    found = freshness(Git(repo.path), read, "HEAD")
    assert found.state == "gone"
    assert "`Fp8Method.apply` is no longer" in found.reason


def test_a_removed_file_is_gone(repo: Repo, read: Reading) -> None:
    repo.git("rm", "--quiet", "engine/methods.py")
    repo.commit("removed")

    assert freshness(Git(repo.path), read, "HEAD").state == "gone"


def test_text_that_went_to_another_file_is_found_there(repo: Repo, read: Reading) -> None:
    repo.git("rm", "--quiet", "engine/methods.py")
    repo.write("engine/split.py", "import os\n\n\n" + FILE[FILE.index("class") : FILE.index("\n\ndef area")])
    repo.commit("split")

    found = freshness(Git(repo.path), read, "HEAD")
    assert (found.state, found.path, found.start) == ("moved", "engine/split.py", 5)


def test_a_reading_survives_a_rebase_that_drops_its_commit(repo: Repo, read: Reading) -> None:
    repo.git("checkout", "--quiet", "--orphan", "fresh")
    repo.write("engine/methods.py", "# a new history\n" + FILE)
    repo.commit("rebased")
    repo.git("branch", "--quiet", "-D", "main")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "--quiet", "--prune=now")
    git = Git(repo.path)
    with pytest.raises(RepoError):
        git.commit(read.rev)

    found = freshness(git, read, "HEAD")

    assert (found.state, found.start, found.end) == ("moved", 6, 8)


def test_text_that_stands_twice_is_not_guessed(repo: Repo, read: Reading) -> None:
    twice = replace(read, blob="0" * 40, text="        return y", start=9, end=9, qualname="Fp8Method.apply")
    repo.write("engine/methods.py", FILE.replace("def area", "def other(self):\n        return y\n\n\ndef area"))
    repo.commit("twice")

    found = freshness(Git(repo.path), twice, "HEAD")
    assert (found.state, found.start, found.end) == ("changed", 5, 7)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    repo = Repo(tmp_path_factory.mktemp("scratch"))
    repo.git("init", "--quiet")
    return repo


@settings(max_examples=20, deadline=None)
@given(
    edits=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=6),
    start=st.integers(1, 18),
    length=st.integers(0, 3),
)
def test_where_a_reading_is_found_unchanged_its_text_stands(
    scratch: Repo, edits: list[tuple[bool, int]], start: int, length: int
) -> None:
    git = Git(scratch.path)
    before = [f"value_{n} = {n // 2}" for n in range(20)]
    after = list(before)
    for number, (insert, at) in enumerate(edits):
        if insert:
            after.insert(at % (len(after) + 1), f"new_{number} = 1")
        elif after:
            after.pop(at % len(after))
    trees = []
    for lines in (before, after):
        blob = git.run("hash-object", "-w", "--stdin", stdin="".join(f"{line}\n" for line in lines).encode())
        trees.append(git.run("mktree", stdin=f"100644 blob {blob}\tm.py\n".encode()))
    end = min(start + length, 20)
    reading = make_reading(git, f"m.py:{start}-{end}@{git.commit_tree(trees[0])}")

    found = freshness(git, reading, trees[1])

    whole = [line for line in before[start - 1 : end] if line in after]
    kept = whole == before[start - 1 : end] and "\n".join(whole) in "\n".join(after)
    assert (found.state in ("fresh", "moved")) == kept
    if kept:
        assert "\n".join(after[found.start - 1 : found.end]) == reading.text
        assert (found.state == "fresh") == (found.start == reading.start)
