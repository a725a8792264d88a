"""Which lines of a patch can act, and where they are in the tree of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.carry import carry
from lab.changed import Change, changed_lines
from lab.git import Git
from tests.lab.conftest import Repo

Changes = Callable[[str, str], tuple[Change, ...]]

METHODS = """\
import os


class Fp8:
    fused = True

    def apply(self, x):
        y = x * 2
        y = y + 1
        return y

    def unused(self):
        return 0


def free(x):
    if x:
        a = 1
        b = 2
    return x
"""


@pytest.fixture
def changes(repo: Repo) -> Changes:
    """The changes between two texts of one file."""

    def make(old: str, new: str, name: str = "engine/methods.py") -> tuple[Change, ...]:
        repo.write(name, old)
        first = repo.commit("without")
        repo.write(name, new)
        second = repo.commit("with")
        return changed_lines(Git(repo.path), before=first, after=second)

    return make


def rows(changes: tuple[Change, ...]) -> list[tuple[int, str, str]]:
    return [(change.line, change.role, change.place) for change in changes]


def test_an_edited_statement_acts_where_it_stands(changes: Changes) -> None:
    (change,) = changes(METHODS, METHODS.replace("x * 2", "x * 4"))

    assert (change.path, change.line, change.text) == ("engine/methods.py", 8, "y = x * 4")
    assert (change.role, change.place, change.qualname) == ("acting", "line", "Fp8.apply")


def test_new_definitions_bind_and_their_bodies_act(changes: Changes) -> None:
    found = changes(METHODS, METHODS + "\n\ndef extra(x):\n    return x\n")

    assert rows(found) == [(23, "bound", "line"), (24, "acting", "line")]


def test_new_imports_bind(changes: Changes) -> None:
    assert rows(changes(METHODS, "import sys\n" + METHODS)) == [(1, "bound", "line")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def unused(self):", "def unused(self, deep):"),
        ("def unused(self):", "def unused(self) -> int:"),
        ("class Fp8:", "class Fp8(object):"),
        ("def free(x):", "def free(x=1):"),
        ("def free(x):", "@cached\ndef free(x):"),
        ("    fused = True", "    fused = False"),
        ("import os", "import os\nLIMIT = 3"),
        ("    if x:", "    if not x:"),
    ],
)
def test_changed_signatures_defaults_decorators_constants_and_conditions_act(
    changes: Changes, old: str, new: str
) -> None:
    assert [change.role for change in changes(METHODS, METHODS.replace(old, new))] == ["acting"]


def test_comments_docstrings_and_formatting_change_nothing(changes: Changes) -> None:
    new = METHODS.replace(
        "        y = x * 2\n", '        """Twice."""\n        # why\n        y = (\n            x * 2\n        )\n'
    )

    assert changes(METHODS, new) == ()


def test_formatting_beside_a_real_change_stays_nothing(changes: Changes) -> None:
    new = METHODS.replace("y = x * 2", "y = x  *  2").replace("y = y + 1", "y = y + 3")

    assert [(change.line, change.text) for change in changes(METHODS, new)] == [(9, "y = y + 3")]


def test_indenting_a_statement_under_a_new_condition_acts(changes: Changes) -> None:
    new = METHODS.replace("        y = y + 1\n", "        if x:\n            y = y + 1\n")

    assert rows(changes(METHODS, new)) == [(9, "acting", "line"), (10, "acting", "line")]


def test_a_removed_statement_leaves_a_gap_between_its_siblings(changes: Changes) -> None:
    (gap,) = changes(METHODS, METHODS.replace("        y = y + 1\n", ""))

    assert (gap.place, gap.line, gap.before, gap.after) == ("gap", 9, (8, 8), (9, 9))
    assert gap.qualname == "Fp8.apply"


def test_a_removed_block_is_one_gap(changes: Changes) -> None:
    (gap,) = changes(METHODS, METHODS.replace("    if x:\n        a = 1\n        b = 2\n", ""))

    assert (gap.place, gap.before, gap.after) == ("gap", None, (17, 17))


def test_a_block_that_was_replaced_is_judged_by_what_stands_there_now(changes: Changes) -> None:
    bound, gap = changes(METHODS, METHODS.replace("        a = 1\n        b = 2\n", "        import json\n"))

    assert (bound.role, bound.line) == ("bound", 18)
    assert (gap.place, gap.before, gap.after) == ("gap", None, (18, 18))


def test_a_statement_that_went_under_an_old_condition_leaves_a_gap_where_it_was(changes: Changes) -> None:
    old = "def f(y, z):\n    y = y * 2\n    if z:\n        y += 1\n    return y\n"
    new = "def f(y, z):\n    if z:\n        y = y * 2\n        y += 1\n    return y\n"

    found = {change.place: change for change in changes(old, new)}

    assert (found["gap"].before, found["gap"].after) == (None, (2, 4))
    assert found["line"].line == 3


def test_an_import_that_is_dropped_in_favour_of_another_binding_acts(changes: Changes) -> None:
    old = "def run():\n    return 1\n\n\nfrom engine.fast import run\nimport torch\n\nrun()\n"
    new = "def run():\n    return 1\n\n\n\nrun()\n"

    (gap,) = changes(old, new)

    assert (gap.place, gap.text) == ("gap", "(removed) from engine.fast import run")


def test_an_import_that_gives_a_known_name_another_origin_acts(changes: Changes) -> None:
    old = "from engine.fp8 import run, load\nimport torch\n\nrun(load, torch)\n"
    new = "from engine.fp8 import load\nfrom engine.nvfp4 import run\nimport torch\n\nrun(load, torch)\n"

    assert [(change.line, change.role) for change in changes(old, new)] == [(1, "bound"), (2, "acting")]


def test_imports_for_the_type_checker_only_bind(changes: Changes) -> None:
    new = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import torch\n" + METHODS

    assert {change.role for change in changes(METHODS, new)} == {"bound"}


def test_untouched_lines_that_come_into_another_block_act(changes: Changes) -> None:
    old = "def f():\n    g()\n    return 1\n"
    new = "g()\ndef f():\n    return 1\n"
    moved = "def f():\n    g()\n\ndef h():\n    k()\n"

    assert [change.text for change in changes(old, new) if change.role == "acting" and change.place == "line"] == [
        "g()"
    ]
    found = changes(moved, moved.replace("def h():\n", ""))
    assert [(c.text, c.qualname) for c in found if c.place == "line"] == [("k()", "f")]


def test_an_elif_that_becomes_else_still_acts(changes: Changes) -> None:
    old = "def f(a, b):\n    if a:\n        c = 1\n    elif b:\n        c = 2\n    return c\n"

    found = changes(old, old.replace("elif b:", "else:"))

    rows_found = [(change.role, change.place, change.line) for change in found]
    assert rows_found == [("acting", "gap", 5), ("acting", "line", 5)]


def test_a_removed_definition_asks_for_the_run_without(changes: Changes) -> None:
    (change,) = changes(METHODS, METHODS.replace("    def unused(self):\n        return 0\n", ""))

    assert (change.place, change.qualname, change.after) == ("removed", "Fp8.unused", (12, 13))


def test_a_removed_file_asks_for_the_run_without(repo: Repo) -> None:
    repo.write("a.py", "x = 1\n")
    first = repo.commit("without")
    repo.git("rm", "--quiet", "a.py")
    second = repo.commit("with")

    (change,) = changed_lines(Git(repo.path), before=first, after=second)

    assert (change.path, change.place, change.role) == ("a.py", "removed", "acting")


def test_data_unparsable_python_modes_and_empty_files_are_unknown(repo: Repo) -> None:
    repo.write("tool.py", "x = 1\n")
    first = repo.commit("without")
    repo.write("config.json", "{}\n")
    repo.write("legacy.py", "print 'two'\n")
    repo.write("pkg/__init__.py", "")
    (repo.path / "tool.py").chmod(0o755)
    second = repo.commit("with")

    found = {change.path: change for change in changed_lines(Git(repo.path), before=first, after=second)}

    assert {path: change.role for path, change in found.items()} == dict.fromkeys(
        ["config.json", "legacy.py", "pkg/__init__.py", "tool.py"], "unknown"
    )
    assert "no Python" in found["config.json"].reason
    assert "cannot parse" in found["legacy.py"].reason


def test_prose_gives_no_row_unless_it_lies_among_traced_code(repo: Repo) -> None:
    first = repo.commit("without")
    for name in ("README.md", "docs/guide.md", "engine/prompt.md"):
        repo.write(name, "words\n")
    second = repo.commit("with")

    found = changed_lines(Git(repo.path), before=first, after=second, trace=("engine",))

    assert [(change.path, change.role) for change in found] == [("engine/prompt.md", "unknown")]


def test_lines_are_carried_into_a_tree_that_later_patches_shifted(repo: Repo) -> None:
    repo.write("m.py", METHODS)
    first = repo.commit("without")
    patched = METHODS.replace("x * 2", "x * 4")
    repo.write("m.py", patched)
    second = repo.commit("with")
    repo.write("m.py", "import sys\nimport re\n" + patched)
    third = repo.commit("later")

    git = Git(repo.path)
    (change,) = carry(git, changed_lines(git, before=first, after=second), after=second, tree=third)

    assert (change.line, change.place) == (10, "line")


def test_lines_a_later_patch_rewrote_or_removed_are_named_so(repo: Repo) -> None:
    repo.write("m.py", METHODS)
    first = repo.commit("without")
    repo.write("m.py", METHODS.replace("x * 2", "x * 4").replace("return x\n", "return x + 1\n"))
    second = repo.commit("with")
    repo.write("m.py", METHODS.replace("x * 2", "x * 8").replace("    return x\n", ""))
    third = repo.commit("later")

    git = Git(repo.path)
    rewritten, superseded = carry(git, changed_lines(git, before=first, after=second), after=second, tree=third)

    assert (rewritten.place, rewritten.line, rewritten.before) == ("rewritten", 8, (8, 8))
    assert "rewrote" in rewritten.reason
    assert superseded.place == "superseded"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    repo = Repo(tmp_path_factory.mktemp("scratch"))
    repo.git("init", "--quiet")
    return repo


def _tree(git: Git, lines: list[str]) -> str:
    blob = git.run("hash-object", "-w", "--stdin", stdin="".join(f"{line}\n" for line in lines).encode())
    return git.run("mktree", stdin=f"100644 blob {blob}\tm.py\n".encode())


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    cut=st.lists(st.integers(0, 11), max_size=4, unique=True),
    extra=st.lists(st.integers(0, 12), max_size=4),
)
def test_added_lines_are_found_with_their_text_under_random_later_edits(
    scratch: Repo, data: st.DataObject, cut: list[int], extra: list[int]
) -> None:
    git = Git(scratch.path)
    base = [f"value_{n} = {n}" for n in range(12)]
    where = data.draw(st.integers(0, 12))
    patched = [*base[:where], "added_1 = 1", "added_2 = 2", *base[where:]]
    later = [line for line in patched if line not in {base[n] for n in cut}]
    for number, at in enumerate(extra):
        later.insert(at, f"later_{number} = {number}")

    after = _tree(git, patched)
    found = carry(git, changed_lines(git, before=_tree(git, base), after=after), after=after, tree=_tree(git, later))

    lines = {change.text: change for change in found}
    assert set(lines) == {"added_1 = 1", "added_2 = 2"}
    assert all(later[change.line - 1] == text and change.place == "line" for text, change in lines.items())
