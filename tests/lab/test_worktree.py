from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab.git import Git
from lab.worktree import SetupFailed, WorktreePool, _Lock
from store.errors import Cancelled
from tests.lab.conftest import Repo, living


@pytest.fixture
def pool(git: Git, tmp_path: Path) -> WorktreePool:
    return WorktreePool(git, tmp_path / "home" / "worktrees")


def traces(repo: Repo) -> list[str]:
    return [
        repo.git("status", "--porcelain"),
        repo.git("for-each-ref"),
        repo.git("symbolic-ref", "HEAD"),
        repo.git("worktree", "list"),
    ]


def test_a_worktree_holds_the_files_of_its_tree_and_leaves_nothing(
    foreign_repo: Repo, git: Git, pool: WorktreePool, tmp_path: Path
) -> None:
    foreign_repo.write("shop/price.py", "work in progress\n")
    before = traces(foreign_repo)

    with pool.checkout(git.tree("v1")) as path:
        assert (path / "shop" / "price.py").read_bytes() == git.read("v1", "shop/price.py")
        assert pool.modified(path) == ()
    assert pool.sweep() == 1

    assert traces(foreign_repo) == before
    assert (foreign_repo.path / "shop/price.py").read_text() == "work in progress\n"
    assert not (tmp_path / "home" / "worktrees").exists()
    assert list((foreign_repo.path / ".git").glob("worktrees/*")) == []


def test_runs_of_one_tree_share_a_worktree_and_set_it_up_once(git: Git, pool: WorktreePool, tmp_path: Path) -> None:
    tree, paths = git.tree("main"), []
    barrier = threading.Barrier(3, timeout=20)

    def hold() -> None:
        with pool.checkout(tree, setup=f"echo once >> {tmp_path}/set-up") as path:
            paths.append(path)
            barrier.wait()  # all three hold it at the same time

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(paths)) == 1
    assert len(paths) == 3
    assert (tmp_path / "set-up").read_text() == "once\n"


def test_a_failing_set_up_cannot_be_tested_and_says_why(git: Git, pool: WorktreePool) -> None:
    for _ in range(2):  # a failure is not taken for a finished set-up the second time
        with (
            pytest.raises(SetupFailed, match="ended with 3") as caught,
            pool.checkout(git.tree("v1"), setup="echo no compiler; exit 3"),
        ):
            pass
        assert caught.value.hint == "no compiler"
    assert pool.sweep() == 1


def test_cancel_ends_a_set_up_with_all_it_started(git: Git, pool: WorktreePool, tmp_path: Path) -> None:
    mark = f"sleep 61.{os.getpid()}"

    with pytest.raises(Cancelled), pool.checkout(git.tree("v1"), setup=f"{mark} & wait", cancelled=lambda: True):
        pass

    assert living(mark.replace(" ", "\0")) == []
    assert pool.sweep() == 1


def test_files_a_run_changed_are_put_back_before_the_next(git: Git, pool: WorktreePool) -> None:
    with pool.checkout(git.tree("v1")) as path:
        (path / "shop" / "price.py").write_text("broken\n")
        (path / "shop" / "left.py").write_text("left behind\n")
        assert pool.modified(path) == ("shop/price.py",)

    with pool.checkout(git.tree("v1")) as path:
        assert (path / "shop" / "price.py").read_bytes() == git.read("v1", "shop/price.py")
        assert not (path / "shop" / "left.py").exists()


def test_a_worktree_in_use_is_not_swept(git: Git, foreign_repo: Repo, pool: WorktreePool, tmp_path: Path) -> None:
    other = WorktreePool(Git(foreign_repo.path), tmp_path / "home" / "worktrees")

    with pool.checkout(git.tree("v1")) as path:
        assert other.sweep() == 0
        assert path.is_dir()
    assert other.sweep() == 1


def test_what_a_killed_process_left_is_swept(git: Git, foreign_repo: Repo, pool: WorktreePool, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from lab.git import Git; from lab.worktree import WorktreePool\n"
        "git = Git(Path(sys.argv[1])); pool = WorktreePool(git, Path(sys.argv[2]))\n"
        "with pool.checkout(git.tree('v1')) as path: print(path, flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(foreign_repo.path), str(tmp_path / "home" / "worktrees")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert path.is_dir()

    assert pool.sweep() == 1

    assert not path.exists()
    assert foreign_repo.git("worktree", "list").count("\n") == 0


def test_a_half_made_worktree_is_made_anew(git: Git, pool: WorktreePool) -> None:
    with pool.checkout(git.tree("v1")) as path:
        pass
    os.unlink(path.with_suffix(".ready"))  # as if its maker had been killed
    (path / "shop" / "price.py").unlink()

    with pool.checkout(git.tree("v1")) as again:
        assert again == path
        assert (again / "shop" / "price.py").is_file()


def test_processes_that_make_use_and_sweep_at_once_neither_collide_nor_wait_for_ever(
    git: Git, foreign_repo: Repo, tmp_path: Path
) -> None:
    script = (
        "import random, sys; from pathlib import Path; from lab.git import Git; from lab.worktree import WorktreePool\n"
        "git = Git(Path(sys.argv[1])); pool = WorktreePool(git, Path(sys.argv[2])); draw = random.Random(sys.argv[3])\n"
        "for _ in range(5):\n"
        "    revision = draw.choice(['v1', 'main'])\n"
        "    with pool.checkout(git.tree(revision)) as path:\n"
        "        assert (path / 'shop/price.py').read_bytes() == git.read(revision, 'shop/price.py')\n"
        "    if draw.random() < 0.6: pool.sweep()\n"
        "pool.sweep()\n"
    )
    folder = tmp_path / "worktrees"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(foreign_repo.path), str(folder), str(number)],
            cwd=Path(__file__).parents[2],
        )
        for number in range(3)
    ]

    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    WorktreePool(git, folder).sweep()
    assert not folder.exists()
    assert foreign_repo.git("worktree", "list").count("\n") == 0


def test_many_hands_make_and_remove_worktrees_at_once(git: Git, foreign_repo: Repo, tmp_path: Path) -> None:
    trees = [git.tree(commit) for commit in foreign_repo.git("rev-list", "main").split()]
    pools = [WorktreePool(git, tmp_path / f"pool{number}") for number in range(3)]
    failures: list[BaseException] = []

    def work(pool: WorktreePool) -> None:
        try:
            for tree in trees:
                with pool.checkout(tree) as path:
                    assert (path / "shop" / "price.py").is_file()
                pool.sweep()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert foreign_repo.git("worktree", "list").count("\n") == 0


def test_a_released_lock_is_free_although_a_child_about_to_start_still_has_its_file(tmp_path: Path) -> None:
    lock = _Lock(tmp_path / "tree.lock")
    lock.shared()
    # What a fork in another thread leaves open until its exec.
    inherited = os.dup(lock._fd)
    lock.release()

    other = _Lock(tmp_path / "tree.lock")
    try:
        assert other.try_exclusive()
    finally:
        other.release()
        os.close(inherited)
