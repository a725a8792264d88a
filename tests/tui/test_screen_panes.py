"""What the panes of Reading, Runs, Findings and Bisect show, and what their keys do."""

from __future__ import annotations

from pathlib import Path

from textual.widgets import Input, Static

from tests.tui.example_case import bisected_case, finished_case, running_case
from tests.tui.pilot import Driver, play
from tui.widgets.diff_view import DiffView
from tui.widgets.grid_map import GridMap
from tui.widgets.source_view import SourceView


def test_filtering_shows_what_belongs_to_the_row_that_is_left(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("4", "slash")
        await driver.type("guard")
        await driver.press("enter")
        assert "fp8-scaling-guard is dead" in driver.text("#claim")

    play(finished_case, tmp_path, acts)


def test_a_dead_reading_has_a_banner_and_one_key_to_the_live_sibling(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("2")
        assert "DEAD in run 5 (needle on full+fix)" in driver.shown()
        source = driver.app.screen.query_one(SourceView)
        assert source.line == 11
        assert "12 ○D" in driver.shown()
        await driver.press("s")
        assert source.line == 24
        assert driver.app.focused is source
        assert "LIVE: NvFp4MoEMethod.apply" in driver.shown()
        await driver.press("s")
        assert source.line == 11

    play(finished_case, tmp_path, acts)


def test_lines_are_marked_as_a_reading(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("2", "tab", "m", "down", "down", "m")
        await driver.type("the guard")
        await driver.press("enter")
        ((kind, spec, note),) = driver.gateway.asked
        assert (kind, spec.partition("@")[0], note) == ("add_reading", "engine/methods.py:11-13", "the guard")

    play(finished_case, tmp_path, acts)


def test_the_source_is_searched(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("2", "tab", "slash")
        await driver.type("fuse_routed")
        await driver.press("enter")
        source = driver.app.screen.query_one(SourceView)
        assert source.line == 22
        await driver.press("n")
        assert source.line == 9
        await driver.press("N")
        assert source.line == 22

    play(finished_case, tmp_path, acts)


def test_a_file_is_opened_by_name_and_an_unknown_one_is_refused_in_words(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("2", "o")
        await driver.type("engine/nope.py")
        await driver.press("enter")
        assert "no file" in str(driver.app.screen.query_one("#form-error", Static).content)
        driver.app.screen.query_one("#field-path", Input).value = "engine/methods.py:19"
        await driver.press("enter")
        assert driver.app.screen.query_one(SourceView).line == 19

    play(running_case, tmp_path, acts)


def test_a_run_shows_recall_by_length_and_depth_beside_base(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("3", "down", "down", "down")
        grids = driver.app.screen.query_one(GridMap).grids
        assert [grid.title for grid in grids][:2] == ["recall, full+indexer-fp8-layout", "recall, base (run 1)"]
        assert grids[0].columns == ("256", "512", "1024", "2048", "4096")
        assert [cell.text for cell in grids[1].rows[0][1] if cell] == ["100", "100", "65", "50", "35"]
        assert grids[0].foot == "% of n=20 items a cell"
        assert "engine.probes.needle" in driver.text("#command")

    play(finished_case, tmp_path, acts)


def test_a_scaling_run_shows_one_exponent_per_layer_and_branch(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("3")
        (grid,) = driver.app.screen.query_one(GridMap).grids
        assert grid.columns == ("prefill", "decode")
        assert [(name, cells[0].text) for name, cells in grid.rows if cells[0]][:2] == [
            ("L0 routed", "1.00"),
            ("L0 shared", "0.00"),
        ]

    play(finished_case, tmp_path, acts)


def test_the_end_of_a_runs_output_is_shown_without_its_escapes(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("3", "t")
        assert "context 13 of 60" in driver.shown()
        assert "\x1b" not in driver.shown()

    play(running_case, tmp_path, acts)


def test_a_finding_stands_beside_its_diff_with_the_liveness_of_its_lines(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("4", "down")
        assert "NVFP4 experts" in driver.text("#claim")
        diff = driver.app.screen.query_one(DiffView)
        proved = [proof.word for line in diff.diff_lines if (proof := diff.proved(line))]
        assert proved == ["not_seen"] * 4
        await driver.press("up")
        await driver.press("right_square_bracket", "right_square_bracket")
        assert diff.diff_lines[diff.cursor].text.startswith("@@ -72")

    play(finished_case, tmp_path, acts)


def test_a_finding_is_withdrawn_only_with_a_reason(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("4", "w", "enter")
        assert driver.gateway.asked == []
        await driver.type("wrong arm")
        await driver.press("enter")
        assert driver.gateway.asked == [("withdraw", "1", "wrong arm")]
        await driver.until(lambda: "- withdrawn" in driver.shown(), "the withdrawn mark")
        await driver.press("w")
        assert not driver.app.screen.is_modal

    play(finished_case, tmp_path, acts)


def test_a_bisect_shows_on_the_stack_where_it_turned_worse(tmp_path: Path) -> None:
    async def acts(driver: Driver) -> None:
        await driver.press("5")
        shown = driver.shown()
        assert "5  splitk-decode             ✗ first bad     +1.000 n=8    ✗ culprit" in shown
        assert "2  nvfp4-experts             ! cannot test" in shown
        assert "bracket, fresh items: splitk-decode" in driver.text("#said")
        await driver.press("c")
        await driver.type("kl")
        await driver.press("enter")
        assert driver.gateway.asked == [("start_bisect", "kl")]

    play(bisected_case, tmp_path, acts)
