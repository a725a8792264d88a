"""The page about the screen names every key that has a description."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.binding import Binding

from tui.app import LivepathApp
from tui.screens.base import CaseScreen
from tui.screens.bisect import BisectScreen
from tui.screens.findings import FindingsScreen
from tui.screens.overview import OverviewScreen
from tui.screens.reading import ReadingScreen
from tui.screens.runs import RunsScreen
from tui.widgets.signs import LIVENESS, VERDICTS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "screens.md").read_text(encoding="utf-8")
OWNERS = (LivepathApp, CaseScreen, OverviewScreen, ReadingScreen, RunsScreen, FindingsScreen, BisectScreen)


@pytest.mark.parametrize("owner", OWNERS)
def test_every_key_with_a_description_is_on_the_page(owner: type[LivepathApp] | type[CaseScreen]) -> None:
    described = [b for b in owner.BINDINGS if isinstance(b, Binding) and b.description and "pane" not in b.action]

    missing = [b.description for b in described if b.description not in PAGE and b.show]

    assert described
    assert missing == []


def test_every_sign_is_on_the_page() -> None:
    for verdict in VERDICTS.values():
        assert f"`{verdict.glyph} {verdict.word}`" in PAGE
    for sign in LIVENESS.values():
        assert f"`{sign.glyph}{sign.letter}`" in PAGE or sign.glyph == "?"
