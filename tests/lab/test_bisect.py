"""The search of a stack whose probe is pytest: what cannot be tested, ends that say no, other probes that look on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.bench import Bench
from lab.bisect import bisect
from lab.case import Case, create_case
from lab.findings import summary_of
from store.errors import RunError
from store.models import Hypothesis, Predicate
from tests.lab.conftest import CAREFUL, Repo, make_repo

TOML = f"""\
schema = 1
[target]
repo = "."
base = "v1"
head = "main"
python = "{sys.executable}"
trace = ["shop"]
env = {{ PYTEST_ADDOPTS = "-p no:cacheprovider" }}
[probe.suite]
command = "python3 -m pytest -q tests"
timeout_s = 30
[probe.imports]
command = "python3 -c 'import shop.price'"
timeout_s = 30
"""
PRICE = "def price(amount):\n    return amount * 3\n"


def stack(folder: Path, *bodies: str) -> Repo:
    """A repository whose patches `one`, `two`, ... rewrite the price."""
    repo = make_repo(folder)
    repo.write("tests/conftest.py", CAREFUL)
    repo.write("tests/test_price.py", "from shop.price import price\n\n\ndef test_price():\n    assert price(2) == 6\n")
    repo.write("shop/__init__.py", "")
    repo.write("shop/price.py", bodies[0])
    repo.write("livepath.toml", TOML)
    repo.write(".gitignore", "__pycache__/\n.livepath/\n")
    repo.commit("first")
    repo.git("tag", "v1")
    for name, body in zip(("one", "two", "three", "four", "five"), bodies[1:], strict=False):
        repo.write("shop/price.py", body)
        repo.commit(f"change\n\nPatch-Name: {name}\n")
    return repo


def search(repo: Repo, *hypotheses: Hypothesis) -> tuple[str, Case]:
    case = create_case(repo.path, "prices", "the till charges too much")
    for hypothesis in hypotheses:
        case.store.add_hypothesis(hypothesis)
    with Bench(case, job_id=None) as bench:
        return bisect(case, bench, probe="suite"), case


def test_a_prefix_that_cannot_be_tested_is_stepped_over_and_never_bad(tmp_path: Path) -> None:
    crash, four = f"import nowhere\n{PRICE}", PRICE.replace("3", "4")
    repo = stack(tmp_path / "repo", PRICE, f"# a\n{PRICE}", crash, f"# b\n{PRICE}", f"# c\n{PRICE}", four)

    message, case = search(repo)

    with case:
        (record,) = case.store.bisects()
        assert record.culprits == ("five",)
        assert {(step["last"], step["outcome"]) for step in record.steps} >= {("two", "cannot_be_tested")}
        assert not [verdict for verdict in case.store.verdicts() if verdict.patch == "two"]
        assert "culprit five" in message


def test_patches_that_cannot_be_told_apart_share_the_verdict(tmp_path: Path) -> None:
    crash, four = f"import nowhere\n{PRICE}", PRICE.replace("3", "4")
    repo = stack(tmp_path / "repo", PRICE, f"# a\n{PRICE}", crash, four)

    _, case = search(repo)

    with case:
        verdict = summary_of(case.store.verdicts("three"))
        assert (verdict.verdict, verdict.verdict_with) == ("culprit", ("two",))
        assert "it may be two as well" in case.store.bisects()[0].text


def test_an_end_that_cannot_be_tested_is_no_bad_end(tmp_path: Path) -> None:
    repo = stack(tmp_path / "repo", PRICE, f"# a\n{PRICE}", f"import nowhere\n{PRICE}")

    with pytest.raises(RunError, match="cannot be tested on full"):
        search(repo)


def test_a_base_that_is_bad_means_an_older_fault(tmp_path: Path) -> None:
    four = PRICE.replace("3", "4")

    message, case = search(stack(tmp_path / "repo", four, f"# a\n{four}"))

    with case:
        assert "older than the stack" in message
        assert case.store.bisects()[0].outcome == "older than the stack"


def test_a_stack_that_does_no_harm_is_not_reproduced(tmp_path: Path) -> None:
    message, case = search(stack(tmp_path / "repo", PRICE, f"# a\n{PRICE}", f"# b\n{PRICE}"))

    with case:
        assert "not reproduced" in message
        assert case.store.findings() == []


def test_two_culprits_are_both_found(tmp_path: Path) -> None:
    # Far enough apart that one change applies without the other.
    pair = "def price(amount):\n    amount = amount\n" + "    # ...\n" * 8 + "    return amount * 3\n"
    first = pair.replace("amount = amount", "amount = amount + 1")
    both = first.replace("* 3", "* 4")

    _, case = search(stack(tmp_path / "repo", pair, first, f"{first}# b\n", f"{both}# b\n"))

    with case:
        assert set(case.store.bisects()[0].culprits) == {"one", "three"}


def test_what_other_probes_make_of_the_culprit_is_said_and_hypotheses_are_decided(tmp_path: Path) -> None:
    repo = stack(tmp_path / "repo", PRICE, f"# a\n{PRICE}", PRICE.replace("3", "4"))
    toml = TOML.replace("python3 -c 'import shop.price'\"", 'python3 -c \'import shop.price\'"\ngood = ">= 1"')
    repo.write("livepath.toml", toml)
    fails = Predicate(probe="suite", metric="score", arm="full", operator="<", number=1)
    never = Predicate(probe="imports", metric="score", arm="base", operator=">=", number=1)

    _, case = search(repo, Hypothesis(text="full fails", predicate=fails), Hypothesis(text="?", predicate=never))

    with case:
        assert "imports does not notice it: good with it" in case.store.findings()[0].claim
        assert [hypothesis.state for hypothesis in case.store.hypotheses()] == ["supported", "open"]
        assert not case.store.runs(probe="imports", arm="base")


def test_a_difference_whose_changed_lines_never_ran_convicts_nobody(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "flaky")
    trouble = tmp_path / "trouble"  # stands for a machine that treats two trees differently
    repo.write("pkg/__init__.py", "")
    repo.write("pkg/mod.py", "def never():\n    return 1\n")
    repo.write(
        "probe.py",
        "import pathlib, sys\nimport pkg.mod\n"
        f"sys.exit(pathlib.Path.cwd().name in pathlib.Path({str(trouble)!r}).read_text())\n",
    )
    repo.write(
        "livepath.toml",
        'schema = 1\n[target]\nbase = "v1"\nhead = "main"\ntrace = ["pkg"]\n[probe.p]\ncommand = "python3 probe.py"\n',
    )
    repo.commit("first")
    repo.git("tag", "v1")
    repo.write("pkg/mod.py", "def never():\n    return 2\n")
    repo.commit("pkg: looks guilty")
    trouble.write_text(repo.git("rev-parse", "main^{tree}")[:16], encoding="utf-8")

    with create_case(repo.path, "void", "it fails") as case, Bench(case, job_id=None) as bench:
        bisect(case, bench)

        (record,) = case.store.bisects()
        assert record.outcome == "inconclusive"
        assert record.culprits == ()
        assert record.steps[-1]["outcome"].startswith("void: none of its 1 acting lines ran")
