"""Text of a repository that tries to do something: markup, escapes, bidirectional marks, wide and endless lines."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.models import Assumption, Bisect, CaseInfo, Finding, Hypothesis, Job, Patch, PatchVerdict, Question, Run
from store.store import Store
from tests.tui.example_case import finished_case
from tests.tui.pilot import open_screen
from tui.screens.dialogs import Page
from tui.widgets.diff_view import parse_diff
from tui.widgets.spans import Spans, fit, fit_middle, width_of, wrap

EVIL = (
    "[/x] [bold]not bold[/bold] [type=x, v={'a[0]'}]",
    "[@click=app.quit]\x1b[31mred\x1b]0;title\x07\x9b2J a\u202egpj.exe\u2066 zero\u200bwidth\ufeff",
    "line\nbreak\r\n\ttab\x00nul" + "界" * 60 + "x" * 3000,
    "",
)
FORBIDDEN = "\x1b\x07\x00\x9b\u202e\u2066\u200b\ufeff\r\n\t"


def evil_case(word: str) -> object:
    def make(path: Path) -> Store:
        store = finished_case(path)
        store.put_case(replace(store.case(), symptom=word, slug=f"s{word}"[:40]))
        for patch in store.patches():
            store.put_patch(replace(patch, subject=word, reason=word, diff=f"{patch.diff}+{word}\n{word}"))
        store.put_patch(
            Patch(
                name=word or "e",
                role="stack",
                kind="file",
                position=9,
                commit=None,
                patch_id="e",
                subject=word,
                diff=word,
                source=word,
            )
        )
        store.put_verdict(
            PatchVerdict(patch=word or "e", probe=word, background=word, verdict="needs", reason=word, needs=(word,))
        )
        store.add_question(Question(text=word, how=word, answer=word, evidence=({"path": word, "text": word},)))
        store.add_hypothesis(Hypothesis(text=word, refuted_if=word, reason=word, by=word))
        store.add_assumption(Assumption(text=word, reason=word))
        store.put_run(
            Run(key=word, probe=word, arm=word, patches=(word,), tree="t", seed=0, command=word, instrumentation=word)
        )
        store.put_finding(
            Finding(claim=word, verdict=None, patch=word, patch_id=word, diff=word, evidence=({"kind": word, "id": 1},))
        )
        for reading in store.readings():
            store.add_reading(replace(reading, id=None, note=word, qualname=word, host=word, text_sha256=f"h{word}"))
        store.put_bisect(
            Bisect(probe=word, background=word, text=word, culprits=(word,), steps=({"last": word, "outcome": word},))
        )
        job = store.add_job(Job(kind="run", argument={"patch": word}, note=word))
        assert job.id is not None
        store.finish_job(job.id, "failed", word)
        return store

    return make


def _info(path: Path) -> CaseInfo:
    with Store.open(path) as store:
        return store.case()


@pytest.mark.parametrize("word", EVIL, ids=range(len(EVIL)))
def test_no_text_of_a_case_reaches_the_terminal_as_more_than_text(tmp_path: Path, word: str) -> None:
    async def run() -> None:
        async with open_screen(evil_case(word), tmp_path) as driver:  # type: ignore[arg-type]
            for screen in "12345":
                await driver.press(screen)
                shown = driver.shown()
                assert not set(FORBIDDEN.replace("\n", "")) & set(shown)
                assert "[/x] [bold]not bold[/bold]" in shown or word != EVIL[0] or screen in "35"
                await driver.press("end", "enter")
                assert not set(FORBIDDEN.replace("\n", "")) & set(driver.shown())
                if isinstance(driver.app.screen, Page):
                    await driver.press("escape")
            driver.app.tell(word, failed=True)
            await driver.settle()
            await driver.press("1", "i")
            assert not set(FORBIDDEN.replace("\n", "")) & set(driver.shown())
            assert all(len(line) <= 80 for line in driver.lines())

    asyncio.run(run())
    assert _info(tmp_path / "case.db").symptom == word


@given(st.text(max_size=40), st.integers(0, 30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_fitted_text_has_exactly_its_width(text: str, width: int, right: bool) -> None:
    assert width_of(((fit(text, width, right=right), "plain"),)) == width
    assert width_of(((fit_middle(text, width), "plain"),)) == width


@given(st.lists(st.text(max_size=30), max_size=4), st.integers(10, 40), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_wrapped_lines_fit_and_lose_nothing_but_spaces(texts: list[str], width: int, indent: int) -> None:
    spans: Spans = tuple((text, "plain") for text in texts)

    lines = wrap(spans, width, indent=indent)

    assert all(width_of(line) <= width for line in lines)
    kept = "".join(text for line in lines for text, _ in line).replace(" ", "")
    whole = wrap(spans, 10_000)
    assert kept == "".join(text for line in whole for text, _ in line).replace(" ", "")


@given(st.text(alphabet="+-@ ,1ab\n\\dif git/", max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read_as_a_diff_without_failing(text: str) -> None:
    for line in parse_diff(f"diff --git a/x b/x\n@@ -1,2 +1,2 @@\n{text}"):
        assert line.kind in ("file", "hunk", "context", "added", "removed", "other")
