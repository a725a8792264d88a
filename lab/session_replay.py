"""The session that ships with the demo, typed again: its commands stay, its outputs are those of the demo's head now.

Contract: for `./run refresh-patches` and the tests only. It runs what stands in `engine/patches/session.log`, a file
of ours, in a checkout of the demo that answers to `~/engine`; an imported session is never run.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from lab.session_steps import steps
from lab.session_text import render

FOLDER = "engine"  # what the session calls the checkout: ~/engine


def replay(log: str, checkout: Path) -> str:
    """The log with every output as the commands print it in `checkout`."""
    with tempfile.TemporaryDirectory(prefix="livepath-replay-") as home:
        (Path(home) / FOLDER).symlink_to(checkout.resolve())
        written = [
            f"{step.host}:{step.folder}$ {step.command}\n{_printed(step.command, home)}"
            for step in steps(tuple(render(log)))
        ]
    return "".join(written)


def _printed(command: str, home: str) -> str:
    words = shlex.split(command)
    if words[0] != "ssh":
        return ""
    env = {"HOME": home, "PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    done = subprocess.run(
        ["sh", "-c", words[-1]], cwd=home, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr
