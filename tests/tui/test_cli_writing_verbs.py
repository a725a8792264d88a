"""Verbs that change a case, ask for work, or are used wrongly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from store.errors import RepoError
from store.models import Job, Predicate
from tests.tui.conftest import Livepath
from tui.cli.root import livepath as root

DONE = Job(kind="run", argument={}, state="done", message="needle on full: ok (8.1 s)", done=1, total=1)


def test_thoughts_are_added_and_decided(livepath: Livepath) -> None:
    store = livepath.gateway.store

    assert livepath("question", "add", "Who clamps?", "--how", "grep clamp").code == 0
    assert store.questions()[-1].how == "grep clamp"
    number = str(store.questions()[-1].id)
    assert livepath("question", "set", number, "--answer", "nobody", "--evidence", "reading:1").code == 0
    assert store.questions()[-1].evidence == ({"kind": "reading", "id": 1},)

    assert livepath("assumption", "add", "One GPU", "--about", "run:1").code == 0
    number = str(store.assumptions()[-1].id)
    assert livepath("assumption", "set", number, "--state", "broken", "--reason", "two").code == 0
    assert store.assumptions()[-1].state == "broken"


def test_a_hypothesis_with_a_prediction_is_left_to_its_runs(livepath: Livepath) -> None:
    words = ("hypothesis", "add", "It falls beyond 512", "--predict", "needle.recall[length>=1024] on base < 0.95")
    assert livepath(*words).code == 0
    stored = livepath.gateway.store.hypotheses()[-1]
    assert stored.predicate == Predicate(
        probe="needle", metric="recall[length>=1024]", arm="base", operator="<", number=0.95
    )

    answer = livepath("hypothesis", "set", str(stored.id), "--state", "supported")
    assert (answer.code, "its runs decide it" in answer.err) == (2, True)
    assert livepath("hypothesis", "set", str(stored.id), "--state", "parked", "--reason", "no GPU").code == 0
    assert livepath.gateway.store.hypotheses()[-1].by == "ada"


def test_a_prediction_is_not_changed_by_stating_the_hypothesis_again(livepath: Livepath) -> None:
    livepath("hypothesis", "add", "It falls", "--predict", "needle.recall on base < 0.9")

    answer = livepath("hypothesis", "add", "It falls", "--predict", "needle.recall on base < 0.99")

    assert answer.code == 2
    assert livepath.gateway.store.hypotheses()[-1].predicate.number == 0.9


def test_a_hypothesis_in_words_is_judged_by_a_person(livepath: Livepath) -> None:
    livepath("hypothesis", "add", "It is the weather")
    number = str(livepath.gateway.store.hypotheses()[-1].id)

    livepath("hypothesis", "set", number, "--state", "refuted", "--reason", "it rained", "--evidence", "run:1")

    stored = livepath.gateway.store.hypotheses()[-1]
    assert (stored.state, stored.by, stored.evidence) == ("refuted", "ada", ({"kind": "run", "id": 1},))


def test_a_patch_is_ranked_and_keeps_its_other_words(livepath: Livepath) -> None:
    before = livepath.gateway.store.patch("splitk-decode")

    livepath("patch", "rank", "splitk-decode", "1", "--suspect", "attention", "--suspect", "mixing")

    after = livepath.gateway.store.patch("splitk-decode")
    assert (after.tier, after.suspected, after.reason) == (1, ("attention", "mixing"), before.reason)


def test_a_finding_of_a_person_carries_the_patch_s_diff_and_is_withdrawn_with_a_reason(livepath: Livepath) -> None:
    assert (
        livepath("finding", "add", "it is the guard", "--patch", "fp8-scaling-guard", "--evidence", "run:1").code == 0
    )
    added = livepath.gateway.store.findings()[-1]
    assert added.diff == livepath.gateway.store.patch("fp8-scaling-guard").diff != ""

    assert livepath("finding", "withdraw", str(added.id), "--reason", "wrong probe").code == 0
    assert "wrong probe" in livepath("finding", "show", str(added.id)).out


def test_a_reading_is_added_and_undone(livepath: Livepath) -> None:
    count = len(livepath.gateway.store.readings())
    livepath("reading", "add", "engine/page.py", "--note", "odd")
    assert len(livepath.gateway.store.readings()) == count + 1

    assert "taken back" in livepath("undo").err
    assert len(livepath.gateway.store.readings()) == count


def test_a_case_is_made_and_closed(livepath: Livepath) -> None:
    assert livepath("case", "new", "slow", "--symptom", "it is slow").code == 0
    assert ("new", "slow", "it is slow") in livepath.gateway.asked
    assert livepath("case", "close").code == 0
    assert livepath.gateway.store.case().closed_utc is not None


@pytest.mark.parametrize(
    ("words", "kind", "argument"),
    [
        (
            ("run", "start", "needle", "--arm", "base", "--seed", "3"),
            "run",
            {"probe": "needle", "arm": "base", "seed": 3},
        ),
        (("ab", "splitk-decode"), "ab", {"patch": "splitk-decode", "probe": "", "background": "full"}),
    ],
)
def test_work_is_asked_for_and_its_result_is_data(
    livepath: Livepath, words: tuple[str, ...], kind: str, argument: dict[str, object]
) -> None:
    livepath.gateway.course = [Job(kind=kind, argument={}, state="running", note="needle on base", total=1), DONE]

    answer = livepath(*words)

    assert (answer.code, answer.out) == (0, "needle on full: ok (8.1 s)\n")
    assert "0/1  needle on base" in answer.err
    assert (kind, argument) in livepath.gateway.asked


def test_work_can_be_left_to_itself_and_stopped_later(livepath: Livepath) -> None:
    answer = livepath("run", "start", "needle", "--no-wait", "--json")
    number = json.loads(answer.out)["id"]

    assert livepath("run", "cancel").code == 0
    assert ("cancel", number) in livepath.gateway.asked


def test_a_failed_job_is_one_line_and_exit_code_one(livepath: Livepath) -> None:
    livepath.gateway.course = [Job(kind="run", argument={}, state="failed", message="no probe `x` in livepath.toml")]

    answer = livepath("run", "start", "x")

    assert (answer.code, answer.out) == (1, "")
    assert "error: no probe `x` in livepath.toml\n" in answer.err


def test_ctrl_c_asks_the_job_to_stop_and_waits_for_it(livepath: Livepath) -> None:
    livepath.gateway.course = [
        KeyboardInterrupt(),
        Job(kind="run", argument={}, state="cancelled", message="stopped on request"),
    ]

    answer = livepath("run", "start", "needle")

    assert answer.code == 130
    assert [ask[0] for ask in livepath.gateway.asked] == ["run", "cancel", "close"]
    assert "error: stopped on request" in answer.err


def test_a_second_ctrl_c_leaves_at_once(livepath: Livepath) -> None:
    livepath.gateway.course = [KeyboardInterrupt(), KeyboardInterrupt(), DONE]

    assert livepath("run", "start", "needle").code == 130


@pytest.mark.parametrize("words", [("--headless",), ()])
def test_the_worked_investigation_runs_in_the_demo_and_prints_its_report(
    livepath: Livepath, words: tuple[str, ...]
) -> None:
    livepath.gateway.course = [Job(kind="investigate", argument={}, state="done", message="fixed by indexer-bf16-keys")]

    answer = livepath(*words)

    assert (answer.code, livepath.folders) == (0, [Path(".demo")])
    assert answer.out.startswith("Case long-needle\n")
    assert "fixed by indexer-bf16-keys" in answer.err


def test_where_there_is_a_target_its_own_case_is_investigated(livepath: Livepath, tmp_path: Path) -> None:
    livepath.gateway.course = [DONE, DONE]
    (tmp_path / "livepath.toml").touch()

    assert livepath("--headless").code == 0
    assert livepath("--headless", "-C", "elsewhere").code == 0
    assert livepath.folders == []


def test_the_headless_investigation_prints_only_json_on_request(livepath: Livepath) -> None:
    livepath.gateway.course = [
        Job(kind="investigate", argument={}, state="running", note="about 90 s left", total=9),
        DONE,
    ]

    answer = livepath("--headless", "--json")

    assert json.loads(answer.out)["case"] == "long-needle"
    assert "about 90 s left" in answer.err


def test_the_sight_table_is_measured_and_printed(livepath: Livepath) -> None:
    row = {
        "probe": "needle",
        "kind": "scaling",
        "control": "double",
        "background": "full",
        "seen": False,
        "text": "recall +0",
    }
    livepath.gateway.store.set_meta("sight", [row])
    livepath.gateway.course = [DONE]

    answer = livepath("demo", "somewhere", "--sight", "--plain")

    assert answer.out == "needle\tscaling\tblind\tdouble\trecall +0 on full\n"
    assert livepath.folders == [Path("somewhere")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("question",), "question"),
        (("question", "add"), "Missing argument 'TEXT'"),
        (("question", "add", " "), "the text is empty"),
        (("question", "set", "1"), "without an answer"),
        (("question", "set", "1", "--answer", "x", "--evidence", "rumour"), "`rumour` is no evidence"),
        (("assumption", "add", "x", "--about", "me"), "`me` names nothing"),
        (("hypothesis", "add", "x", "--predict", "it falls"), "`it falls` is no prediction"),
        (("hypothesis", "add", "x", "--predict", "needle.recall[ on base < 1"), "no metric expression"),
        (
            ("hypothesis", "add", "x", "--predict", "needle.recall on base < low"),
            "`low` in the prediction is no number",
        ),
        (("report", "--json", "--plain"), "exclude each other"),
        (("--json", "patch", "list"), "after the verb"),
        (("case", "new", "x", "--symptom", ""), "the symptom is empty"),
    ],
)
def test_wrong_words_are_exit_code_two_and_name_the_way_out(
    livepath: Livepath, words: tuple[str, ...], says: str
) -> None:
    answer = livepath(*words)

    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("patch", "show", "nobody"),
        ("patch", "rank", "nobody", "1"),
        ("finding", "show", "99"),
        ("finding", "withdraw", "99", "--reason", "x"),
        ("run", "show", "99"),
        ("ab", "nobody"),
        ("assumption", "add", "x", "--about", "run:99"),
        ("finding", "add", "x", "--evidence", "run:99"),
        ("run", "cancel", "99"),
    ],
    ids=" ".join,
)
def test_what_is_not_in_the_case_is_one_line_and_exit_code_one(livepath: Livepath, words: tuple[str, ...]) -> None:
    answer = livepath(*words)

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: there is no ")
    assert len(answer.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (
            RepoError("git is too old: 2.20", hint="install 2.38"),
            1,
            "error: git is too old: 2.20\nhint: install 2.38\n",
        ),
        (ZeroDivisionError("oh\x1b[2J"), 1, "error: a fault in Livepath itself: ZeroDivisionError: oh\u241b[2J\n"),
        (KeyboardInterrupt(), 130, "error: stopped\nhint: start again to go on; what was finished is kept\n"),
    ],
)
def test_any_failure_is_a_line_and_a_hint(
    livepath: Livepath, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, says: str
) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr(livepath.gateway, "cases", broken)

    answer = livepath("case", "list")

    assert (answer.code, answer.out) == (code, "")
    assert answer.err.lstrip("\n").startswith(says)


def test_debug_shows_where(livepath: Livepath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEPATH_DEBUG", "1")

    with pytest.raises(Exception, match="no patch 'nobody'"):
        livepath("patch", "show", "nobody")


@pytest.mark.parametrize("words", [("--help",), ("run", "start", "--help"), ("--version",)])
def test_help_and_version_are_data(livepath: Livepath, words: tuple[str, ...]) -> None:
    answer = livepath(*words)

    assert (answer.code, answer.err) == (0, "")
    assert "livepath" in answer.out


def walk(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    yield path.strip(), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, f"{path} {name}")


def test_every_verb_and_option_has_help() -> None:
    bare = [
        f"{path} {parameter.name}"
        for path, command in walk(root)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]

    assert bare == [path for path, command in walk(root) if not command.help] == []


def test_every_verb_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")

    verbs = [path for path, command in walk(root) if path and not hasattr(command, "commands")]
    assert [verb for verb in verbs if f"`{verb}" not in page] == []
