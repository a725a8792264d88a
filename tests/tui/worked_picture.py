"""Draws the README's picture from a worked case that really ran: `python -m tests.tui.worked_picture DIR`.

Contract: opens the finished case of the demo in DIR, starts nothing, and writes docs/images/worked-*.svg. The pictures
hold measured results, so they are drawn by hand after a run, never by a test.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.tui.snapshot import IMAGES, picture
from tui.app import LivepathApp
from tui.door import Door
from tui.gateway import Gateway

# Name, size, keys: the fourth finding is the candidate that mends the reader.
_PICTURES = (
    ("overview", (120, 26), ["1"]),
    ("findings", (150, 30), ["4", "j", "j", "j"]),
)


async def draw(directory: Path, name: str, size: tuple[int, int], keys: list[str]) -> Path:
    """One picture of the finished case."""
    app = LivepathApp(Door(lambda: Gateway.worked(directory), investigate=False))
    async with app.run_test(size=size) as pilot:
        while app.case_view is None:
            await pilot.pause(0.05)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.5)
            await app.workers.wait_for_complete()
        path = IMAGES / f"worked-{name}.svg"
        path.write_text(picture(app, "livepath"), encoding="utf-8")
    return path


if __name__ == "__main__":
    for which in _PICTURES:
        print(asyncio.run(draw(Path(sys.argv[1]), *which)))
