from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from lab.git import Git
from store.errors import RepoError
from tests.lab.conftest import Repo


def test_the_repository_is_found_from_a_folder_inside(foreign_repo: Repo) -> None:
    assert Git(foreign_repo.path / "shop").root == foreign_repo.path


def test_what_is_no_repository_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RepoError, match="is not in a git repository") as caught:
        Git(tmp_path)
    assert "git init" in caught.value.hint
    with pytest.raises(RepoError, match="does not exist"):
        Git(tmp_path / "nowhere")


def test_a_missing_or_old_git_is_one_clear_error(
    foreign_repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(RepoError, match="not on PATH"):
        Git(foreign_repo.path)

    old = tmp_path / "old" / "git"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho git version 2.30.2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(old.parent))
    with pytest.raises(RepoError, match=r"git version 2\.30\.2 is too old"):
        Git(foreign_repo.path)


def test_an_unknown_revision_names_the_nearest(git: Git) -> None:
    with pytest.raises(RepoError, match="has no commit `mainn`") as caught:
        git.commit("mainn")

    assert "`main`" in caught.value.hint


@pytest.mark.parametrize("revision", ["", "--all", "-x", "main^{blob}", "v1:shop", "a b", "main?"])
def test_a_revision_is_never_taken_as_an_option(git: Git, revision: str) -> None:
    with pytest.raises(RepoError, match="has no commit"):
        git.commit(revision)


def test_commits_come_oldest_first_with_their_messages(git: Git) -> None:
    commits = git.commits("v1", "main")

    assert [commit.subject for commit in commits] == [
        "pricing: add a discount table",
        "pricing: read the table",
        "pricing: round rarely",
        "pricing: charge four",
    ]
    assert commits[2].body == "Patch-Name: round-rarely"
    assert commits[-1].sha == git.commit("main")
    assert commits[-1].tree == git.tree("main")


def test_a_base_that_is_no_ancestor_is_refused(git: Git, foreign_repo: Repo) -> None:
    foreign_repo.git("checkout", "--quiet", "-b", "side", "v1")
    foreign_repo.commit("side")

    with pytest.raises(RepoError, match="is no ancestor"):
        git.commits("side", "main")


def test_dirty_files_are_named_and_untracked_ones_are_not(git: Git, foreign_repo: Repo) -> None:
    assert git.dirty() == ()
    foreign_repo.write("shop/price.py", "changed\n")
    foreign_repo.write("new.txt", "untracked\n")

    assert git.dirty() == ("shop/price.py",)


def test_files_and_blobs_are_read_at_a_tree_with_any_name(repo: Repo) -> None:
    repo.write("a/ü b\t.py", "x = 'ä'\n")
    repo.commit("first")
    git = Git(repo.path)

    assert git.files("HEAD") == ["a/ü b\t.py"]
    assert git.files("HEAD", "a") == ["a/ü b\t.py"]
    assert git.read("HEAD", "a/ü b\t.py") == "x = 'ä'\n".encode()
    assert git.blob("HEAD", "a/ü b\t.py") == repo.git("rev-parse", "HEAD:a/ü b\t.py")
    assert git.read("HEAD", "b") is None
    assert git.blob("HEAD", "b") is None


def test_the_same_change_has_the_same_patch_id_elsewhere(git: Git) -> None:
    diff = git.diff("main~1", "main")
    moved = re.sub(r"@@ -\d+,(\d+) \+\d+,", r"@@ -90,\1 +95,", diff)

    assert moved != diff
    assert git.patch_id(moved) == git.patch_id(diff)
    assert git.patch_id(diff) != git.patch_id(git.diff("main~2", "main~1"))
    assert git.patch_id("") == ""


def test_looking_at_a_hostile_repository_runs_none_of_its_code(foreign_repo: Repo, tmp_path: Path) -> None:
    mark = tmp_path / "it-ran"
    touch = f"touch {mark}; cat"
    hook = foreign_repo.write(".git/hooks/post-checkout", f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    fsmonitor = foreign_repo.write(".git/fsmonitor.sh", f"#!/bin/sh\ntouch {mark}\n")
    fsmonitor.chmod(0o755)
    for key, value in {
        "core.fsmonitor": str(fsmonitor),
        "diff.external": touch,
        "diff.evil.textconv": touch,
        "diff.evil.command": touch,
        "filter.evil.smudge": touch,
        "filter.evil.clean": touch,
        "filter.evil.required": "true",
        "merge.evil.driver": f"touch {mark}; exit 0",
        "core.pager": touch,
        "alias.status": f"!touch {mark}",
        "core.sshCommand": touch,
        "log.showSignature": "true",
        "gpg.program": str(fsmonitor),
    }.items():
        foreign_repo.git("config", key, value)
    foreign_repo.write(".git/info/attributes", "*.py filter=evil diff=evil merge=evil\n")
    mark.unlink(missing_ok=True)

    git = Git(foreign_repo.path)
    git.dirty()
    git.commits("v1", "main")
    git.diff("v1", "main")
    git.read("main", "shop/price.py")
    git.run("worktree", "add", "--detach", str(tmp_path / "tree"), git.commit_tree(git.tree("main")))

    assert not mark.exists()
    assert (tmp_path / "tree" / "shop" / "price.py").read_bytes() == git.read("main", "shop/price.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_repository_of_another_user_is_refused_unless_the_person_allowed_it(
    foreign_repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text("")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    for path in [foreign_repo.path, *foreign_repo.path.rglob("*")]:
        os.chown(path, 12345, 12345)

    with pytest.raises(RepoError, match="belongs to another user") as caught:
        Git(foreign_repo.path)
    assert f"safe.directory {foreign_repo.path}" in caught.value.hint

    config.write_text(f'[safe]\n directory = {foreign_repo.path}\n[filter "evil"]\n smudge = false\n')
    assert Git(foreign_repo.path).commits("v1", "main")


def test_the_environment_of_a_surrounding_git_command_is_ignored(
    foreign_repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other.index"))

    assert Git(foreign_repo.path).commits("v1", "main")


def test_one_door_serves_many_threads(git: Git) -> None:
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(10):
                assert git.read("main", "shop/price.py")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
