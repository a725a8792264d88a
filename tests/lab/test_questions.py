"""Questions answered without a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.case import Case, create_case
from lab.questions import answer_question
from store.errors import LivepathError, UsageError
from tests.lab.conftest import Repo

BASE = """\
class Fp8:
    def apply(self, x, factor):
        return x * self.factor


class HashTopK:
    def route(self, weights):
        return weights
"""
HEAD = (
    BASE
    + """\

    fuse = True

    def scaled(self, weights, config):
        weights.mul_(config.factor)
        weights *= 2
        return weights * float(config["factor"])

    @property
    def doubled(self):
        return self.factor(3) * 2

    def wants_fusion(self):
        return False


class Nvfp4:
    wants_fusion = True

    def __init__(self):
        self.wants_fusion = decide(
            "nvfp4"
        )

    def run(self, config, x):
        scale = config.factor
        loud = x * 3
        return loud * 2 + x.mul(scale)


def decide(method):
    return method == "nvfp4"
"""
)


@pytest.fixture
def case(repo: Repo) -> Iterator[Case]:
    repo.write("engine/__init__.py", "")
    repo.write("engine/methods.py", BASE)
    repo.write(
        "livepath.toml",
        'schema = 1\n[target]\nbase = "v1"\nhead = "main"\ntrace = ["engine"]\n[probe.p]\ncommand = "true"\n',
    )
    repo.write(".gitignore", ".livepath/\n")
    repo.commit("first")
    repo.git("tag", "v1")
    repo.write("engine/methods.py", HEAD)
    repo.commit("engine: second")
    with create_case(repo.path, "questions", "wrong answers") as made:
        yield made


def places(case: Case, how: str) -> list[tuple[int, str]]:
    return [(row["start"], row["text"].split("\n")[0]) for row in answer_question(case, how).evidence]


def test_who_multiplies_by_the_factor(case: Case) -> None:
    assert places(case, "multiplies factor") == [
        (3, "return x * self.factor"),
        (13, "weights.mul_(config.factor)"),
        (15, 'return weights * float(config["factor"])'),
        (36, "return loud * 2 + x.mul(scale)"),
    ]


def test_an_answer_tells_head_from_base(case: Case) -> None:
    text = answer_question(case, "multiplies factor").text

    assert text.startswith("4 multiplications of `factor` at head, 3 of them not at base; 0 only at base")
    assert "engine/methods.py:3 Fp8.apply  return x * self.factor\n" in text
    assert "engine/methods.py:13 HashTopK.scaled  weights.mul_(config.factor)  (not at base)" in text


def test_what_each_method_declares(case: Case) -> None:
    answer = answer_question(case, "declares wants_fusion")

    assert [row["start"] for row in answer.evidence] == [21, 26, 29, 39]
    assert "HashTopK.wants_fusion  def wants_fusion(self): … return False" in answer.text
    assert "Nvfp4  wants_fusion = True" in answer.text
    assert 'Nvfp4.__init__  self.wants_fusion = decide( "nvfp4" )' in answer.text
    assert 'decide  def decide(method): … return method == "nvfp4"' in answer.text


def test_grep_names_the_definition_of_each_line(case: Case) -> None:
    answer = answer_question(case, "grep return .*weights")

    assert "engine/methods.py:8 HashTopK.route  return weights" in answer.text
    assert answer.evidence[0] == {
        "kind": "reading",
        "path": "engine/methods.py",
        "start": 8,
        "end": 8,
        "text": "return weights",
    }


def test_a_module_is_looked_up_where_a_run_would_find_it(case: Case) -> None:
    answer = answer_question(case, "loaded engine.methods")

    assert answer.text == "`engine.methods` comes from the worktree: engine/methods.py, the file of the case's head"
    assert answer.evidence[0]["kind"] == "process"


def test_a_module_from_elsewhere_is_called_out(case: Case) -> None:
    answer = answer_question(case, "loaded json")

    assert "does NOT come from the worktree" in answer.text
    assert answer.evidence[0]["path"].endswith("json/__init__.py")


def test_looking_a_module_up_does_not_run_it(repo: Repo, case: Case, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    repo.write("engine/bomb.py", f"open({str(mark)!r}, 'w')\n")
    repo.commit("bomb")
    with create_case(repo.path, "again", "wrong answers") as made:
        assert "comes from the worktree" in answer_question(made, "loaded engine.bomb").text

    assert not mark.exists()


def test_a_module_that_is_not_there_is_said_to_be_missing(case: Case) -> None:
    assert "cannot be found" in answer_question(case, "loaded engine.nothing").text
    assert "cannot be found" in answer_question(case, "loaded nothing.at_all").text


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("guess why", "no way to answer"),
        ("grep", "no way to answer"),
        ("grep (", "no pattern"),
        ("loaded a;b", "no module name"),
    ],
)
def test_a_malformed_question_says_what_is_wrong(case: Case, how: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        answer_question(case, how)


def test_a_parent_package_that_fails_to_import_is_one_clear_error(repo: Repo, case: Case) -> None:
    repo.write("engine/__init__.py", "raise RuntimeError('no weights')\n")
    repo.commit("broken")
    with create_case(repo.path, "broken", "wrong answers") as made, pytest.raises(LivepathError, match="no weights"):
        answer_question(made, "loaded engine.methods")
