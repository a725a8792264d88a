"""What starting the screen imports; what the first paint costs is measured by `benchmarks/first_paint.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "triton", "git", "lab", "engine", "kernels", "scipy", "sqlite_utils", "numpy")


def test_the_screen_starts_without_torch_git_and_the_lab() -> None:
    code = f"import sys, tui.app, tui.door\nprint([name for name in {HEAVY} if name in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout.strip() == "[]"
