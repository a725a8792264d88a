"""The safe door to git: every call of the workbench to a repository under suspicion goes through `Git`.

Contract: looking at a repository never runs its code. Hooks, fsmonitor, external diffs, textconv, filters and merge
drivers named in its config are off; the machine's and the person's git config take no part, except `safe.directory`.
A `Git` holds no open process and may be used from any thread. Uncommitted changes are never part of a run: `dirty`
names them, so that a person can be told.
"""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import git as gitpython

from lab.git_env import base_env, check_version, neutral_config
from store.errors import RepoError

# Synthetic commits are dated, so that one tree always gives one commit.
_OBJECT_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# Files that are kept once they were read: an investigation asks for the same ones thousands of times.
_KEPT_FILES = 20_000
_KEPT_BYTES = 1 << 18
_WHO = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "Livepath"), ("EMAIL", "lab@livepath.invalid"), ("DATE", "1790000000 +0000"))
}
_DIFF = (
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--full-index",
    "--binary",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    sha: str
    tree: str
    parents: tuple[str, ...]
    subject: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a git command left: exit code, stdout bytes, stderr text."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")


class Git:
    """One repository, found from a folder in it."""

    def __init__(self, path: Path) -> None:
        """Find the repository of `path`.

        Raises:
            RepoError: git is missing or too old, or `path` lies in no work tree.
        """
        self._env = base_env()
        check_version(self._env)
        self.root = _discover(path)
        self._env |= neutral_config(path, self._env)
        found = self.call("rev-parse", "--path-format=absolute", "--git-common-dir")
        if found.code:
            raise _refused(self.root, found.err)
        self.git_dir = Path(found.text.strip())
        self._files_read: dict[tuple[str, str], bytes | None] = {}

    def call(
        self,
        *words: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Done:
        """Run git and return what it left, whatever its exit code."""
        done = subprocess.run(
            ["git", "--no-pager", *words],
            input=stdin if stdin is not None else b"",
            capture_output=True,
            cwd=cwd or self.root,
            env={**self._env, **(env or {})},
            check=False,
        )
        return Done(code=done.returncode, out=done.stdout, err=done.stderr.decode("utf-8", "replace").strip())

    def run(
        self,
        *words: str,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> str:
        """Run git and return its stdout as text, without the last newline.

        Raises:
            RepoError: git says no.
        """
        done = self.call(*words, stdin=stdin, env=env, cwd=cwd)
        if done.code:
            raise RepoError(f"`git {words[0]}` failed in {self.root}: {_first_line(done.err or done.text)}")
        return done.text.removesuffix("\n")

    def commit(self, revision: str) -> str:
        """The commit a revision names.

        Raises:
            RepoError: it names none; the hint lists the nearest branches and tags.
        """
        done = self.call("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if done.code == 0 and revision:
            return done.text.strip()
        near = difflib.get_close_matches(revision, self.names(), n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(f'`{name}`' for name in near)}?"
            if near
            else "`git log --oneline` lists commits"
        )
        raise RepoError(f"{self.root} has no commit `{revision}`", hint=hint)

    def tree(self, revision: str) -> str:
        """The tree of a commit, or of a tree itself.

        Raises:
            RepoError: the revision names neither.
        """
        done = self.call("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{tree}}")
        return done.text.strip() if done.code == 0 else self.tree(self.commit(revision))

    def names(self) -> list[str]:
        """Branches and tags, short."""
        with gitpython.Repo(self.root) as repo:
            return [ref.name for ref in repo.refs]

    def commits(self, base: str, head: str) -> list[Commit]:
        """The commits of base..head, oldest first.

        Raises:
            RepoError: a revision is unknown, or `base` is no ancestor of `head`.
        """
        base, head = self.commit(base), self.commit(head)
        if base != head and self.call("merge-base", "--is-ancestor", base, head).code:
            raise RepoError(
                f"base {base[:12]} is no ancestor of head {head[:12]}",
                hint=f"take `git merge-base {base[:12]} {head[:12]}` as base, or rebase the stack onto the base",
            )
        form = "%H%x00%T%x00%P%x00%s%x00%b%x00%x00"
        log = self.run("log", "--reverse", "--topo-order", "--no-show-signature", f"--format={form}", f"{base}..{head}")
        return [_commit(entry) for entry in log.split("\0\0\n") if entry.strip("\0\n")]

    def dirty(self) -> tuple[str, ...]:
        """Tracked files with uncommitted changes. They are never part of a run."""
        listed = self.run(
            "status", "--porcelain=v1", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules"
        )
        return tuple(entry[3:] for entry in listed.split("\0") if entry)

    def files(self, treeish: str, folder: str = "") -> list[str]:
        """The files of a tree, below a folder if one is named."""
        where = ("--", folder) if folder and folder != "." else ()
        listed = self.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", treeish, *where)
        return [name for name in listed.split("\0") if name]

    def blob(self, treeish: str, path: str) -> str | None:
        """The blob id of a file in a tree; None where there is no such file."""
        done = self.call("rev-parse", "--verify", "--quiet", "--end-of-options", f"{treeish}:{path}")
        return done.text.strip() if done.code == 0 else None

    def read(self, treeish: str, path: str) -> bytes | None:
        """The bytes of a file in a tree; None where there is no such file."""
        key = (treeish, path)
        if key in self._files_read:
            return self._files_read[key]
        done = self.call("cat-file", "blob", f"{treeish}:{path}")
        content = done.out if done.code == 0 else None
        # What a full object id names never changes; a branch or tag may.
        if _OBJECT_ID.fullmatch(treeish) and len(content or b"") <= _KEPT_BYTES and len(self._files_read) < _KEPT_FILES:
            self._files_read[key] = content
        return content

    def diff(self, old: str, new: str, *, context: int = 3, paths: Sequence[str] = (), renames: bool = False) -> str:
        """The unified diff between two trees or commits, with full blob ids."""
        find = ("-M",) if renames else ("--no-renames",)
        words = ("diff-tree", "-p", "-r", *_DIFF, *find, f"-U{context}", f"{old}^{{tree}}", f"{new}^{{tree}}")
        return self.call_text(*words, "--", *paths)

    def call_text(self, *words: str) -> str:
        """Like `run`, but keeps every byte of the output: a diff's last newline matters."""
        done = self.call(*words)
        if done.code:
            raise RepoError(f"`git {words[0]}` failed in {self.root}: {_first_line(done.err)}")
        return done.text

    def patch_id(self, diff: str) -> str:
        """The identity of a patch: the same wherever it is rebased to. "" for an empty diff."""
        return self.run("patch-id", "--stable", stdin=diff.encode("utf-8", "surrogateescape")).partition(" ")[0]

    def commit_tree(self, tree: str, *parents: str, message: str = "livepath") -> str:
        """Write a commit of a tree that no branch or tag points to."""
        flags = [word for parent in parents for word in ("-p", parent)]
        return self.run("commit-tree", "--no-gpg-sign", tree, *flags, stdin=message.encode(), env=_WHO)


def _discover(path: Path) -> Path:
    hint = "name a folder inside a git work tree, or make one: `git init`, `git add`, `git commit`"
    try:
        with gitpython.Repo(path, search_parent_directories=True) as repo:
            if repo.working_tree_dir is None:
                raise RepoError(f"{path} is a bare repository", hint="clone it and name the clone")
            return Path(repo.working_tree_dir).resolve()
    except gitpython.NoSuchPathError as error:
        raise RepoError(f"{path} does not exist", hint=hint) from error
    except gitpython.InvalidGitRepositoryError as error:
        raise RepoError(f"{path} is not in a git repository", hint=hint) from error


def _refused(root: Path, stderr: str) -> RepoError:
    if "dubious ownership" in stderr:
        return RepoError(
            f"git refuses {root}: it belongs to another user",
            hint=f"if you trust it: git config --global --add safe.directory {root}",
        )
    return RepoError(f"git refuses {root}: {_first_line(stderr)}")


def _commit(entry: str) -> Commit:
    sha, tree, parents, subject, body = entry.split("\0", 4)
    return Commit(
        sha=sha, tree=tree, parents=tuple(parents.split()), subject=subject, body=body.rstrip("\0").strip("\n")
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0] or "no reason given"
