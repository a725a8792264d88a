"""The worked case keeps itself honest: other faults, other places, other names, the same program.

Each test makes the demo repository with ordinary git commands into another story and runs the whole investigation.
"""

from __future__ import annotations

import os
import random
import re
import string
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lab.bench import Bench
from lab.case import Case, create_case
from lab.demo import make_demo
from lab.findings import summary_of
from lab.investigate import investigate
from lab.series import read_group
from lab.worked import SUSPECTS
from tests.lab.conftest import Repo

pytestmark = pytest.mark.e2e

# Smaller than the shipped target, with the least clusters an equivalence takes.
QUICK = {
    r"--lengths \S+ --contexts \d+ --questions \d+": "--lengths 256,1024 --contexts 32 --questions 2",
    r"\[probe\.differential\](.|\n)*": "",
}
# And only what the symptom and the factor need, or the factor alone.
TWO_PROBES = {r"\[probe\.kl\](.|\n)*": ""}
SCALING_ALONE = {**TWO_PROBES, r"# The symptom(.|\n)*?(?=\[probe\.scaling\])": ""}
# What no single reading of the diff would give away, and which probe sees it.
HARMFUL = ("window-halved", "mix-transposed", "double-factor-silent", "index-keys-zero")


@pytest.fixture
def demo(tmp_path: Path) -> Repo:
    return Repo(make_demo(tmp_path / "demo"))


def rebuild(
    demo: Repo, *, base: str = "", harmful: tuple[int, str, str] | None = None, probes: dict[str, str] | None = None
) -> None:
    """Write the history anew: a quick target, perhaps a candidate mended at base, perhaps one more patch."""
    stack = demo.git("rev-list", "--reverse", "v1..main").split()
    demo.git("checkout", "--quiet", "--detach", "v1")
    toml = (demo.path / "livepath.toml").read_text(encoding="utf-8")
    for pattern, text in {**QUICK, **(probes or {})}.items():
        toml = re.sub(pattern, text, toml)
    demo.write("livepath.toml", toml)
    if base:
        demo.git("apply", f"candidates/{base}.patch")
    demo.commit("engine: as it was deployed")
    demo.git("tag", "--force", "v1")
    for place, commit in enumerate([*stack, ""]):
        if harmful and place == harmful[0]:
            demo.git("apply", "--3way", f"zoo/{harmful[1]}.patch")
            demo.commit(f"engine: tidy\n\nPatch-Name: {harmful[2]}\n")
        if commit:
            demo.git("cherry-pick", commit)
    demo.git("branch", "--force", "main", "HEAD")
    demo.git("checkout", "--quiet", "main")


def investigated(demo: Repo) -> Case:
    case = create_case(demo.path, "story", "facts are lost")
    for name, (tier, reason, suspected) in SUSPECTS.items():
        case.store.put_patch(replace(case.store.patch(name), tier=tier, reason=reason, suspected=suspected))
    with Bench(case, job_id=None) as bench:
        investigate(case, bench)
    return case


def test_a_fault_that_was_mended_at_base_is_not_reproduced(demo: Repo) -> None:
    rebuild(demo, base="indexer-fp8-layout", probes=TWO_PROBES)

    with investigated(demo) as case:
        assert case.store.meta("endpoints")["story"] == "not reproduced"
        assert "would have been seen" in case.store.meta("endpoints")["text"]
        for candidate in case.candidates:
            for verdict in case.store.verdicts(patch=candidate.name):
                assert verdict.verdict != "fix"
                assert "no effect" in verdict.reason
        assert not [verdict for verdict in case.store.verdicts() if verdict.verdict == "culprit"]


def test_a_harmful_patch_drawn_at_random_is_named_with_its_diff(demo: Repo) -> None:
    seed = int(os.environ.get("LIVEPATH_STORY_SEED", "20261129"))
    draw = random.Random(seed)
    fault = draw.choice(HARMFUL)
    place = draw.randrange(len(read_group("stack")) + 1)
    name = "".join(draw.choices(string.ascii_lowercase, k=8))
    print(f"seed {seed}: {fault} at place {place} as {name}")
    rebuild(demo, harmful=(place, fault, name))

    with investigated(demo) as case:
        culprits = {v.patch for v in case.store.verdicts() if v.verdict == "culprit"}
        assert culprits == {name}
        finding = next(f for f in case.store.findings() if f.patch == name)
        assert finding.verdict == "culprit"
        assert finding.diff == case.store.patch(name).diff
        assert finding.diff.startswith("diff --git")
        cleared = {p.name for p in case.stack if summary_of(case.store.verdicts(p.name)).verdict == "exonerated"}
        assert name not in cleared


def test_a_patch_that_multiplies_without_an_event_is_caught_by_its_exponent(demo: Repo) -> None:
    rebuild(demo, harmful=(3, "double-factor-silent", "looks-harmless"), probes=SCALING_ALONE)

    with investigated(demo) as case:
        verdicts = case.store.verdicts(patch="looks-harmless")
        assert {v.verdict for v in verdicts if v.probe == "scaling"} == {"culprit"}
        full = next(run for run in case.store.runs(probe="scaling") if "looks-harmless" in run.patches)
        attempt = case.store.last_good_attempt(full.id or 0)
        assert attempt is not None
        exponents = [m for m in case.store.metrics(attempt.id) if m.name == "exponent" and m.tags["branch"] == "routed"]
        assert exponents
        assert all(abs(metric.value - 2) < 0.05 for metric in exponents)
        # The events claim one multiplication: that disagreement is a finding of its own.
        assert any("disagree" in finding.claim for finding in case.store.findings())


def test_the_demo_has_the_same_history_wherever_it_is_made(tmp_path: Path) -> None:
    environment = {**os.environ, "GIT_AUTHOR_NAME": "somebody", "TZ": "Asia/Tokyo"}
    made = [make_demo(tmp_path / name) for name in ("one", "two")]
    heads = [
        subprocess.run(["git", "rev-parse", "main", "v1"], cwd=path, env=environment, capture_output=True, check=True)
        for path in made
    ]

    assert heads[0].stdout == heads[1].stdout
    assert Repo(made[0]).git("status", "--porcelain") == ""
