"""Diffs read into hunks, and lines carried across them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.git import Git
from lab.hunks import Hunk, blob_hunks, map_line, map_range, parse_diff
from tests.lab.conftest import Repo

line_lists = st.lists(st.sampled_from(["a", "b", "c", "", "-- x", "++ y", "@@ -1 +1 @@", "\\ z"]), max_size=14)


@settings(max_examples=40, deadline=None)
@given(old=line_lists, new=line_lists)
def test_every_untouched_line_is_found_again_with_its_text(tmp_path_factory, old: list[str], new: list[str]) -> None:
    git = shared_git(tmp_path_factory)
    texts = ["".join(f"{line}\n" for line in lines) for lines in (old, new)]
    blobs = [git.run("hash-object", "-w", "--stdin", stdin=text.encode()) for text in texts]

    hunks = blob_hunks(git, blobs[0], blobs[1])

    touched = {line for hunk in hunks for line in hunk.old_lines}
    for line in range(1, len(old) + 1):
        there = map_line(hunks, line)
        assert (there is None) == (line in touched)
        if there is not None:
            assert new[there - 1] == old[line - 1]
    rebuilt = list(old)
    for hunk in reversed(hunks):
        at = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        rebuilt[at : at + hunk.old_count] = hunk.added
    assert rebuilt == new


_GITS: dict[str, Git] = {}


def shared_git(factory) -> Git:  # type: ignore[no-untyped-def]
    if "git" not in _GITS:
        repo = Repo(factory.mktemp("hunks"))
        repo.git("init", "--quiet")
        _GITS["git"] = Git(repo.path)
    return _GITS["git"]


def test_a_range_is_found_only_if_nothing_inside_it_changed() -> None:
    inserted = [Hunk(old_start=2, old_count=0, new_start=3, new_count=2)]

    assert map_range(inserted, 1, 2) == (1, 2)
    assert map_range(inserted, 3, 5) == (5, 7)
    assert map_range(inserted, 2, 3) is None


def test_a_removal_and_an_insertion_inside_a_range_do_not_cancel_out() -> None:
    hunks = [
        Hunk(old_start=3, old_count=1, new_start=2, new_count=0),
        Hunk(old_start=5, old_count=0, new_start=5, new_count=1),
    ]

    assert map_range(hunks, 2, 6) is None


def test_paths_with_blanks_quotes_and_other_scripts_are_read(repo: Repo) -> None:
    names = ["a b.py", 'q"uote.py', "größe.py", "tab\there.py"]
    repo.write("old.py", "x = 1\n")
    first = repo.commit("first")
    for name in names:
        repo.write(name, "y = 2\n")
    second = repo.commit("second")

    files = parse_diff(Git(repo.path).diff(first, second, context=0))

    assert sorted(file.path for file in files) == sorted(names)
    assert all(file.old_path is None for file in files)


def test_modes_binaries_and_renames_are_named(repo: Repo) -> None:
    repo.write("tool.py", "x = 1\n")
    (repo.path / "data.bin").write_bytes(b"\0\1\2")
    repo.write("name.py", "".join(f"line_{n} = {n}\n" for n in range(20)))
    first = repo.commit("first")
    (repo.path / "tool.py").chmod(0o755)
    (repo.path / "data.bin").write_bytes(b"\0\1\3")
    repo.git("mv", "name.py", "other.py")
    second = repo.commit("second")

    files = {file.path: file for file in parse_diff(Git(repo.path).diff(first, second, context=0, renames=True))}

    assert files["tool.py"].special == "file mode 100755"
    assert files["data.bin"].special == "binary file"
    assert (files["other.py"].old_path, files["other.py"].hunks) == ("name.py", [])
