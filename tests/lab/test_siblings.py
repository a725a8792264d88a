"""What ran in the stead of code that did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.git import Git
from lab.siblings import siblings
from lab.source import source_of
from tests.lab.conftest import Repo
from tests.lab.recording import record, seen

METHODS = """\
class MoEMethod:
    def __init__(self):
        self.ready = True


class Fp8(MoEMethod):
    def apply(self, x):
        return x * 2


class Unused(MoEMethod):
    def apply(self, x):
        return x * 8


class Nvfp4(MoEMethod):
    def apply(self, x):
        return x * 3
"""


@pytest.fixture
def made(repo: Repo) -> Repo:
    repo.write("engine/methods.py", METHODS)
    repo.write(
        "engine/linear.py",
        "class Linear:\n    def apply(self, x):\n        return x\n\n    def __init__(self):\n        pass\n",
    )
    repo.write("engine/score.py", "def score(x):\n    return x\n")
    repo.write("engine/score_ref.py", "def score_ref(x):\n    return x\n")
    repo.write("tools/apply.py", "def apply(x):\n    return x\n")
    repo.write(
        "main.py",
        "from engine.linear import Linear\nfrom engine.methods import Fp8, Nvfp4\n"
        "from engine.score_ref import score_ref\n"
        "from engine import score\nfrom tools.apply import apply\n"
        "print(apply(Nvfp4().apply(Linear().apply(score_ref(1)))))\n",
    )
    repo.commit("base")
    return repo


def found(repo: Repo, path: str, line: int) -> list[dict[str, Any]]:
    git = Git(repo.path)
    source = source_of(path, Path(repo.path / path).read_text())
    assert source is not None
    return list(siblings(git, git.tree("HEAD"), seen(record(repo.path, "main.py")), path, source, line))


def test_the_method_of_the_sister_class_that_ran_comes_first(made: Repo) -> None:
    rows = found(made, "engine/methods.py", 8)

    assert rows[0] == {"path": "engine/methods.py", "start": 17, "end": 18, "qualname": "Nvfp4.apply"}
    assert [row["qualname"] for row in rows] == ["Nvfp4.apply", "Linear.apply"]


def test_a_method_of_that_name_that_did_not_run_is_no_sibling(made: Repo) -> None:
    assert "Unused.apply" not in [row["qualname"] for row in found(made, "engine/methods.py", 8)]


def test_the_reference_stands_in_for_its_kernel(made: Repo) -> None:
    assert [row["qualname"] for row in found(made, "engine/score.py", 2)] == ["score_ref"]


def test_a_constructor_is_like_every_other_only_among_relatives(made: Repo) -> None:
    assert found(made, "engine/linear.py", 6) == []


def test_lines_outside_functions_have_no_sibling(made: Repo) -> None:
    assert found(made, "main.py", 1) == []
