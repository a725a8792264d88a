"""`livepath`, or `python -m livepath`: puts the rooms on the path of this process and starts the command line."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Carry out one command and return its exit code."""
    installed = HERE / "_rooms"
    sys.path.insert(0, str(installed if installed.is_dir() else HERE.parent))
    from tui.__main__ import main as tui

    return tui()


if __name__ == "__main__":
    sys.exit(main())
