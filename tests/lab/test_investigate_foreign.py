"""The whole investigation on a ten-line foreign repository whose probe is pytest and which writes no events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lab.ab import compare_patch
from lab.bench import Bench
from lab.bisect import bisect
from lab.case import Case, create_case, open_case
from lab.findings import summary_of
from lab.investigate import investigate
from store.models import Hypothesis, Predicate
from tests.lab.conftest import Repo, make_foreign_repo


@pytest.fixture
def case(foreign_repo: Repo) -> Iterator[Case]:
    with create_case(foreign_repo.path, "prices", "the till charges too much") as opened:
        yield opened


@pytest.fixture(scope="module")
def investigated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """One finished investigation that several tests look at."""
    repo = make_foreign_repo(tmp_path_factory.mktemp("shared"), careful=True)
    with create_case(repo.path, "prices", "the till charges too much") as opened:
        run_investigation(opened)
        yield opened


def run_investigation(case: Case) -> str:
    with Bench(case, job_id=None) as bench:
        return investigate(case, bench)


def test_the_breaking_commit_is_named_with_its_diff(investigated: Case) -> None:
    case = investigated
    finding = next(f for f in case.store.findings() if f.patch == "charge-four")
    assert finding.verdict == "culprit"
    assert "+    return amount * 4" in finding.diff
    assert finding.patch_id == case.store.patch("charge-four").patch_id


def test_a_patch_whose_lines_never_ran_is_dead_and_gets_no_ab(investigated: Case) -> None:
    case = investigated

    verdict = summary_of(case.store.verdicts(patch="round-rarely"))
    assert verdict.verdict == "dead"
    assert verdict.comparison_id is None
    assert "full-round-rarely" not in {run.arm for run in case.store.runs()}


def test_a_patch_that_needs_another_is_found_by_taking_the_other_out(investigated: Case) -> None:
    case = investigated

    verdicts = case.store.verdicts(patch="read-the-table")
    assert any(verdict.needs == ("add-a-discount-table",) for verdict in verdicts)
    # A probe without planted faults can clear nobody.
    assert summary_of(verdicts).verdict == "inconclusive"
    assert all("no effect seen" in verdict.reason for verdict in verdicts)


def test_a_second_investigation_runs_nothing_again(investigated: Case) -> None:
    case = investigated
    before = [(run.id, len(case.store.attempts(run.id or 0))) for run in case.store.runs()]
    claims = [finding.claim for finding in case.store.findings()]

    run_investigation(case)

    assert [(run.id, len(case.store.attempts(run.id or 0))) for run in case.store.runs()] == before
    assert [finding.claim for finding in case.store.findings()] == claims


def test_nothing_is_left_behind_but_the_record(case: Case, foreign_repo: Repo) -> None:
    head, status = foreign_repo.git("rev-parse", "HEAD"), foreign_repo.git("status", "--porcelain")

    message = run_investigation(case)

    assert message.startswith("regression; culprit charge-four")
    assert foreign_repo.git("worktree", "list").count("\n") == 0
    assert not (case.folder / "worktrees").exists()
    assert (foreign_repo.git("rev-parse", "HEAD"), foreign_repo.git("status", "--porcelain")) == (head, status)
    assert foreign_repo.git("for-each-ref", "--format=%(refname)").split() == ["refs/heads/main", "refs/tags/v1"]


def test_a_fault_that_is_not_there_is_not_reproduced(case: Case, foreign_repo: Repo) -> None:
    foreign_repo.git("revert", "--no-edit", "HEAD")
    case.close()

    with create_case(foreign_repo.path, "mended", "the till charges too much") as mended:
        message = run_investigation(mended)

        assert message.startswith("not reproduced")
        assert not [verdict for verdict in mended.store.verdicts() if verdict.verdict == "culprit"]


def test_a_prediction_that_was_written_first_is_decided_by_its_runs(case: Case) -> None:
    predicate = Predicate(probe="suite", metric="score", arm="base", operator=">=", number=1)
    case.store.add_hypothesis(Hypothesis(text="base passes", predicate=predicate))
    case.store.add_hypothesis(Hypothesis(text="full passes", predicate=replace(predicate, arm="full")))

    run_investigation(case)

    assert [hypothesis.state for hypothesis in case.store.hypotheses()] == ["supported", "refuted"]


def test_what_a_person_said_of_a_patch_stays_when_the_case_is_opened_again(case: Case, foreign_repo: Repo) -> None:
    case.store.put_patch(replace(case.store.patch("charge-four"), tier=1, reason="it is about money"))
    case.close()

    with open_case(foreign_repo.path) as again:
        patch = again.store.patch("charge-four")
        assert (patch.tier, patch.reason) == (1, "it is about money")


def test_bisect_names_the_culprit_and_writes_its_steps(case: Case) -> None:
    with Bench(case, job_id=None) as bench:
        message = bisect(case, bench)

    (record,) = case.store.bisects()
    assert record.culprits == ("charge-four",)
    assert record.outcome == "culprit"
    assert [step["outcome"] for step in record.steps][-1] == "bracket worse"
    assert "culprit charge-four" in message
    assert case.store.findings()[0].diff == case.store.patch("charge-four").diff


def test_a_single_ab_convicts_on_fresh_items_and_compares_nothing_that_never_ran(case: Case) -> None:
    with Bench(case, job_id=None) as bench:
        guilty = compare_patch(case, bench, patch="charge-four")
        dead = compare_patch(case, bench, patch="round-rarely")

    assert "culprit" in guilty
    (verdict,) = case.store.verdicts(patch="charge-four")
    comparison = case.store.comparison(verdict.comparison_id)
    assert (comparison.outcome, comparison.n) == ("worse", 2)  # two seeds: the first, and fresh items
    assert "dead" in dead
    assert case.store.comparisons(patch="round-rarely") == []
