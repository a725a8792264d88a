"""The demo repository: made, made again, renewed, and never at the cost of what a person put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import demo as demo_module
from lab.demo import make_demo
from lab.series import read_group, source_files
from store.errors import RepoError
from tests.lab.conftest import Repo


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """A demo made by a relative path, as `livepath demo DIR` does."""
    monkeypatch.chdir(tmp_path)
    return Repo(make_demo(Path("demo")))


def another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the embedded engine lacks a file that no patch touches."""
    left_out = Path("engine/checkpoints/README.md")
    monkeypatch.setattr(
        demo_module, "source_files", lambda root: [path for path in source_files(root) if path != left_out]
    )


def test_the_history_is_one_commit_per_patch_of_the_stack(demo: Repo) -> None:
    subjects = demo.git("log", "--reverse", "--format=%s", "v1..main").splitlines()
    names = demo.git("log", "--reverse", "--format=%(trailers:key=Patch-Name,valueonly)", "v1..main").split()

    assert subjects == [patch.subject for patch in read_group("stack")]
    assert names == [patch.name for patch in read_group("stack")]
    assert demo.git("status", "--porcelain") == ""
    assert not (demo.path / "engine" / "patches").exists()


def test_making_it_again_changes_nothing(demo: Repo) -> None:
    head, reflog = demo.git("rev-parse", "main"), (demo.path / "livepath.toml").stat().st_mtime_ns

    make_demo(demo.path)

    assert demo.git("rev-parse", "main") == head
    assert (demo.path / "livepath.toml").stat().st_mtime_ns == reflog


def test_another_version_takes_over_and_keeps_the_old_history_and_the_cases(
    demo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = demo.git("rev-parse", "main")
    demo.write(".livepath/mine.db", "a case")
    another_engine(monkeypatch)

    make_demo(Path("demo"))

    assert demo.git("rev-parse", "main") != old
    assert demo.git("rev-parse", f"was/{old[:12]}") == old
    assert not (demo.path / "engine" / "checkpoints" / "README.md").exists()
    assert demo.git("status", "--porcelain") == ""
    assert (demo.path / ".livepath" / "mine.db").read_text(encoding="utf-8") == "a case"


def test_changes_of_a_person_are_not_overwritten(demo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.write("engine/rope.py", "# mine\n")
    another_engine(monkeypatch)

    with pytest.raises(RepoError, match="changes of yours"):
        make_demo(Path("demo"))

    assert (demo.path / "engine" / "rope.py").read_text(encoding="utf-8") == "# mine\n"


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine", encoding="utf-8")

    with pytest.raises(RepoError, match="not empty"):
        make_demo(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_another_git_repository_is_refused(repo: Repo) -> None:
    repo.write("a.txt", "a")
    head = repo.commit("mine")

    with pytest.raises(RepoError, match="another git repository"):
        make_demo(repo.path)

    assert repo.git("rev-parse", "HEAD") == head
