"""The tree of a run without one of its patches, so that what the patch changes there is a plain diff.

Contract: nothing is written but objects no ref points to. Where a later patch rewrote the same lines a patch cannot be
taken out; for a commit its own two trees then stand in, and its lines are carried into the run's tree.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.carry import carry
from lab.changed import Change, changed_lines
from lab.git import Git
from store.models import Patch


def patch_changes(git: Git, patch: Patch, *, tree: str, trace: Sequence[str] = (".",)) -> tuple[Change, ...]:
    """What a patch that is part of a tree changes there.

    A flag changes no line, and the place of a patch that cannot be found in the tree is unknown: both give one row that
    says so.
    """
    if patch.kind == "flag":
        return (_unplaced(patch, "a flag changes no line; the recorder does not see what reads it"),)
    without = tree_without(git, patch, tree)
    if without is not None:
        return changed_lines(git, before=without, after=tree, trace=trace)
    if patch.commit:
        before, after = git.tree(f"{patch.commit}^"), git.tree(patch.commit)
        return carry(git, changed_lines(git, before=before, after=after, trace=trace), after=after, tree=tree)
    return (_unplaced(patch, "another patch rewrote its lines, and its own blobs are not in the repository"),)


def tree_without(git: Git, patch: Patch, tree: str) -> str | None:
    """The tree with the patch taken out again, or None where that leaves a conflict."""
    with tempfile.TemporaryDirectory(prefix="livepath-index-") as folder:
        where = {
            "GIT_INDEX_FILE": os.path.join(folder, "index"),
            "GIT_WORK_TREE": folder,
            "GIT_DIR": str(git.git_dir),
        }
        for way in (("-R",), ("-R", "-C1")):
            git.run("read-tree", tree, env=where, cwd=Path(folder))
            words = ("apply", "--cached", *way, "--whitespace=nowarn", "-")
            diff = patch.diff.encode("utf-8", "surrogateescape")
            if git.call(*words, stdin=diff, env=where, cwd=Path(folder)).code == 0:
                return git.run("write-tree", env=where, cwd=Path(folder))
    return None


def _unplaced(patch: Patch, reason: str) -> Change:
    return Change(path="", line=0, text=patch.subject, role="unknown", reason=reason)
