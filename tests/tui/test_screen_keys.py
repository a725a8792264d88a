"""The screen driven by keys: what each key leads to, and what it asks of the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from store.errors import StoreError
from store.models import Job
from store.store import Store
from tests.tui.example_case import empty_case, finished_case, needle_run, running_case
from tests.tui.fake_gateway import FakeGateway
from tests.tui.pilot import Driver, open_gateway, play
from tui.messages import ActionDone, CaseChanged, CaseFailed
from tui.screens.dialogs import Form, Page
from tui.widgets.row_list import RowList


def rows(driver: Driver, selector: str) -> list[str]:
    listed = driver.app.screen.query_one(selector, RowList)
    return [listed.row_at(index).key for index in range(listed.line_count())]


def test_number_keys_and_the_tab_bar_lead_to_the_screens(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        for key, name in (("2", "reading"), ("3", "runs"), ("4", "findings"), ("5", "bisect"), ("1", "overview")):
            await driver.press(key)
            assert driver.app.current_mode == name
        await driver.pilot.click("#top-bar", offset=(36, 1))
        await driver.settle()
        assert driver.app.current_mode == "findings"

    play(finished_case, tmp_path, acts)


def test_the_board_lists_the_stack_by_tier_then_the_candidates(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        assert rows(driver, "#suspects") == [
            "patch:hash-topk-routed-scaling",
            "patch:nvfp4-experts",
            "patch:mhc-bf16-gemm",
            "patch:fp8-scaling-guard",
            "patch:splitk-decode",
            "patch:triton-indexer",
            "patch:indexer-bf16-keys",
            "patch:indexer-fp8-layout",
        ]
        shown = driver.shown()
        assert "fp8-scaling-guard         ○ dead              ○ 0/4      nvfp4-experts" in shown
        assert "✓ exonerated" in shown
        assert "+ fix" in shown

    play(finished_case, tmp_path, acts)


def test_tab_goes_through_the_panes_and_shows_the_one_in_focus(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        seen = []
        for _ in range(4):
            await driver.press("tab")
            assert driver.app.focused is not None
            seen.append(driver.app.focused.id)
            assert driver.app.focused.size.height > 0
        assert seen == ["thoughts", "ruled", "events", "suspects"]

    play(finished_case, tmp_path, acts)


def test_enter_opens_what_is_on_record_about_a_patch(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("down", "down", "down", "enter")
        assert isinstance(driver.app.screen, Page)
        text = driver.text("#page-text")
        assert "no acting line ran in a fully traced run" in text
        assert "given nvfp4-experts" in text
        await driver.press("escape")
        assert driver.app.current_mode == "overview"
        assert not driver.app.screen.is_modal

    play(finished_case, tmp_path, acts)


def test_the_filter_keeps_matching_rows_and_escape_brings_all_back(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("indexer fp8")
        await driver.press("enter")
        assert rows(driver, "#suspects") == ["patch:indexer-fp8-layout"]
        await driver.press("escape")
        assert len(rows(driver, "#suspects")) == 8

    play(finished_case, tmp_path, acts)


def test_a_filter_that_matches_nothing_says_so(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("zzz")
        await driver.press("enter")
        assert "nothing matches “zzz”" in driver.shown()

    play(finished_case, tmp_path, acts)


def test_a_hypothesis_is_added_with_its_prediction(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("a")
        await driver.type("decode alone is wrong")
        await driver.press("tab")
        await driver.type("kl.kl on full > 0.1")
        await driver.press("enter")
        assert driver.gateway.asked == [("add_hypothesis", "decode alone is wrong", "kl.kl on full > 0.1", "")]
        assert not driver.app.screen.is_modal
        await driver.until(lambda: "decode alone is wrong" in driver.shown(), "the new row")

    play(running_case, tmp_path, acts)


def test_a_form_that_is_refused_stays_open_with_what_was_typed(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("a", "enter")
        assert "expected some text" in str(driver.app.screen.query_one("#form-error", Static).content)
        await driver.type("x")
        await driver.press("tab")
        await driver.type("nonsense")
        await driver.press("enter")
        assert isinstance(driver.app.screen, Form)
        assert "is no prediction" in str(driver.app.screen.query_one("#form-error", Static).content)
        assert driver.app.screen.query_one("#field-text", Input).value == "x"
        assert driver.gateway.asked == []
        await driver.press("escape")
        assert not driver.app.screen.is_modal

    play(running_case, tmp_path, acts)


def test_an_ab_is_started_for_the_patch_under_the_cursor(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("down", "b")
        await driver.type("needle")
        await driver.press("enter")
        assert driver.gateway.asked == [("start_ab", "nvfp4-experts", "needle")]
        assert [job.kind for job in driver.gateway.store.jobs()] == ["investigate", "ab"]
        assert driver.messages(ActionDone)

    play(running_case, tmp_path, acts)


def test_help_lists_every_key_with_a_description(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        for screen in "12345":
            await driver.press(screen, "question_mark")
            text = driver.text("#page-text")
            for words in ("Quit (work goes on)", "Filter the list in focus", "Down", "Verdicts", "Liveness"):
                assert words in text
            await driver.press("escape")

    play(finished_case, tmp_path, acts)


def test_the_palette_offers_the_actions_of_the_screen(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        titles = [command.title for command in driver.app.get_system_commands(driver.app.screen)]
        assert "Add a hypothesis with a prediction" in titles
        assert "Findings" in titles
        await driver.press("ctrl+p")
        await driver.type("Findings")
        await driver.pilot.pause(0.3)
        await driver.press("enter")
        await driver.until(lambda: driver.app.current_mode == "findings", "the findings")

    play(finished_case, tmp_path, acts)


def test_what_another_process_writes_appears_and_the_cursor_stays(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("down", "down")
        listed = driver.app.screen.query_one("#suspects", RowList)
        assert listed.row is not None
        key = listed.row.key
        changes = len(driver.messages(CaseChanged))
        needle_run(driver.gateway.store, "full")
        await driver.until(lambda: len(driver.messages(CaseChanged)) > changes, "the new view")
        assert listed.row.key == key
        await driver.press("3")
        assert "0.736 n=500" in driver.shown()

    play(running_case, tmp_path, acts)


def test_a_job_is_stopped_and_started_by_keys(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("x")
        assert driver.gateway.asked == [("cancel", "1")]
        await driver.press("exclamation_mark")
        assert driver.gateway.asked[-1] == ("investigate",)

    play(running_case, tmp_path, acts)


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (60, 15)])
def test_a_fresh_case_says_what_is_missing_and_the_next_step(tmp_path: Path, size: tuple[int, int]) -> None:
    async def acts(driver: Driver) -> None:
        said = {
            "1": "press a to add one",
            "2": "press o to open",
            "3": "press ! to start",
            "4": "no finding yet",
            "5": "press c to search",
        }
        for key, words in said.items():
            await driver.press(key)
            assert words in driver.shown()

    play(empty_case, tmp_path, acts, size=size)


def test_closing_the_app_leaves_the_job_alone(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("q")

    play(running_case, tmp_path, acts)

    with Store.open(tmp_path / "case.db") as store:
        (job,) = store.jobs()
    assert (job.state, job.cancel_requested) == ("running", False)


def test_a_case_that_cannot_be_opened_is_told_in_words(tmp_path: Path) -> None:
    async def run() -> None:
        gateway = FakeGateway(empty_case, tmp_path / "case.db")
        gateway.error = StoreError("there is no case here", hint="make one")
        async with open_gateway(gateway) as driver:
            await driver.until(lambda: bool(driver.messages(CaseFailed)), "the failure")
            await driver.settle()
            text = driver.text("#page-text")
            assert text == "there is no case here\nmake one"
            await driver.press("escape", "2", "1", "q")

    asyncio.run(run())


def test_a_worker_that_fell_silent_is_shown(tmp_path: Path) -> None:
    def silent(path: Path) -> Store:
        store = empty_case(path)
        job = store.add_job(Job(kind="investigate", argument={}))
        assert job.id is not None
        store.claim_job(job.id, 4711)
        with store.transaction() as connection:
            connection.execute("UPDATE job SET heartbeat_utc = '2020-01-01T00:00:00Z'")
        return store

    async def acts(driver: Driver) -> None:
        assert "no sign of its worker" in driver.shown()

    play(silent, tmp_path, acts)
