"""What real recorded runs prove about patches and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from lab.git import Git
from lab.live import PatchLiveness, patch_liveness
from lab.seen import Seen
from lab.words import Pages, Word, range_word
from store.models import ExecutedFile, Patch
from tests.lab.conftest import Repo
from tests.lab.recording import attempt, commit_patch, record, seen

METHODS = """\
class Base:
    def apply(self, x):
        return x


class Fp8(Base):
    kind = "fp8"

    def apply(self, x):
        y = x * 2
        if x > 100:
            y = 0
        return y


class Nvfp4(Base):
    def apply(self, x, scale=3):
        return x * scale


def pick(kind):
    if kind == "fp8":
        return Fp8()
    return Nvfp4()


def short(x): return x + 1
"""
MAIN = "import sys\nfrom engine.methods import pick\n\nprint(pick(sys.argv[1]).apply(1))\n"


@dataclass
class Subject:
    """A little engine in a repository, to be patched and run."""

    repo: Repo

    @property
    def git(self) -> Git:
        return Git(self.repo.path)

    def patch(self, files: dict[str, str | None], name: str = "p") -> Patch:
        for path, text in files.items():
            if text is None:
                self.repo.git("rm", "--quiet", path)
            else:
                self.repo.write(path, text)
        commit = self.repo.commit(name)
        return commit_patch(name, commit, self.git.diff(f"{commit}^", commit))

    def run(self, *words: str) -> dict[str, ExecutedFile]:
        return record(self.repo.path, *(words or ("main.py", "nvfp4")))

    def liveness(
        self,
        patch: Patch,
        files: dict[str, ExecutedFile],
        *,
        fully: bool = True,
        trace: Sequence[str] = (".",),
        without: Seen | None = None,
    ) -> PatchLiveness:
        return patch_liveness(
            self.git,
            patch,
            tree=self.git.tree("HEAD"),
            executed=files,
            attempt=attempt(fully=fully),
            run_id=7,
            trace=trace,
            without=without,
        )


@pytest.fixture
def subject(repo: Repo) -> Subject:
    repo.write("engine/__init__.py", "")
    repo.write("engine/methods.py", METHODS)
    repo.write("main.py", MAIN)
    repo.commit("base")
    return Subject(repo)


def methods(old: str, new: str) -> dict[str, str | None]:
    assert old in METHODS
    return {"engine/methods.py": METHODS.replace(old, new)}


def test_a_patch_whose_line_ran_is_live_and_its_count_is_not_guessed(subject: Subject) -> None:
    patch = subject.patch(methods("x * scale", "x * scale * 1"))

    found = subject.liveness(patch, subject.run())

    (line,) = found.lines
    assert (line.path, line.line, line.word, line.count, line.acting) == (
        "engine/methods.py",
        18,
        "executed",
        None,
        True,
    )
    assert (found.acting_executed, found.acting_total, found.dead, line.run_id) == (1, 1, False, 7)


def test_the_patch_of_the_other_class_is_dead_and_says_where_control_did_not_go(subject: Subject) -> None:
    patch = subject.patch(methods("y = x * 2", "y = x * 4"))

    found = subject.liveness(patch, subject.run())

    assert found.dead
    assert [line.word for line in found.lines] == ["not_seen"]
    assert "`Fp8.apply` was never entered" in found.why


def test_the_same_patch_is_live_where_its_class_is_chosen(subject: Subject) -> None:
    patch = subject.patch(methods("y = x * 2", "y = x * 4"))

    assert not subject.liveness(patch, subject.run("main.py", "fp8")).dead


def test_a_dead_branch_names_the_condition_that_went_the_other_way(subject: Subject) -> None:
    patch = subject.patch(methods("y = 0", "y = 9"))

    found = subject.liveness(patch, subject.run("main.py", "fp8"))

    assert found.dead
    assert "`if x > 100:` went the other way" in found.lines[0].reason


def test_nothing_is_dead_in_a_run_with_a_blind_spot(subject: Subject) -> None:
    patch = subject.patch(methods("y = x * 2", "y = x * 4"))

    found = subject.liveness(patch, subject.run(), fully=False)

    assert not found.dead
    assert [(line.word, line.reason) for line in found.lines] == [("not_seen_blind", "a process was killed")]
    assert found.unknown == 1


def test_nothing_is_dead_outside_the_traced_folders(subject: Subject) -> None:
    patch = subject.patch({"tools/extra.py": "x = 1\n"})

    found = subject.liveness(patch, subject.run(), trace=("engine",))

    assert not found.dead
    assert "outside the traced folders" in found.lines[0].reason


def test_a_module_nobody_imports_is_dead(subject: Subject) -> None:
    patch = subject.patch({"engine/gpu.py": "import math\n\nLIMIT = 3\n\n\ndef launch():\n    return math.pi\n"})

    found = subject.liveness(patch, subject.run())

    assert found.dead
    assert {line.word for line in found.lines} == {"not_seen"}
    assert found.lines[0].reason == "the file was never loaded"


def test_a_class_attribute_is_executed_at_import_though_no_method_is_called(subject: Subject) -> None:
    patch = subject.patch(methods('kind = "fp8"', 'kind = "fp8-block"'))

    found = subject.liveness(patch, subject.run())

    assert not found.dead
    assert [line.word for line in found.lines] == ["executed"]


def test_a_new_function_that_is_only_bound_does_not_make_a_patch_live(subject: Subject) -> None:
    patch = subject.patch({"engine/methods.py": METHODS + "\n\ndef extra(x):\n    return x\n"})

    found = subject.liveness(patch, subject.run())

    assert [(line.word, line.acting) for line in found.lines] == [("bound", False), ("not_seen", True)]
    assert found.dead


def test_a_comment_has_no_acting_line(subject: Subject) -> None:
    patch = subject.patch(methods("y = x * 2", "y = x * 2  # twice"))

    found = subject.liveness(patch, subject.run())

    assert (found.lines, found.dead, found.acting_total) == ((), True, 0)
    assert "comments" in found.why


def test_data_keeps_a_patch_from_being_dead(subject: Subject) -> None:
    patch = subject.patch({**methods("y = x * 2", "y = x * 4"), "engine/config.json": "{}\n"})

    found = subject.liveness(patch, subject.run())

    assert not found.dead
    assert (found.unknown, found.acting_executed) == (1, 0)


def test_a_removed_statement_is_live_if_control_passed_the_gap(subject: Subject) -> None:
    patch = subject.patch(methods("        if x > 100:\n            y = 0\n", ""))

    assert subject.liveness(patch, subject.run("main.py", "fp8")).acting_executed == 1
    assert subject.liveness(patch, subject.run("main.py", "nvfp4")).dead


def test_a_statement_removed_from_the_end_of_a_block_is_live_only_if_the_block_ran(subject: Subject) -> None:
    subject.patch(methods("            y = 0\n", "            y = 0\n            y = 5\n"), "more")
    patch = subject.patch({"engine/methods.py": METHODS})

    assert subject.liveness(patch, subject.run("main.py", "fp8")).dead


def test_a_removed_method_needs_the_run_without_the_patch(subject: Subject) -> None:
    before = {kind: seen(subject.run("main.py", kind)) for kind in ("fp8", "nvfp4")}
    start = METHODS.index("    def apply(self, x):\n        y = x")
    patch = subject.patch({"engine/methods.py": METHODS[:start] + METHODS[METHODS.index("class Nvfp4") :]})
    files = subject.run()

    assert subject.liveness(patch, files).unknown == 1
    assert not subject.liveness(patch, files).dead
    assert subject.liveness(patch, files, without=before["nvfp4"]).dead
    assert subject.liveness(patch, files, without=before["fp8"]).acting_executed == 1


def test_a_removed_file_that_never_ran_is_dead_with_the_run_without(subject: Subject) -> None:
    subject.patch({"engine/old.py": "LIMIT = 3\n"}, "old")
    before = seen(subject.run())
    patch = subject.patch({"engine/old.py": None})

    assert subject.liveness(patch, subject.run(), without=before).dead


def test_an_except_that_is_removed_acts_where_its_try_ran(subject: Subject) -> None:
    text = "try:\n    x = 1\nexcept ValueError:\n    x = 2\nexcept KeyError:\n    x = 3\n"
    subject.patch({"main.py": text}, "try")
    patch = subject.patch({"main.py": text.replace("except ValueError:\n    x = 2\n", "")})

    assert subject.liveness(patch, subject.run()).acting_executed == 1


def test_a_one_line_function_is_told_apart_by_its_arcs(subject: Subject) -> None:
    patch = subject.patch(methods("return x + 1", "return x + 2"))
    calling = "from engine.methods import short\nshort(1)\n"

    assert subject.liveness(patch, subject.run()).dead
    subject.repo.write("call.py", calling)
    assert not subject.liveness(patch, subject.run("call.py")).dead


def test_a_global_statement_acts_when_its_function_is_entered(subject: Subject) -> None:
    text = "seen = 0\n\n\ndef bump(x):\n    seen = x\n    return seen\n\n\nbump(1)\n"
    subject.patch({"main.py": text}, "bump")
    patch = subject.patch({"main.py": text.replace("    seen = x\n", "    global seen\n    seen = x\n")})

    assert subject.liveness(patch, subject.run()).acting_executed == 1


def test_a_file_that_differs_from_the_tree_proves_nothing(subject: Subject) -> None:
    patch = subject.patch(methods("y = x * 2", "y = x * 4"))
    subject.repo.write("engine/methods.py", METHODS + "\nlate = 1\n")

    found = subject.liveness(patch, subject.run())

    assert found.lines[0].word == "unknown"
    assert not found.dead


def test_a_compiled_function_of_a_loaded_file_is_a_blind_spot(subject: Subject) -> None:
    subject.patch({"triton.py": "def jit(f):\n    return f\n", "main.py": "import engine.kernel\n"}, "stub")
    kernel = "import triton\n\n\n@triton.jit\ndef scores(x):\n    return x * 2\n"
    subject.patch({"engine/kernel.py": kernel}, "kernel")
    patch = subject.patch({"engine/kernel.py": kernel.replace("x * 2", "x * 4")})

    found = subject.liveness(patch, subject.run())

    assert found.lines[0].word == "not_seen_blind"
    assert "compiled by @triton.jit" in found.lines[0].reason


def test_a_patch_is_found_below_later_patches_that_shifted_it(subject: Subject) -> None:
    patch = subject.patch(methods("x * scale", "x * scale * 1"))
    later = METHODS.replace("x * scale", "x * scale * 1")
    subject.patch({"engine/methods.py": "LIMIT = 1\n\n\n" + later}, "later")

    (line,) = subject.liveness(patch, subject.run()).lines

    assert (line.line, line.word) == (21, "executed")


def test_a_patch_whose_line_was_rewritten_later_is_judged_by_what_stands_there(subject: Subject) -> None:
    patch = subject.patch(methods("x * scale", "x * scale * 1"))
    subject.patch(methods("x * scale", "x * scale * 2"), "later")

    (line,) = subject.liveness(patch, subject.run()).lines

    assert line.word == "executed"
    assert "rewrote" in line.reason


def test_a_patch_file_is_placed_by_taking_it_out_again(subject: Subject) -> None:
    commit = subject.patch(methods("y = x * 2", "y = x * 4"))
    patch = Patch(
        name="f", role="candidate", kind="file", position=0, commit=None, patch_id="f", subject="f", diff=commit.diff
    )

    assert subject.liveness(patch, subject.run()).dead


def test_a_patch_file_that_cannot_be_placed_is_unknown_not_dead(subject: Subject) -> None:
    commit = subject.patch(methods("y = x * 2", "y = x * 4"))
    subject.patch(methods("y = x * 2", "y = x * 8"), "later")
    patch = Patch(
        name="f", role="candidate", kind="file", position=0, commit=None, patch_id="f", subject="f", diff=commit.diff
    )

    found = subject.liveness(patch, subject.run())

    assert (found.dead, found.unknown) == (False, 1)


def test_a_flag_is_unknown(subject: Subject) -> None:
    patch = Patch(
        name="FAST=1", role="stack", kind="flag", position=0, commit=None, patch_id="flag:FAST=1", subject="", diff=""
    )

    assert subject.liveness(patch, subject.run()).dead is False


def words_of(subject: Subject, files: dict[str, ExecutedFile], start: int, end: int) -> Word:
    record_ = seen(files)
    page, _ = Pages(subject.git, subject.git.tree("HEAD"), record_).page("engine/methods.py")
    assert page is not None
    return range_word(page, record_, "engine/methods.py", start, end)


def test_a_method_that_was_bound_but_never_called_is_not_seen(subject: Subject) -> None:
    files = subject.run()

    assert words_of(subject, files, 9, 13)[0] == "not_seen"
    assert words_of(subject, files, 17, 18)[0] == "executed"
    assert words_of(subject, files, 6, 13)[0] == "not_seen"
    assert words_of(subject, files, 9, 9)[0] == "bound"
    assert words_of(subject, files, 7, 7)[0] == "executed"
    assert words_of(subject, files, 4, 5)[0] == "unknown"
    assert words_of(subject, files, 10, 13) == ("not_seen", "`Fp8.apply` was never entered")
