"""Readings and findings keep their link when the repository under them is rebased or a file shifts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.bench import Bench
from lab.case import Case, create_case, open_case
from lab.investigate import investigate
from lab.readings import freshness, make_reading
from lab.recheck import recheck
from tests.lab.conftest import Repo, make_foreign_repo


@pytest.fixture(scope="module")
def investigated(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    """A finished investigation with one reading, then the whole stack rebased onto another base."""
    repo = make_foreign_repo(tmp_path_factory.mktemp("rebased"), careful=True)
    with create_case(repo.path, "prices", "the till charges too much") as case:
        case.store.add_reading(make_reading(case.git, "shop/price.py:4-5@main", "what is charged"))
        with Bench(case, job_id=None) as bench:
            investigate(case, bench)
    repo.git("checkout", "--quiet", "-b", "newbase", "v1")
    repo.write("shop/notes.py", "NOTE = 'moved'\n")
    new_base = repo.commit("shop: give something away")
    repo.git("rebase", "--quiet", "--onto", "newbase", "v1", "main")
    repo.git("tag", "--force", "v1", new_base)
    return repo


@pytest.fixture
def reopened(investigated: Repo) -> Iterator[Case]:
    with open_case(investigated.path) as case:
        yield case


def test_findings_keep_their_patch_by_its_identity(reopened: Case) -> None:
    finding = next(f for f in reopened.store.findings() if f.patch == "charge-four")
    patch = reopened.store.patch("charge-four")

    assert patch.commit == reopened.git.commit("main")
    assert finding.patch_id == patch.patch_id
    assert recheck(reopened.store, {}) == []


def test_the_case_follows_base_and_head(reopened: Case, investigated: Repo) -> None:
    info = reopened.store.case()

    assert (info.base, info.head) == (investigated.git("rev-parse", "v1"), investigated.git("rev-parse", "main"))
    assert [patch.name for patch in reopened.stack] == [
        "add-a-discount-table", "read-the-table", "round-rarely", "charge-four",
    ]  # fmt: skip


def test_a_reading_is_found_again_after_the_rebase(reopened: Case) -> None:
    (reading,) = reopened.store.readings()

    found = freshness(reopened.git, reading, reopened.store.case().head)

    assert found.state in ("fresh", "moved")


def test_a_reading_moves_with_its_lines(reopened: Case, investigated: Repo) -> None:
    (reading,) = reopened.store.readings()
    path = investigated.path / "shop" / "price.py"
    path.write_text("# a line above\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    shifted = investigated.commit("shop: a comment")

    found = freshness(reopened.git, reading, shifted)

    assert (found.state, found.start, found.end) == ("moved", reading.start + 1, reading.end + 1)


def test_a_patch_that_left_the_stack_keeps_its_record_and_takes_part_in_nothing(
    reopened: Case, investigated: Repo
) -> None:
    investigated.git("reset", "--quiet", "--hard", "v1")

    with open_case(investigated.path) as case:
        assert case.stack == []
        assert case.store.patch("charge-four").role == "gone"
        assert [f for f in case.store.findings() if f.patch == "charge-four"]
