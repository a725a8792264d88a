"""Writes commits without a checkout: the same files, names and dates give the same SHAs on every machine.

Contract: works on a git directory and a throw-away index; no hook, signature, filter or user setting of the machine
takes part.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from store.errors import PatchError, RepoError

# Commits of the demo are dated, so that their SHAs are fixed per version.
EPOCH = 1_790_000_000


class Scribe:
    """Builds trees and commits in one git directory."""

    def __init__(self, git_dir: Path) -> None:
        self.git_dir = git_dir
        self._scratch = tempfile.TemporaryDirectory(prefix="livepath-scribe-")
        self._env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": self._scratch.name,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_DIR": str(git_dir),
            "GIT_INDEX_FILE": str(Path(self._scratch.name) / "index"),
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }

    def __enter__(self) -> Scribe:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def git(self, *words: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run git on this directory and return its stdout.

        Raises:
            RepoError: git is missing or says no.
        """
        try:
            done = subprocess.run(
                ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", "-c", "gc.auto=0", *words],
                input=stdin,
                capture_output=True,
                text=True,
                env={**self._env, **(env or {})},
                check=False,
            )
        except FileNotFoundError as error:
            raise RepoError("git is not on PATH", hint="install git 2.38 or newer") from error
        if done.returncode:
            raise RepoError(f"git {words[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.rstrip("\n")

    def init(self, branch: str = "main") -> None:
        """Make the git directory, empty, with no template of the machine."""
        template = Path(self._scratch.name) / "template"
        template.mkdir(exist_ok=True)
        self.git("init", "--quiet", f"--initial-branch={branch}", f"--template={template}", "--bare", str(self.git_dir))
        self.git("config", "core.bare", "false")

    def stage(self, root: Path, files: Iterable[Path]) -> None:
        """Fill the index with exactly these files of `root`, read as they are, mode 100644."""
        self.git("read-tree", "--empty")
        names = list(files)
        hashes = self.git(
            "hash-object", "-w", "--no-filters", "--stdin-paths", stdin="".join(f"{root / name}\n" for name in names)
        ).split()
        lines = [f"100644 {sha}\t{name.as_posix()}" for name, sha in zip(names, hashes, strict=True)]
        self.git("update-index", "--index-info", stdin="\n".join(lines) + "\n")

    def stage_text(self, name: str, text: str) -> None:
        """Add one file by its text."""
        sha = self.git("hash-object", "-w", "--no-filters", "--stdin", stdin=text)
        self.git("update-index", "--add", "--cacheinfo", f"100644,{sha},{name}")

    def load(self, treeish: str) -> None:
        self.git("read-tree", treeish)

    def apply(self, name: str, diff: str) -> None:
        """Apply a diff to the index.

        Raises:
            PatchError: it does not apply.
        """
        try:
            self.git("apply", "--cached", "--whitespace=nowarn", "-", stdin=diff)
        except RepoError as error:
            raise PatchError(
                f"`{name}` does not apply: {str(error).splitlines()[0]}", hint="rebase it with `./run refresh-patches`"
            ) from error

    def commit(self, message: str, parents: Iterable[str] = (), *, number: int = 0) -> str:
        """Commit the index; `number` sets its date, one hour after the one before."""
        stamp = f"{EPOCH + 3600 * number} +0000"
        who = {
            f"GIT_{role}_{part}": value
            for role in ("AUTHOR", "COMMITTER")
            for part, value in (("NAME", "Livepath"), ("EMAIL", "demo@livepath.invalid"), ("DATE", stamp))
        }
        tree = self.git("write-tree")
        flags = [word for parent in parents for word in ("-p", parent)]
        return self.git("commit-tree", tree, *flags, stdin=message.rstrip() + "\n", env=who)
