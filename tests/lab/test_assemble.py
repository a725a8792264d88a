from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.assemble import Assembler, DoesNotApply
from lab.git import Git
from lab.patches import all_patches
from lab.target import Target
from store.errors import PatchError
from tests.lab.conftest import Repo, make_repo


def test_all_commits_in_order_give_the_tree_of_head_and_none_that_of_base(foreign_repo: Repo, git: Git) -> None:
    patches = all_patches(foreign_repo.target, git)
    assembler = Assembler(git, "v1", patches)

    assert assembler.assemble([patch.name for patch in patches]).tree == git.tree("main")
    assert assembler.assemble([]).tree == git.tree("v1")


def test_names_are_put_in_the_order_of_the_stack(foreign_repo: Repo, git: Git) -> None:
    assembler = Assembler(git, "v1", all_patches(foreign_repo.target, git))

    assert assembler.assemble(["round-rarely", "add-a-discount-table"]).names == (
        "add-a-discount-table",
        "round-rarely",
    )


def test_a_subset_is_what_a_person_would_get_by_cherry_picking(foreign_repo: Repo, git: Git) -> None:
    assembler = Assembler(git, "v1", all_patches(foreign_repo.target, git))
    foreign_repo.git("checkout", "--quiet", "--detach", "v1")
    foreign_repo.git("cherry-pick", "main~1")

    assert assembler.assemble(["round-rarely"]).tree == git.tree(foreign_repo.git("rev-parse", "HEAD"))


def test_a_patch_that_does_not_apply_names_itself_its_ground_and_the_files(foreign_repo: Repo, git: Git) -> None:
    assembler = Assembler(git, "v1", all_patches(foreign_repo.target, git))

    for _ in range(2):  # the second comes from memory
        with pytest.raises(DoesNotApply) as caught:
            assembler.assemble(["charge-four", "round-rarely"])
        assert (caught.value.patch, caught.value.against) == ("charge-four", ("round-rarely",))
        assert caught.value.files == ("shop/price.py",)
    with pytest.raises(PatchError, match="no patch `nope`"):
        assembler.assemble(["nope"])


def test_every_subset_of_files_equals_that_of_the_commits_they_were_made_from(foreign_repo: Repo, git: Git) -> None:
    commits = all_patches(foreign_repo.target, git)
    foreign_repo.git("format-patch", "--quiet", "--full-index", "-o", "series", "v1..main")
    names = [patch.name for patch in commits]
    files = [replace(patch, kind="file", commit=None) for patch in commits]
    by_commit, by_file = Assembler(git, "v1", commits), Assembler(git, "v1", files)

    agreed = 0
    for size in range(len(names) + 1):
        for subset in itertools.combinations(names, size):
            try:
                expected = by_commit.assemble(subset).tree
            except DoesNotApply:
                with pytest.raises(DoesNotApply):
                    by_file.assemble(subset)
                continue
            assert by_file.assemble(subset).tree == expected
            agreed += 1
    assert agreed == 12  # charge-four needs read-the-table


def test_a_file_from_another_repository_applies_without_its_blobs(foreign_repo: Repo, git: Git) -> None:
    patch = all_patches(foreign_repo.target, git)[2]
    elsewhere = replace(patch, kind="file", commit=None, diff=patch.diff.replace("index ", "index 1234"))

    assembled = Assembler(git, "v1", [elsewhere]).assemble(["round-rarely"])

    assert b"round(amount - 1)" in (git.read(assembled.tree, "shop/price.py") or b"")


def test_a_file_written_against_base_is_merged_onto_a_changed_context(repo: Repo) -> None:
    lines = [f"line {number}\n" for number in range(12)]
    repo.write("a.txt", "".join(lines))
    repo.commit("first")
    repo.git("tag", "v1")
    repo.write("a.txt", "".join(["changed 3\n" if line == "line 3\n" else line for line in lines]))
    repo.commit("a: third")
    git = Git(repo.path)
    repo.git("checkout", "--quiet", "-b", "fix", "v1")
    repo.write("a.txt", "".join(["fixed 5\n" if line == "line 5\n" else line for line in lines]))
    repo.commit("a: fix")
    # Blob ids that nobody has: only the way over the base tree is left.
    unknown = git.diff("v1", "fix").replace(repo.git("rev-parse", "v1:a.txt"), "12" * 20)
    commits = all_patches(plain_stack(repo), git)
    fix = replace(commits[0], name="fix", role="candidate", kind="file", commit=None, diff=unknown)

    assembled = Assembler(git, "v1", [*commits, fix]).assemble(["third", "fix"])

    text = (git.read(assembled.tree, "a.txt") or b"").decode()
    assert "changed 3" in text
    assert "fixed 5" in text


def plain_stack(repo: Repo) -> Target:
    """The target v1..main of a repository."""
    repo.git("checkout", "--quiet", "main")
    repo.write("livepath.toml", 'schema = 1\n[target]\nbase = "v1"\nhead = "main"\n[probe.p]\ncommand = "true"\n')
    return repo.target


def test_modes_binaries_line_ends_and_deletions_survive(repo: Repo) -> None:
    repo.write("keep.txt", "k\n")
    repo.write("gone.txt", "g\n")
    (repo.path / "data.bin").write_bytes(bytes(range(256)))
    repo.commit("first")
    repo.git("tag", "v1")
    (repo.path / "gone.txt").unlink()
    (repo.path / "data.bin").write_bytes(bytes(reversed(range(256))))
    repo.write("run.sh", "#!/bin/sh\n").chmod(0o755)
    repo.write("crlf.txt", "a\r\nb\r\n")
    repo.commit("all: of it")
    target = plain_stack(repo)
    git = Git(repo.path)
    commits = all_patches(target, git)
    files = [replace(commits[0], kind="file", commit=None)]

    assert Assembler(git, "v1", files).assemble(["of-it"]).tree == git.tree("main")


@settings(max_examples=8, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.sampled_from(["a.txt", "b/c.txt"]), st.integers(0, 11), st.text("xyz", max_size=3)),
        min_size=1,
        max_size=5,
    )
)
def test_any_straight_stack_is_its_head_as_commits_and_as_files(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, int, str]]
) -> None:
    repo = make_repo(tmp_path_factory.mktemp("r") / "repo")
    texts = {name: [f"{name} {number}\n" for number in range(12)] for name in ("a.txt", "b/c.txt")}
    for name, lines in texts.items():
        repo.write(name, "".join(lines))
    repo.commit("first")
    repo.git("tag", "v1")
    for number, (name, at, word) in enumerate(edits):
        texts[name][at] = f"{word} {number}\n"
        repo.write(name, "".join(texts[name]))
        repo.commit(f"all: edit {number}")
    git = Git(repo.path)
    commits = all_patches(plain_stack(repo), git)
    names = [patch.name for patch in commits]
    files = [replace(patch, kind="file", commit=None) for patch in commits]

    assert Assembler(git, "v1", commits).assemble(names).tree == git.tree("main")
    assert Assembler(git, "v1", files).assemble(reversed(names)).tree == git.tree("main")


def test_flags_are_off_unless_chosen(foreign_repo: Repo, git: Git) -> None:
    target = replace(foreign_repo.target, flags={"FAST": ("0", "1"), "SAFE": ("a=b:c", "d=e:f")})
    assembler = Assembler(git, "v1", all_patches(target, git))

    assert assembler.assemble([]).env == {"FAST": "0", "SAFE": "a=b:c"}
    chosen = assembler.assemble(["SAFE=d=e-f", "round-rarely"])
    assert chosen.env == {"FAST": "0", "SAFE": "d=e:f"}
    assert chosen.tree == assembler.assemble(["round-rarely"]).tree


def test_assembling_leaves_the_repository_as_it_was(foreign_repo: Repo, git: Git) -> None:
    foreign_repo.write("shop/price.py", "work in progress\n")
    before = [foreign_repo.git(*words.split()) for words in ("status --porcelain", "for-each-ref", "stash list")]

    Assembler(git, "v1", all_patches(foreign_repo.target, git)).assemble(["round-rarely"])

    after = [foreign_repo.git(*words.split()) for words in ("status --porcelain", "for-each-ref", "stash list")]
    assert after == before
    assert (foreign_repo.path / "shop/price.py").read_text() == "work in progress\n"
