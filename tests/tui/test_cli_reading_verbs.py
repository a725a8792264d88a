"""Every verb that reads: for a person, for a script, and with hostile text in the case."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from store.models import (
    Assumption,
    Attempt,
    CaseInfo,
    Finding,
    Hypothesis,
    Item,
    Metric,
    Patch,
    PatchVerdict,
    Question,
    Reading,
    ReadingLiveness,
    Run,
)
from store.store import Store
from tests.tui.conftest import Livepath

READING_VERBS = [
    ("case", "list"),
    ("case", "show"),
    ("patch", "list"),
    ("patch", "show", "fp8-scaling-guard"),
    ("question", "list"),
    ("question", "show", "1"),
    ("hypothesis", "list"),
    ("hypothesis", "show", "1"),
    ("assumption", "list"),
    ("assumption", "show", "1"),
    ("reading", "list"),
    ("reading", "show", "1"),
    ("live", "engine/methods.py:11-16"),
    ("run", "list"),
    ("run", "show", "1"),
    ("finding", "list"),
    ("finding", "show", "1"),
    ("report",),
    ("search", "engine"),
    ("log",),
]
IDS = [" ".join(verb[:2]) for verb in READING_VERBS]

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202eesrever\u2066 [/x] [bold]\x9b2J\rover\x00\u200b\nline two\ttab \udcff"


def case_info(text: str) -> CaseInfo:
    return CaseInfo(slug="c", symptom=text, repo=text, target_toml="", base="b", head="h")


def hostile_case(path: Path) -> Store:
    """A case in which every text tries to steer the terminal."""
    store = Store.create(path, case_info(HOSTILE))
    patch = Patch(
        name="fp8-scaling-guard",
        role="stack",
        kind="commit",
        position=0,
        commit="c",
        patch_id=HOSTILE,
        subject=HOSTILE,
        diff=f"+{HOSTILE}",
        reason=HOSTILE,
        tier=1,
    )
    store.put_patch(patch)
    store.add_question(Question(text=HOSTILE, answer=HOSTILE, state="answered"))
    store.add_hypothesis(Hypothesis(text=HOSTILE, reason=HOSTILE, by=HOSTILE, refuted_if=HOSTILE))
    store.add_assumption(Assumption(text=HOSTILE))
    reading = store.add_reading(
        Reading(path=HOSTILE, start=1, end=2, rev=HOSTILE, blob="b", text_sha256="s", text=HOSTILE, note=HOSTILE)
    )
    run = store.put_run(
        Run(
            key="k",
            probe="needle",
            arm=HOSTILE,
            patches=(HOSTILE,),
            tree="t",
            seed=0,
            command=HOSTILE,
            instrumentation="plain",
        )
    )
    attempt = Attempt(
        run_id=run.id or 0,
        number=1,
        status="cannot_be_tested",
        folder="",
        reason=HOSTILE,
        stderr_tail=HOSTILE,
        blind=(HOSTILE,),
    )
    store.record_attempt(
        attempt,
        items=[Item(attempt_id=0, item=HOSTILE, cluster="c", score=1.0, tags={"length": HOSTILE, "depth": 0.5})],
        metrics=[Metric(attempt_id=0, name=HOSTILE, value=float("nan"), tags={"layer": HOSTILE})],
    )
    store.put_reading_liveness(
        ReadingLiveness(reading_id=reading.id or 0, run_id=run.id or 0, word="not_seen", reason=HOSTILE)
    )
    store.put_verdict(
        PatchVerdict(
            patch="fp8-scaling-guard",
            probe=HOSTILE,
            background=HOSTILE,
            verdict="dead",
            reason=HOSTILE,
            given=(HOSTILE,),
        )
    )
    store.put_finding(
        Finding(claim=HOSTILE, verdict="dead", patch_id="p", patch=HOSTILE, diff=HOSTILE, evidence=({"kind": HOSTILE},))
    )
    return store


@pytest.mark.parametrize("verb", READING_VERBS, ids=IDS)
def test_text_fits_eighty_columns_and_has_no_colour_outside_a_terminal(
    livepath: Livepath, verb: tuple[str, ...]
) -> None:
    answer = livepath(*verb)

    assert (answer.code, [line for line in answer.out.splitlines() if cell_len(line) > 80]) == (0, [])
    assert "\x1b" not in answer.out


@pytest.mark.parametrize("verb", READING_VERBS, ids=IDS)
def test_json_is_the_only_thing_on_stdout(livepath: Livepath, verb: tuple[str, ...]) -> None:
    answer = livepath(*verb, "--json")

    data = json.loads(answer.out)
    assert (answer.code, answer.err) == (0, "")
    assert isinstance(data, (dict, list))


@pytest.mark.parametrize("verb", [verb for verb in READING_VERBS if verb[-1] == "list"], ids=lambda verb: verb[0])
def test_plain_is_one_record_per_line_with_the_same_fields(livepath: Livepath, verb: tuple[str, ...]) -> None:
    plain, data = livepath(*verb, "--plain"), livepath(*verb, "--json")

    lines = plain.out.splitlines()
    assert len(lines) == len(json.loads(data.out)) > 0
    assert len({line.count("\t") for line in lines}) == 1


@pytest.mark.parametrize("form", [(), ("--plain",), ("--json",)], ids=["text", "plain", "json"])
@pytest.mark.parametrize("verb", READING_VERBS, ids=IDS)
def test_hostile_text_never_reaches_the_terminal_as_control_characters(
    make_livepath: Callable[..., Livepath], verb: tuple[str, ...], form: tuple[str, ...]
) -> None:
    answer = make_livepath(hostile_case)(*verb, *form)

    assert answer.code == 0
    hidden = {c for c in answer.out + answer.err if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert hidden <= {"\n", "\t"}


def test_the_report_says_the_symptom_the_verdicts_and_what_is_not_verified(livepath: Livepath) -> None:
    out = livepath("report").out

    assert "Long prompts lose the needle" in out
    assert "fp8-scaling-guard         dead" in out
    assert "given nvfp4-experts" in out
    assert "ran in its stead: NvFp4MoEMethod.apply" in " ".join(out.split())
    assert "+        value = slot * self.dim" in out
    assert "Not verified" in out


def test_the_report_is_written_to_a_file_on_request(livepath: Livepath, tmp_path: Path) -> None:
    answer = livepath("report", "-o", str(tmp_path / "report.json"), "--json")

    assert answer.out == ""
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == 1
    assert livepath("report", "-o", str(tmp_path / "no" / "where")).code == 1


def test_a_verdict_is_in_the_list_and_a_planted_fault_is_not(livepath: Livepath) -> None:
    livepath.gateway.store.put_patch(
        Patch(name="planted", role="control", kind="file", position=0, commit=None, patch_id="x", subject="", diff="")
    )

    names = {row["name"]: row["verdict"] for row in json.loads(livepath("patch", "list", "--json").out)}
    assert names["fp8-scaling-guard"] == "dead"
    assert "planted" not in names
    assert "planted" in livepath("patch", "list", "--role", "control").out


def test_an_empty_list_is_said_on_stderr(make_livepath: Callable[..., Livepath]) -> None:
    livepath = make_livepath(lambda path: Store.create(path, case_info("s")))

    answer = livepath("finding", "list")
    assert (answer.code, answer.out, answer.err) == (0, "", "nothing was found yet\n")
    assert livepath("finding", "list", "--json").out == "[]\n"
    assert livepath("report").code == 0


def test_hostile_text_in_a_markdown_report_is_harmless_on_a_terminal(make_livepath: Callable[..., Livepath]) -> None:
    answer = make_livepath(hostile_case)("report", "--markdown")

    assert answer.code == 0
    assert {c for c in answer.out if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} <= {"\n", "\t"}
