from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.target import Good, Target
from store.errors import TargetError

FULL = """\
schema = 1
[target]
repo = "."
base = "v1"
head = "main"
patches = ["more/*.patch"]
candidates = ["fix/*.patch"]
flags = { FAST = ["0", "1"] }
env = { OMP_NUM_THREADS = "1" }
setup = "true"
trace = ["engine", "kernels"]
knobs = ["ENGINE_"]
[probe.needle]
command = "python3 -m engine.probes.needle"
metric = "recall"
higher_is_better = true
margin = 0.05
good = ">= 0.95"
timeout_s = 300
seeds = [0, 1]
controls = { scaling = "zoo/a.patch" }
"""


def load(tmp_path: Path, text: str) -> Target:
    (tmp_path / "livepath.toml").write_text(text, encoding="utf-8")
    return Target.load(tmp_path)


def test_every_documented_key_is_read(tmp_path: Path) -> None:
    target = load(tmp_path, FULL)
    probe = target.probes["needle"]

    assert (target.repo, target.base, target.head, target.text) == (tmp_path, "v1", "main", FULL)
    assert (target.patches, target.candidates) == (("more/*.patch",), ("fix/*.patch",))
    assert (target.flags, target.env, target.setup) == ({"FAST": ("0", "1")}, {"OMP_NUM_THREADS": "1"}, "true")
    assert (target.trace, target.knobs) == (("engine", "kernels"), ("ENGINE_",))
    assert (probe.metric, probe.margin, probe.timeout_s, probe.seeds) == ("recall", 0.05, 300.0, (0, 1))
    assert (probe.good, probe.controls) == (Good(operator=">=", number=0.95), {"scaling": "zoo/a.patch"})
    assert target.probe("needle") is probe


def test_python_left_out_is_the_interpreter_that_runs_livepath(tmp_path: Path) -> None:
    assert load(tmp_path, FULL).python == Path(sys.executable)


def test_python_with_a_slash_is_relative_to_the_file_and_keeps_its_symlink(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "python").symlink_to(sys.executable)

    assert load(tmp_path, FULL.replace("setup", 'python = "env/python"\nsetup')).python == tmp_path / "env" / "python"


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("margin", "margn", "unknown key `probe.needle.margn`", "did you mean `margin`?"),
        ("trace", "traces", "unknown key `target.traces`", "did you mean `trace`?"),
        ("base =", "bose =", "unknown key `target.bose`", "did you mean `base`?"),
        ("[target]", "[targets]", "unknown key `targets`", "did you mean `target`?"),
        ('metric = "recall"', "metric = 3", "`probe.needle.metric` is 3", "a text in quotes"),
        ('good = ">= 0.95"', 'good = "about 1"', "`probe.needle.good` is 'about 1'", '">= 0.95"'),
        ("margin = 0.05", "margin = 0", "`probe.needle.margin` is 0", "a number above 0"),
        ("seeds = [0, 1]", "seeds = []", "`probe.needle.seeds` is []", "at least one integer"),
        ('FAST = ["0", "1"]', 'FAST = ["0"]', "`target.flags.FAST` is ['0']", "the off and the on value"),
        ('"engine", "kernels"', '"../up"', "trace `../up` leaves the repository", "inside it"),
        ('repo = "."', 'repo = "nowhere"', "nowhere` is no folder", "relative to livepath.toml"),
        ("setup", 'python = "python9"\nsetup', "python `python9` was not found", "on PATH"),
        ("schema = 1", "schema = 2", "schema is 2, this Livepath reads 1", ""),
        ("schema = 1", "", "`schema` is missing", ""),
        ('command = "python3 -m engine.probes.needle"', "", "`probe.needle.command` is missing", ""),
        ("timeout_s = 300", "timeout_s = 300\ntimeout_s = 1", "is not TOML", ""),
    ],
)
def test_a_wrong_file_is_refused_with_key_and_next_step(
    tmp_path: Path, old: str, new: str, message: str, hint: str
) -> None:
    with pytest.raises(TargetError) as caught:
        load(tmp_path, FULL.replace(old, new, 1))

    assert message in caught.value.message
    assert "livepath.toml" in caught.value.message
    assert hint in caught.value.hint


def test_bad_toml_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"livepath.toml is not TOML: .*line 2"):
        load(tmp_path, "schema = 1\n[target\n")


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="does not exist"):
        Target.load(tmp_path)


def test_a_server_is_checked_and_refused_for_now(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot start one yet"):
        load(tmp_path, FULL + '[server]\nstart = "x"\nready = "http://127.0.0.1:1/"\n')
    with pytest.raises(TargetError, match=r"unknown key `server\.readyy`"):
        load(tmp_path, FULL + '[server]\nstart = "x"\nreadyy = "http://127.0.0.1:1/"\n')


def test_base_and_head_may_be_left_out_only_where_files_or_flags_make_the_stack(tmp_path: Path) -> None:
    without = FULL.replace('base = "v1"\nhead = "main"\n', "")

    assert (load(tmp_path, without).base, load(tmp_path, without).head) == ("HEAD", "HEAD")
    bare = without.replace('patches = ["more/*.patch"]\n', "").replace('flags = { FAST = ["0", "1"] }\n', "")
    with pytest.raises(TargetError, match=r"`target.base` is missing"):
        load(tmp_path, bare)


def test_an_unknown_probe_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        load(tmp_path, FULL).probe("needl")

    assert "needle" in caught.value.hint


@settings(max_examples=40, deadline=None)
@given(operator=st.sampled_from(["<", "<=", ">", ">=", "=="]), number=st.floats(allow_nan=False), value=st.floats())
def test_good_agrees_with_python_and_is_never_satisfied_by_nan(operator: str, number: float, value: float) -> None:
    holds = Good(operator=operator, number=number).holds(value)

    expected = {
        "<": value < number,
        "<=": value <= number,
        ">": value > number,
        ">=": value >= number,
        "==": value == number,
    }
    assert holds == expected[operator]
    assert not (math.isnan(value) and holds)
