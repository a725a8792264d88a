"""The tree of base + an ordered subset of patches, without a worktree.

Contract: a commit is carried over by a real three-way merge against its own parent, a .patch file by a three-way
apply, a flag by the environment it sets. All commits in order give head's own tree. The order is always that of the
stack, then candidates, then controls, however the names were given. Nothing is written but objects that no ref points
to.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.git import Git
from lab.patches import find_patch
from store.errors import PatchError
from store.models import Patch

_ROLES = ("stack", "candidate", "control")


class DoesNotApply(PatchError):
    """A patch does not apply on what came before it."""

    def __init__(self, patch: str, against: tuple[str, ...], files: tuple[str, ...], detail: str) -> None:
        ground = f"base + {', '.join(against)}" if against else "base"
        where = f" in {', '.join(files)}" if files else ""
        super().__init__(
            f"`{patch}` does not apply on {ground}{where}: {detail}",
            hint="take it together with the patches it was written on, or rebase it",
        )
        self.patch = patch
        self.against = against
        self.files = files
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    tree: str
    env: dict[str, str]  # what the flags set, on or off
    names: tuple[str, ...]  # in order of application


class Assembler:
    """Assembles subsets of one target's patches; remembers every step, so that a shared beginning costs nothing."""

    def __init__(self, git: Git, base: str, patches: Iterable[Patch]) -> None:
        self._git = git
        self._base_tree = git.tree(base)
        self._patches = list(patches)
        self._steps: dict[tuple[str, str], str | DoesNotApply] = {}

    def assemble(self, names: Iterable[str]) -> Assembled:
        """The state with exactly these patches.

        Raises:
            PatchError: a name is unknown.
            DoesNotApply: a patch does not apply on base and the patches before it.
        """
        chosen = {name: find_patch(self._patches, name) for name in names}
        ordered = sorted(chosen.values(), key=lambda patch: (_ROLES.index(patch.role), patch.position))
        tree = self._base_tree
        before: tuple[str, ...] = ()
        for patch in ordered:
            if patch.kind != "flag":
                tree = self._step(tree, patch, before)
            before = (*before, patch.name)
        return Assembled(tree=tree, env=self._env(chosen), names=before)

    def _env(self, chosen: Iterable[str]) -> dict[str, str]:
        env = {}
        for patch in self._patches:
            if patch.kind == "flag":
                name, _, values = patch.source.partition("=")
                on = patch.patch_id.removeprefix(f"flag:{name}=")
                env[name] = on if patch.name in chosen else values.removesuffix(f":{on}")
        return env

    def _step(self, tree: str, patch: Patch, before: tuple[str, ...]) -> str:
        key = (tree, patch.name)
        if key not in self._steps:
            try:
                self._steps[key] = self._pick(tree, patch) if patch.kind == "commit" else self._apply(tree, patch)
            except _Conflict as conflict:
                self._steps[key] = DoesNotApply(patch.name, before, conflict.files, conflict.detail)
        found = self._steps[key]
        if isinstance(found, DoesNotApply):
            # Raised anew: an exception that is raised twice drags the traceback of the first time along.
            raise DoesNotApply(found.patch, before, found.files, found.detail)
        return found

    def _pick(self, tree: str, patch: Patch) -> str:
        assert patch.commit is not None
        parent, own = self._git.tree(f"{patch.commit}^"), self._git.tree(patch.commit)
        return own if tree == parent else self._merge(parent, tree, own)

    def _merge(self, common: str, ours: str, theirs: str) -> str:
        # git before 2.40 takes a merge base only from history, so three synthetic commits give it one.
        root = self._git.commit_tree(common)
        left, right = self._git.commit_tree(ours, root), self._git.commit_tree(theirs, root)
        done = self._git.call("merge-tree", "--write-tree", "--name-only", "-z", "--no-messages", left, right)
        tree, *files = done.text.split("\0")
        if done.code == 0:
            return tree.strip()
        if done.code == 1:
            names = tuple(dict.fromkeys(name for name in files if name))
            raise _Conflict(names, "the same lines were changed differently")
        raise _Conflict((), done.err or f"git merge-tree ended with {done.code}")

    def _apply(self, tree: str, patch: Patch) -> str:
        """Three-way first, plain where its blobs are unknown here, last by way of the base tree."""
        diff = patch.diff.encode("utf-8")
        result, first = self._apply_to(tree, diff)
        if result:
            return result
        on_base, _ = self._apply_to(self._base_tree, diff)
        if on_base and tree != self._base_tree:
            return self._merge(self._base_tree, tree, on_base)
        raise _Conflict(_conflicting(first), _short(first))

    def _apply_to(self, tree: str, diff: bytes) -> tuple[str | None, str]:
        with tempfile.TemporaryDirectory(prefix="livepath-index-") as folder:
            env = {
                "GIT_INDEX_FILE": os.path.join(folder, "index"),
                "GIT_WORK_TREE": folder,
                "GIT_DIR": str(self._git.git_dir),
            }
            stderr = ""
            for three_way in (("--3way",), ()):
                self._git.run("read-tree", tree, env=env, cwd=Path(folder))
                done = self._git.call(
                    "apply", "--cached", *three_way, "--whitespace=nowarn", "-", stdin=diff, env=env, cwd=Path(folder)
                )
                if done.code == 0:
                    return self._git.run("write-tree", env=env, cwd=Path(folder)), ""
                stderr = stderr or done.err
            return None, stderr


class _Conflict(Exception):
    def __init__(self, files: tuple[str, ...], detail: str) -> None:
        super().__init__(detail)
        self.files = files
        self.detail = detail


def _conflicting(stderr: str) -> tuple[str, ...]:
    """The files git apply names in its complaints."""
    found = re.findall(r"^error: (?:patch failed: )?(.+?)(?::\d+|: .*)$|^U (.+)$", stderr, re.MULTILINE)
    return tuple(dict.fromkeys(one or two for one, two in found))


def _short(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith(("error:", "U "))]
    return "; ".join(lines[:3]) or stderr.partition("\n")[0] or "git apply gave no reason"
