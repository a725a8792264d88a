"""Pictures of every screen in a small and a large terminal, as they were when somebody looked at them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from store.store import Store
from tests.tui import example_case
from tests.tui.pilot import open_screen
from tests.tui.snapshot import check_picture
from tui.app import LivepathApp
from tui.widgets.tones import tone_styles

SIZES = {"80x24": (80, 24), "200x50": (200, 50)}
SCREENS = {
    "overview": (example_case.finished_case, ()),
    "running": (example_case.running_case, ()),
    "reading": (example_case.finished_case, ("2",)),
    "runs": (example_case.finished_case, ("3", "down", "down", "down")),
    "findings": (example_case.finished_case, ("4",)),
    "bisect": (example_case.bisected_case, ("5",)),
}


@pytest.fixture(autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures show times: of the store's rows and of a job that runs."""
    monkeypatch.setattr("store.table.utc_now", lambda: "2026-11-29T22:08:00Z")
    monkeypatch.setattr("store.jobs.utc_now", lambda: "2026-11-29T22:08:00Z")
    monkeypatch.setattr("tui.progress.now_utc", lambda: datetime(2026, 11, 29, 22, 8, 5, tzinfo=UTC))
    example_case._file_of.cache_clear()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCREENS)
def test_the_screen_looks_as_it_did_when_somebody_looked(name: str, size: str, tmp_path: Path) -> None:
    make, keys = SCREENS[name]

    async def run() -> None:
        async with open_screen(make, tmp_path, size=SIZES[size]) as driver:
            await driver.press(*keys)
            check_picture(driver.app, f"{name}-{size}", tmp_path)

    asyncio.run(run())
    example_case._file_of.cache_clear()


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (example_case.empty_case, (80, 24)),
        (example_case.running_case, (110, 30)),
        (example_case.finished_case, (60, 15)),
        (example_case.finished_case, (120, 40)),
        (example_case.finished_case, (160, 24)),
        (example_case.finished_case, (200, 50)),
    ],
)
def test_no_pane_is_squeezed_away(make: Callable[[Path], Store], size: tuple[int, int], tmp_path: Path) -> None:
    async def run() -> None:
        async with open_screen(make, tmp_path, size=size) as driver:
            for screen in "12345":
                await driver.press(screen)
                for pane in driver.app.screen.query("LineView"):
                    if pane.region.area:
                        assert pane.size.height >= 1, f"{pane.id} at {size}"
                        assert pane.region.right <= size[0]
                        assert pane.region.bottom <= size[1]

    asyncio.run(run())


def test_without_colour_the_cursor_and_every_state_can_still_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def run() -> None:
        async with open_screen(example_case.finished_case, tmp_path) as driver:
            assert isinstance(driver.app, LivepathApp)
            shown = driver.shown()
            assert "> T1   hash-topk-routed-scaling" in shown
            assert "[1 Overview]" in shown
            for words in ("✓ exonerated", "○ dead", "+ fix", "✗ refuted", "? unverified"):
                assert words in shown
            await driver.press("2")
            assert "○D" in driver.shown()
            assert "●L" in driver.shown()

    asyncio.run(run())


def test_every_theme_of_the_palette_draws_every_tone(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_screen(example_case.finished_case, tmp_path) as driver:
            for theme in driver.app.available_themes:
                driver.app.theme = theme
                await driver.settle()
                assert "✓ exonerated" in driver.shown()
                styles = tone_styles(driver.app.theme_variables)
                assert styles["good"].color != styles["bad"].color

    asyncio.run(run())
