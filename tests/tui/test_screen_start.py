"""What starting the screen costs: imports, first paint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "triton", "git", "lab", "engine", "kernels", "scipy", "sqlite_utils", "numpy")

# Processor time from a bare interpreter to the first paint; the gateway never answers.
FIRST_PAINT = """
import asyncio, os, sys, time
if sys.argv[1] == "empty":
    from textual.app import App
    app = App()
else:
    from tui.app import LivepathApp
    from tui.door import Door
    app = LivepathApp(Door(lambda: time.sleep(60)))

async def main():
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0)
        print(time.process_time(), flush=True)
        os._exit(0)

asyncio.run(main())
"""


def _python(code: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


def test_the_screen_starts_without_torch_git_and_the_lab() -> None:
    code = f"import sys, tui.app, tui.door\nprint([name for name in {HEAVY} if name in sys.modules])"

    assert _python(code) == "[]"


def test_the_first_paint_takes_at_most_half_again_as_long_as_an_empty_app() -> None:
    # They take turns, so that a busy machine is busy for both; the best of each counts.
    empty, ours = [], []
    for _ in range(4):
        empty.append(float(_python(FIRST_PAINT, "empty")))
        ours.append(float(_python(FIRST_PAINT, "livepath")))

    assert min(ours) < 1.5 * min(empty), f"empty {min(empty):.3f} s, ours {min(ours):.3f} s"
