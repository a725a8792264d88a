"""The report of a case: its JSON, what it admits, and the page for a pull request."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.exponent import disagreement_findings
from lab.markdown_text import block, code, escape, prose, table
from lab.report import build_report, to_markdown
from store.store import Store
from tests.lab.written_case import DIFF, write_case

KEYS = [
    *("schema", "livepath", "case", "symptom", "machine", "base", "full", "stack", "candidates"),
    *("questions", "hypotheses", "assumptions", "readings", "runs", "cells", "exponents", "bisects"),
    *("findings", "not_verified"),
]


@pytest.fixture
def store(tmp_path: Path):
    with write_case(tmp_path / "case.db") as opened:
        yield opened


def test_report_has_the_keys_of_its_contract_in_order_and_is_strict_json(store: Store) -> None:
    report = build_report(store, version="9.9.9")

    assert list(report) == KEYS
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert (report["schema"], report["livepath"], report["case"]) == (1, "9.9.9", "recall")
    assert report["base"] == {"commit": "a" * 40, "verdict": "bad"}


def test_same_case_gives_the_same_bytes(store: Store) -> None:
    assert json.dumps(build_report(store)) == json.dumps(build_report(store))


def test_patch_shows_its_verdict_with_evidence_and_liveness_of_the_run_it_rests_on(store: Store) -> None:
    fast, guard, unjudged = build_report(store)["stack"]

    assert (fast["verdict"], fast["control"], fast["verdict_with"]) == ("exonerated", "zero", ["other"])
    assert fast["per_probe"][0]["comparison"]["outcome"] == "equivalent"
    assert (fast["liveness"]["word"], fast["liveness"]["executed"], fast["liveness"]["acting"]) == ("executed", 2, 3)
    assert (guard["verdict"], guard["given"], guard["liveness"]["word"]) == ("dead", ["fast"], "not_seen")
    assert [(arm["arm"], arm["word"]) for arm in guard["liveness"]["arms"]] == [
        ("base", "executed"),
        ("full+layout", "not_seen"),
    ]
    assert (unjudged["verdict"], unjudged["liveness"]) == (None, None)


def test_cells_pool_questions_by_length_and_depth_and_leave_planted_faults_out(store: Store) -> None:
    cells = build_report(store)["cells"]

    assert {cell["arm"] for cell in cells} == {"base", "full+layout"}
    assert [(c["length"], c["depth"], c["ok"], c["n"]) for c in cells if c["arm"] == "base"] == [
        (256, 0, 10, 10),
        (256, 0.5, 10, 10),
        (2048, 0, 5, 10),
        (2048, 0.5, 5, 10),
    ]
    assert all(0 <= cell["low"] <= cell["ok"] / cell["n"] <= cell["high"] <= 1 for cell in cells)


def test_exponents_are_read_in_words_and_not_a_number_is_text(store: Store) -> None:
    rows = build_report(store)["exponents"]

    assert [(row["arm"], row["layer"], row["value"], row["reading"]) for row in rows[:2]] == [
        ("base", 0, 2.0, "doubled"),
        ("base", 1, "NaN", "not a number"),
    ]


def test_reading_names_what_ran_in_its_place(store: Store) -> None:
    fresh = build_report(store, freshness={1: "moved"})["readings"][0]

    assert (fresh["freshness"], fresh["liveness"]["word"]) == ("moved", "not_seen")
    assert fresh["liveness"]["count"] is None
    assert fresh["sibling"]["qualname"] == "NvFp4.apply"
    assert build_report(store)["readings"][0]["freshness"] == "not checked"


def test_run_made_before_the_latest_job_is_marked_as_taken_from_the_record(store: Store) -> None:
    runs = build_report(store)["runs"]

    assert {run["cached"] for run in runs} == {True}
    assert runs[0]["status"] == "ok"
    assert runs[0]["attempts"] == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "`unjudged` has no verdict.",
        "No probe has a planted fault of kind mixing: `fast` is not cleared of it.",
        "`kl` did not see the planted fault `swap` (experts): kl +0.",
        "The line recorder was blind in 1 of 3 attempts: a native kernel ran.",
        "The probe `kl` did not run.",
        "This machine has no GPU: what runs only there was not executed.",
        "Open question: Who multiplies?",
        "Open hypothesis: the stack broke it",
        "Unverified assumption: the checkpoint is whole",
        "The reading `e.py:1-3` is out of date: its lines are changed.",
        "Finding 1 rests on something that no longer holds: the reading moved on.",
    ],
)
def test_report_admits_what_is_not_verified(store: Store, sentence: str) -> None:
    store.flag_finding(1, "the reading moved on")

    assert sentence in build_report(store, freshness={1: "changed"})["not_verified"]


def test_empty_case_has_a_report_and_a_page(tmp_path: Path) -> None:
    with write_case(tmp_path / "other.db") as full, Store.create(tmp_path / "case.db", full.case()) as empty:
        report = build_report(empty)

        assert report["stack"] == []
        assert report["findings"] == []
        assert "Not verified" in to_markdown(report)


def test_silent_multiplication_becomes_one_finding_for_all_arms_without_planted_faults(store: Store) -> None:
    found = disagreement_findings(store)

    assert len(found) == 1
    assert found[0].claim.startswith("Claim and measurement disagree on base, full+layout: layer 0, decode, routed")
    assert [one["id"] for one in found[0].evidence] == [1, 2]


def test_page_has_table_folded_diff_and_path_evidence(store: Store) -> None:
    page = to_markdown(build_report(store))

    assert "It forgets &lt;b&gt;facts&lt;/b&gt;." in page
    assert "| `fast` | 1 | exonerated, together with `other` | `needle` on `full+layout`: recall +0" in page
    assert "| `layout` | candidate | **fix** |" in page
    assert "dead given `fast`" in page
    assert f"<details><summary>diff of layout</summary>\n\n```diff\n{DIFF}```" in page
    assert "`e.py:1-3` Fp8.apply: not seen in run 2; control never came here; what ran is `NvFp4.apply`" in page
    assert "| `needle` | `base` | 1.00 (n 20) | 0.50 (n 20) |" in page
    assert "layer 0, decode, routed: 2.000 (doubled)" in page
    assert page.index("## Ruled out") < page.index("## Findings") < page.index("## Not verified")


def test_withdrawn_finding_is_struck_and_shows_no_diff(store: Store) -> None:
    store.withdraw_finding(1, "the run was on the wrong tree")

    page = to_markdown(build_report(store))

    assert "~~`layout` is a fix: recall +0.5~~ Withdrawn: the run was on the wrong tree" in page
    assert "```diff" not in page


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab \n\t`*_[]()<>&|#@!~\\-+=1.\x1b\x07‮​�"), max_size=40))
def test_foreign_text_cannot_shape_the_page(text: str) -> None:
    for shown in (escape(text), prose(text), code(text), table(("h",), [(prose(text),)])):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f​‮]", shown)
    assert "\n" not in escape(text) + prose(text) + code(text)
    assert not re.search(r"(?<!\\)[*_\[\]|`]", escape(text))
    assert not re.search(r"<(?!!-- -->)", escape(text))
    assert not re.search(r"[@#]\w", escape(text))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab`~\n \x1b"), max_size=30))
def test_text_cannot_leave_its_block(text: str) -> None:
    lines = block(text, "diff").split("\n")
    fence = lines[-1]

    assert lines[0] == f"{fence}diff"
    assert set(fence) == {"`"}
    assert not any(fence in line for line in lines[1:-1])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see `a|b` and x_y", "see `a|b` and x\\_y"),
        ("odd ` tick", "odd \\` tick"),
        ("ask @root about #12", "ask @<!-- -->root about #<!-- -->12"),
        ("- not a list", "\\- not a list"),
        ("https://evil.example", "https<!-- -->://evil.example"),
    ],
)
def test_prose_keeps_code_and_escapes_the_rest(text: str, shown: str) -> None:
    assert prose(text) == shown


def test_pipe_inside_code_does_not_split_a_cell() -> None:
    assert table(("h",), [(code("a|b"),)]).splitlines()[2] == "| `a\\|b` |"
