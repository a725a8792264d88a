"""Pictures of the screen as SVG: compared with those in docs/images, or written there.

Contract: a picture is what `App.export_screenshot` gives, with the one random id in it masked. LIVEPATH_PICTURES=write
writes the pictures anew; otherwise a picture that differs fails, and the new one is left beside pytest's other files
to look at.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from textual.app import App

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


def picture(app: App[None], title: str) -> str:
    """The screen as SVG, the same for the same screen."""
    svg = app.export_screenshot(title=title)
    return re.sub(r"terminal-\d+", "terminal", svg).replace("<text ", '<text xml:space="preserve" ')


def check_picture(app: App[None], name: str, tmp_path: Path) -> None:
    """Compares the screen with `docs/images/NAME.svg`."""
    svg = picture(app, "livepath")
    known = IMAGES / f"{name}.svg"
    if os.environ.get("LIVEPATH_PICTURES") == "write":
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(svg, encoding="utf-8")
    seen = tmp_path / f"{name}.svg"
    seen.write_text(svg, encoding="utf-8")
    assert known.is_file(), f"no picture {known}; make it with LIVEPATH_PICTURES=write, then look at it"
    assert known.read_text(encoding="utf-8") == svg, f"{name} looks different now: compare {seen} with {known}"
