"""What the first paint of the screen costs beside an empty Textual app: `python -m benchmarks.first_paint`.

Contract: processor time from a bare interpreter to the first paint, the two taking turns so that a busy machine is busy
for both; the best of each and their ratio. The case behind the screen is never opened: the paint must not wait for it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


def first_paint_s(which: str) -> float:
    """Processor seconds until `empty` or `livepath` has painted once."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PAINT, which], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=6)
    repeats = parser.parse_args().repeats
    pairs = [(first_paint_s("empty"), first_paint_s("livepath")) for _ in range(repeats)]
    empty, ours = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    print(f"empty app {empty:.3f} s, livepath {ours:.3f} s, ratio {ours / empty:.2f} (best of {repeats})")


if __name__ == "__main__":
    main()
