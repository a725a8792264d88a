from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.git import Git
from lab.patches import all_patches, find_patch, slug
from store.errors import PatchError, TargetError
from tests.lab.conftest import Repo

ZOO = """\
[probe.suite]
command = "true"
controls = { scaling = "zoo/a.patch", mixing = "zoo/a.patch" }
[probe.other]
command = "true"
controls = { scaling = "zoo/a.patch" }
"""


def with_files(foreign_repo: Repo) -> Repo:
    """The foreign repo with a stack file, a candidate, a control and a flag, all uncommitted."""
    diff = foreign_repo.git("diff", "--full-index", "main", "v1") + "\n"
    for name in ("more/01-back.patch", "fix/cure.patch", "zoo/a.patch"):
        foreign_repo.write(name, f"From: A\nSubject: [PATCH 1/2] shop: go\n back\n\nWhy.\n---\n\n{diff}-- \n2.39\n")
    text = (foreign_repo.path / "livepath.toml").read_text()
    more = 'patches = ["more/*.patch"]\ncandidates = ["fix/*.patch"]\nflags = { FAST = ["0", "1"] }\n'
    foreign_repo.write("livepath.toml", text.partition("[probe")[0] + more + ZOO)
    return foreign_repo


def test_a_stack_is_commits_then_files_then_flags(foreign_repo: Repo) -> None:
    repo = with_files(foreign_repo)

    patches = all_patches(repo.target, Git(repo.path))

    assert [(p.role, p.kind, p.name, p.position) for p in patches] == [
        ("stack", "commit", "add-a-discount-table", 0),
        ("stack", "commit", "read-the-table", 1),
        ("stack", "commit", "round-rarely", 2),
        ("stack", "commit", "charge-four", 3),
        ("stack", "file", "back", 4),
        ("stack", "flag", "FAST=1", 5),
        ("candidate", "file", "cure", 0),
        ("control", "file", "a", 0),
    ]
    assert patches[4].subject == "shop: go back"
    assert patches[4].diff.startswith("diff --git ")
    assert (patches[4].source, patches[5].source, patches[5].patch_id) == (
        "more/01-back.patch",
        "FAST=0:1",
        "flag:FAST=1",
    )
    assert patches[7].suspected == ("scaling", "mixing")


def test_a_commit_and_the_file_of_its_diff_have_one_identity(foreign_repo: Repo) -> None:
    diff = foreign_repo.git("format-patch", "-1", "--stdout", "main") + "\n"
    foreign_repo.write("fix/9-again.patch", diff)
    target = replace(foreign_repo.target, candidates=("fix/*.patch",))

    patches = all_patches(target, Git(foreign_repo.path))

    assert patches[-1].name == "again"
    assert patches[-1].patch_id == patches[3].patch_id


def test_the_identity_survives_a_rebase(foreign_repo: Repo) -> None:
    before = {p.name: p.patch_id for p in all_patches(foreign_repo.target, Git(foreign_repo.path))}
    foreign_repo.git("checkout", "--quiet", "-b", "newbase", "v1")
    foreign_repo.write("README", "new\n")
    foreign_repo.commit("readme")
    foreign_repo.git("rebase", "--quiet", "newbase", "main")

    after = all_patches(replace(foreign_repo.target, base="newbase"), Git(foreign_repo.path))

    assert {p.name: p.patch_id for p in after} == before


def test_a_repo_that_is_not_the_root_of_its_work_tree_is_refused(foreign_repo: Repo) -> None:
    target = replace(foreign_repo.target, repo=foreign_repo.path / "shop")

    with pytest.raises(TargetError, match="expected the root of its git work tree"):
        all_patches(target, Git(target.repo))


def test_a_merge_in_the_stack_is_refused(foreign_repo: Repo) -> None:
    foreign_repo.git("checkout", "--quiet", "-b", "side", "main~1")
    foreign_repo.write("side.txt", "x")
    foreign_repo.commit("side")
    foreign_repo.git("checkout", "--quiet", "main")
    foreign_repo.git("merge", "--quiet", "--no-ff", "--no-edit", "side")

    with pytest.raises(PatchError, match="is a merge: a stack is a straight line"):
        all_patches(foreign_repo.target, Git(foreign_repo.path))


def test_two_patches_of_one_name_are_refused(foreign_repo: Repo) -> None:
    foreign_repo.write("x.txt", "x")
    foreign_repo.commit("other: charge four")

    with pytest.raises(PatchError, match="two patches are named `charge-four`") as caught:
        all_patches(foreign_repo.target, Git(foreign_repo.path))
    assert "Patch-Name" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("empty.patch", b"no diff here\n", "holds no diff"),
        ("latin.patch", b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-\xe4\n+\xf6\n", "is not UTF-8"),
    ],
)
def test_a_file_that_is_no_patch_is_refused(foreign_repo: Repo, name: str, text: bytes, message: str) -> None:
    (foreign_repo.path / name).write_bytes(text)

    with pytest.raises(PatchError, match=message):
        all_patches(replace(foreign_repo.target, candidates=(name,)), Git(foreign_repo.path))


def test_a_glob_or_control_without_a_file_is_refused(foreign_repo: Repo) -> None:
    git = Git(foreign_repo.path)
    with pytest.raises(PatchError, match=r"candidates `fix/.*` matches no file"):
        all_patches(replace(foreign_repo.target, candidates=("fix/*.patch",)), git)

    probe = replace(foreign_repo.target.probes["suite"], controls={"scaling": "zoo/none.patch"})
    with pytest.raises(PatchError, match="control `scaling` of probe `suite` is missing"):
        all_patches(replace(foreign_repo.target, probes={"suite": probe}), git)


def test_names_can_be_typed_in_the_name_of_an_arm(foreign_repo: Repo) -> None:
    foreign_repo.write("x.txt", "x")
    foreign_repo.commit("shop: x\n\nPatch-Name: a,b+\x1b[2Jc\n")
    git = Git(foreign_repo.path)

    assert all_patches(foreign_repo.target, git)[-1].name == "a-b-2Jc"
    foreign_repo.write("more/01-fix.patch", foreign_repo.git("diff", "v1", "main") + "\n")
    with pytest.raises(PatchError, match="a patch cannot be named `fix`"):
        all_patches(replace(foreign_repo.target, candidates=("more/*.patch",)), git)


def test_an_unknown_name_gets_the_nearest(foreign_repo: Repo) -> None:
    patches = all_patches(foreign_repo.target, Git(foreign_repo.path))

    assert find_patch(patches, "round-rarely").position == 2
    with pytest.raises(PatchError, match="no patch `round-rarly`") as caught:
        find_patch(patches, "round-rarly")
    assert "`round-rarely`" in caught.value.hint


@given(text=st.text(max_size=200))
def test_a_slug_is_a_short_plain_word_whatever_the_subject(text: str) -> None:
    name = slug(text)

    assert 0 < len(name) <= 50
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert slug(name) == name
