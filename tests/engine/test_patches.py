"""The patch series: it applies in every valid selection, and its trees behave as the story says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "engine" / "patches"
STACK = sorted((PATCHES / "stack").glob("*.patch"))
CANDIDATES = sorted((PATCHES / "candidates").glob("*.patch"))
ZOO = sorted((PATCHES / "zoo").glob("*.patch"))
RECALL = """
import numpy, torch
from engine.engine import Engine
from engine.task import ask, make_contexts
torch.set_num_threads(1)
engine = Engine.load()
contexts = make_contexts(numpy.random.default_rng(2), 6, 1500)
questions, answers = ask(contexts, numpy.tile(numpy.arange(0, 40, 10), (6, 1)))
cache = engine.prefill(torch.from_numpy(contexts.ids_BT), [])[1].fork(4)
for token in range(4):
    logits = engine.decode(torch.from_numpy(questions[:, :, token].reshape(-1)), cache)
print((logits.argmax(-1).numpy() == answers.reshape(-1)).mean())
"""


def name_of(patch: Path) -> str:
    return re.sub(r"^\d+-", "", patch.stem)


@dataclass(frozen=True)
class Trees:
    """Trees of a scratch repository, made without touching a work tree."""

    folder: Path

    def git(self, *args: str, text: str | None = None) -> str:
        env = os.environ | {"GIT_INDEX_FILE": str(self.folder / "scratch-index"), "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run(
            ["git", "-C", str(self.folder), *args], input=text, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"git {' '.join(args)}: {done.stderr}"
        return done.stdout.strip()

    def with_patch(self, tree: str, patch: Path) -> str:
        self.git("read-tree", tree)
        self.git("apply", "--cached", "--3way", str(patch))
        return self.git("write-tree")

    def run(self, tree: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
        self.git("read-tree", tree)
        self.git("checkout-index", "--all", f"--prefix={folder}/")
        env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
        )


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    folder = tmp_path_factory.mktemp("series")
    made = Trees(folder)
    made.git("init", "--quiet")
    for room in ("engine", "kernels"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__", "patches"))
    made.git("add", "--force", "engine", "kernels")
    return made


@pytest.fixture(scope="module")
def base(trees: Trees) -> str:
    return trees.with_patch(trees.git("write-tree"), PATCHES / "base.patch")


@pytest.fixture(scope="module")
def full(trees: Trees, base: str) -> str:
    tree = base
    for patch in STACK:
        tree = trees.with_patch(tree, patch)
    return tree


def selections(
    trees: Trees, tree: str, names: frozenset[str], left: list[Path]
) -> Iterator[tuple[frozenset[str], str]]:
    """Every selection, in order, in which nvfp4-experts comes with hash-topk-routed-scaling, and its tree."""
    if not left:
        yield names, tree
        return
    first, *rest = left
    yield from selections(trees, tree, names, rest)
    name = name_of(first)
    if name != "nvfp4-experts" or "hash-topk-routed-scaling" in names:
        yield from selections(trees, trees.with_patch(tree, first), names | {name}, rest)


def test_every_valid_selection_of_the_stack_applies(trees: Trees, base: str, full: str) -> None:
    found = dict(selections(trees, base, frozenset(), STACK))

    assert len(found) == 48
    assert len(set(found.values())) == 48
    assert found[frozenset(name_of(patch) for patch in STACK)] == full


@pytest.mark.parametrize("patch", CANDIDATES, ids=name_of)
def test_candidates_apply_at_both_ends_of_the_stack(trees: Trees, base: str, full: str, patch: Path) -> None:
    assert trees.with_patch(base, patch) != base
    assert trees.with_patch(full, patch) != full


@pytest.mark.parametrize("patch", [*ZOO, *sorted((PATCHES / "later").glob("*.patch"))], ids=name_of)
def test_planted_faults_apply_on_the_full_stack_with_either_fix(trees: Trees, full: str, patch: Path) -> None:
    for fix in CANDIDATES:
        fixed = trees.with_patch(full, fix)
        assert trees.with_patch(fixed, patch) != fixed


def test_every_patch_says_what_and_why() -> None:
    for patch in sorted(PATCHES.rglob("*.patch")):
        subject, why = patch.read_text().partition("diff --git ")[0].split("\n", 1)
        assert re.fullmatch(r"Subject: (engine|kernels): .{10,80}", subject), patch.name
        assert len(why.split()) >= 4, patch.name


def test_only_one_hunk_makes_the_reader_read_what_was_written(trees: Trees, base: str) -> None:
    text = (PATCHES / "candidates" / "indexer-fp8-layout.patch").read_text()

    assert text.count("diff --git") == text.count("\n@@ ") == 1
    assert "def reader_layout" in text


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("start", "extra", "whole"),
    [
        ("base", None, False),
        ("base", "indexer-bf16-keys", True),
        ("full", None, False),
        ("full", "indexer-fp8-layout", True),
    ],
)
def test_recall_far_back_is_lost_until_a_candidate_is_applied(
    trees: Trees, base: str, full: str, tmp_path: Path, start: str, extra: str | None, whole: bool
) -> None:
    tree = {"base": base, "full": full}[start]
    if extra:
        tree = trees.with_patch(tree, PATCHES / "candidates" / f"{extra}.patch")

    done = trees.run(tree, RECALL, tmp_path)

    assert done.returncode == 0, done.stderr
    recall = float(done.stdout)
    assert recall == 1.0 if whole else recall <= 0.6


@pytest.mark.e2e
def test_nvfp4_experts_alone_stop_in_the_hash_router(trees: Trees, base: str, tmp_path: Path) -> None:
    alone = next(patch for patch in STACK if name_of(patch) == "nvfp4-experts")

    done = trees.run(trees.with_patch(base, alone), RECALL, tmp_path)

    assert done.returncode == 1
    assert "HashTopK of layer 0: applying routed_scaling_factor on output is not implemented" in done.stderr
