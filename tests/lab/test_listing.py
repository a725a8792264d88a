"""A file line by line with what a run proved, on the foreign repository."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from lab.ab import run_arm
from lab.bench import Bench
from lab.case import Case, create_case
from lab.listing import listing, traced_files
from store.errors import UsageError
from tests.lab.conftest import make_foreign_repo


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """One run of pytest on base, in which `rarely` is never called."""
    repo = make_foreign_repo(tmp_path_factory.mktemp("listing") / "foreign")
    toml = repo.path / "livepath.toml"
    toml.write_text(toml.read_text().replace("[target]", f'[target]\npython = "{sys.executable}"', 1))
    with create_case(repo.path, "prices", "too much") as opened:
        with Bench(opened, job_id=None) as bench:
            run_arm(opened, bench, probe="suite", arm="base")
        yield opened


def test_every_line_gets_what_the_run_of_that_version_proved(case: Case) -> None:
    found = listing(case, "shop/price.py", "v1")

    assert found.run is not None
    assert found.run.arm == "base"
    words = {line: word for line, word in zip(found.lines, found.words, strict=True) if line}
    assert words["def price(amount):"] == "bound"
    assert words["    return amount * 3"] == "executed"
    assert words["    return amount - 1"] in ("not_seen", "not_seen_blind")
    assert found.words[found.lines.index("")] is None


def test_no_sign_is_carried_over_from_another_version(case: Case) -> None:
    found = listing(case, "shop/price.py", "main")

    assert found.run is None
    assert set(found.words) == {None}
    assert found.note == "no run had this version of the file"


def test_a_file_that_is_not_there_is_refused_in_words(case: Case) -> None:
    with pytest.raises(UsageError, match=r"shop/nope\.py does not exist at"):
        listing(case, "shop/nope.py")


def test_the_traced_files_are_those_of_the_traced_folders(case: Case) -> None:
    assert traced_files(case) == ("shop/__init__.py", "shop/price.py", "shop/table.py")
