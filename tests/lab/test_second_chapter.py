"""The second chapter of the demo: a stack of eight whose last patch makes the routed scaling factor count twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.bench import Bench
from lab.bisect import bisect
from lab.case import Case, open_case
from lab.demo import make_demo
from lab.findings import summary_of
from lab.second import open_second_case
from store.errors import RepoError
from tests.lab.conftest import Repo
from tui.__main__ import main

# Enough to see the fault, and no more.
QUICK = {
    r"probes\.needle .*\"": 'probes.needle --lengths 256,1024 --contexts 24 --questions 2"',
    r"probes\.kl\"": 'probes.kl --lengths 192 --contexts 12 --long-lengths 1024 --long 2"',
}


def test_its_history_is_fixed_and_goes_on_from_main(tmp_path: Path) -> None:
    one, two = (Repo(make_demo(tmp_path / name, chapter=2)) for name in ("one", "two"))

    assert one.git("rev-parse", "chapter-2", "main", "v1") == two.git("rev-parse", "chapter-2", "main", "v1")
    assert one.git("log", "--format=%(trailers:key=Patch-Name,valueonly,separator=)", "main..chapter-2").split() == [
        "marlin-runner",
        "indexer-fp8-layout",
    ]
    assert one.git("status", "--porcelain") == ""
    assert one.git("rev-parse", "--abbrev-ref", "HEAD") == "chapter-2"


def test_a_chapter_does_not_take_the_place_of_the_other(tmp_path: Path) -> None:
    make_demo(tmp_path / "one")
    make_demo(tmp_path / "two", chapter=2)
    before = Repo(tmp_path / "two").git("rev-parse", "HEAD")

    with pytest.raises(RepoError, match="holds chapter 1 of the demo, not 2"):
        make_demo(tmp_path / "one", chapter=2)
    with pytest.raises(RepoError, match="holds chapter 2 of the demo, not 1"):
        make_demo(tmp_path / "two")

    assert Repo(make_demo(tmp_path / "two", chapter=2)).git("rev-parse", "HEAD") == before


def test_its_case_holds_no_result(tmp_path: Path) -> None:
    with open_second_case(tmp_path / "demo") as case:
        assert len(case.stack) == 8
        assert case.slug == f"scaling-{case.store.case().head[:8]}"
        assert case.store.runs() == case.store.verdicts() == case.store.findings() == []
        assert {hypothesis.state for hypothesis in case.store.hypotheses()} == {"open"}
        slug = case.slug

    with open_second_case(tmp_path / "demo") as again:
        assert again.slug == slug
        assert len(again.store.hypotheses()) == 4


def quick_case(folder: Path) -> Case:
    """The second case with smaller probes; livepath.toml is read from the work tree."""
    open_second_case(folder).close()
    toml = folder / "livepath.toml"
    text = toml.read_text(encoding="utf-8")
    for pattern, quick in QUICK.items():
        text, count = re.subn(pattern, quick, text)
        assert count == 1, pattern
    toml.write_text(text, encoding="utf-8")
    return open_case(folder)


@pytest.mark.e2e
def test_a_bisect_names_the_patch_that_recall_does_not_notice(tmp_path: Path) -> None:
    with quick_case(tmp_path / "demo") as case:
        with Bench(case, job_id=None) as bench:
            message = bisect(case, bench, probe="scaling")
        store = case.store
        (record,) = store.bisects()
        (finding,) = [finding for finding in store.findings() if finding.patch]

        assert message.startswith("scaling: culprit marlin-runner; ")
        assert record.culprits == ("marlin-runner",)
        assert [step["outcome"] for step in record.steps] == ["equivalent"] * 3 + ["bracket worse"]
        assert summary_of(store.verdicts("marlin-runner")).verdict == "culprit"
        assert finding.verdict == "culprit"
        assert '+    runners = ("marlin",' in finding.diff
        for says in ("exponent 2.00 with it, 1.00 without", "needle does not notice it", "kl notices it: bad with it"):
            assert says in finding.claim
        assert [hypothesis.state for hypothesis in store.hypotheses()][:2] == ["supported", "supported"]
        assert store.hypotheses()[3].state == "supported"
        recall = [item.score for run in store.runs(probe="needle", arm="full") for item in _items(case, run.id or 0)]
        assert len(recall) == 96
        assert sum(recall) / len(recall) >= 0.95
        assert not (case.folder / "worktrees").exists()


def _items(case: Case, run_id: int) -> list[object]:
    attempt = case.store.last_good_attempt(run_id)
    return list(case.store.items(attempt.id)) if attempt else []


def test_the_command_makes_it_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"

    assert main(["demo", "--chapter", "2", str(folder), "--json"]) == 0

    answer = capsys.readouterr()
    assert json.loads(answer.out)["case"].startswith("scaling-")
    assert f"livepath bisect start --probe scaling -C {folder}" in answer.err
    assert main(["demo", str(folder)]) == 1
