"""Worktrees to run in: one per assembled tree, shared by the runs that need it at the same time, and none left
behind.

Contract: a worktree is a detached checkout of a synthetic commit; the person's checkout, index, branches and refs are
never touched. A lock file per worktree is held while it is in use, so what a killed process left is recognised (its
lock is free) and removed by `sweep`. A worktree whose files were changed by a run is put back before the next one
uses it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab.child import run_child
from lab.git import Git
from store.errors import Cancelled, RepoError, RunError

SETUP_TIMEOUT_S = 3600.0


class SetupFailed(RunError):
    """The set-up command of a worktree failed: the tree cannot be tested."""


class WorktreePool:
    """The worktrees of one case."""

    def __init__(self, git: Git, folder: Path) -> None:
        self._git = git
        self._folder = folder
        self._guard = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._listing = threading.Lock()

    @contextmanager
    def checkout(
        self,
        tree: str,
        *,
        setup: str = "",
        env: Mapping[str, str] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[Path]:
        """Hold a worktree of `tree`; the set-up command ran in it once, by the shell, `env` added to our environment.

        Raises:
            SetupFailed: the set-up command did not end with 0.
            Cancelled: a person asked to stop during set-up.
            RepoError: git cannot make the worktree.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / tree[:16]
        with self._lock_of(tree):
            lock = _Lock(path.with_suffix(".lock"))
            try:
                while True:
                    if lock.try_exclusive():
                        # Nobody else runs in it: it may be made, or put right.
                        self._prepare(path, tree, setup, env or {}, cancelled)
                    lock.shared()
                    # Another process may have swept it while the lock changed hands, or been killed making it.
                    if _ready(path).exists():
                        break
                    lock.free()  # else all who wait would keep each other from making it
                    time.sleep(0.05)
            except BaseException:
                lock.release()
                raise
        try:
            yield path
        finally:
            lock.release()

    def modified(self, path: Path) -> tuple[str, ...]:
        """Tracked files of a worktree that are no longer those of its tree."""
        listed = self._git.run("status", "--porcelain=v1", "-z", "--untracked-files=no", "--no-renames", cwd=path)
        return tuple(entry[3:] for entry in listed.split("\0") if entry)

    def sweep(self) -> int:
        """Remove every worktree that no living process holds; returns how many."""
        removed = 0
        for lock_path in sorted(self._folder.glob("*.lock")):
            lock = _Lock(lock_path)
            if lock.try_exclusive():
                path = lock_path.with_suffix("")
                removed += path.exists()
                self._remove(path)
                lock_path.unlink(missing_ok=True)
            lock.release()
        self._git.call("worktree", "prune")
        try:
            self._folder.rmdir()
        except OSError:
            pass  # not there, or in use
        return removed

    def _lock_of(self, tree: str) -> threading.Lock:
        with self._guard:
            return self._making.setdefault(tree, threading.Lock())

    def _prepare(
        self, path: Path, tree: str, setup: str, env: Mapping[str, str], cancelled: Callable[[], bool]
    ) -> None:
        ready = _ready(path)
        if ready.exists() and ready.read_text(encoding="utf-8") == setup and (path / ".git").exists():
            if self.modified(path):
                self._git.run("reset", "--hard", "--quiet", cwd=path)
            if not setup:  # what a set-up command built is untracked, too
                self._git.run("clean", "-ffdxq", cwd=path)
            return
        commit = self._git.commit_tree(tree, message=f"livepath: tree {tree}")
        self._add(path, commit)
        if setup:
            self._set_up(path, setup, env, cancelled)
        ready.write_text(setup, encoding="utf-8")

    def _add(self, path: Path, commit: str) -> None:
        """Make the worktree. git's list of worktrees is not made for many hands: an add beside a prune can fail."""
        for pause_s in (0.1, 0.5, 2.0, None):
            with self._listing:
                self._remove(path)
                done = self._git.call("worktree", "add", "--detach", "--force", "--quiet", str(path), commit)
            if done.code == 0:
                return
            if pause_s is None:
                raise RepoError(f"git cannot make a worktree in {path.parent}: {done.err.splitlines()[-1:]}")
            time.sleep(pause_s)  # another process has its hands in the list

    def _set_up(self, path: Path, setup: str, env: Mapping[str, str], cancelled: Callable[[], bool]) -> None:
        with tempfile.TemporaryDirectory(prefix="livepath-setup-") as folder:
            watched = run_child(
                ["/bin/sh", "-c", setup],
                cwd=path,
                env={**os.environ, **env},
                folder=Path(folder),
                timeout_s=SETUP_TIMEOUT_S,
                cancelled=cancelled,
            )
        end = watched.end
        if end.cancelled:
            raise Cancelled("stopped on request")
        if end.exit_code != 0:
            how = end.stopped or (
                f"ended with {end.exit_code}" if end.signal is None else f"died of signal {end.signal}"
            )
            raise SetupFailed(f"the set-up command {how}: `{setup}`", hint=watched.tail or "it printed nothing")

    def _remove(self, path: Path) -> None:
        _ready(path).unlink(missing_ok=True)
        if path.exists():
            self._git.call("worktree", "remove", "--force", "--force", str(path))
            shutil.rmtree(path, ignore_errors=True)
        self._git.call("worktree", "prune")


class _Lock:
    """Shared while a run is in the worktree, exclusive while it is made or removed; the system frees it at death."""

    def __init__(self, path: Path) -> None:
        # Opened until the file under the name is the one we hold: `sweep` may have unlinked it in between.
        self._path = path
        self._fd = self._open()

    def _open(self) -> int:
        while True:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # somebody swept the empty folder away in this moment

    def try_exclusive(self) -> bool:
        return self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def shared(self) -> None:
        self._take(fcntl.LOCK_SH)

    def free(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def release(self) -> None:
        if self._fd >= 0:
            # Not by closing alone: a child that another thread starts in this moment has the file open until its exec.
            self.free()
            os.close(self._fd)
            self._fd = -1

    def _take(self, kind: int) -> bool:
        while True:
            try:
                fcntl.flock(self._fd, kind)
            except BlockingIOError:
                return False
            if self._is_current():
                return True
            self.release()
            self._fd = self._open()

    def _is_current(self) -> bool:
        try:
            named, held = os.stat(self._path), os.fstat(self._fd)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


def _ready(path: Path) -> Path:
    """The mark that a worktree is whole and set up; beside it, so that the tree itself stays clean."""
    return path.with_suffix(".ready")
