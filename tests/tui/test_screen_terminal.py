"""From the open app to a finding by keys alone: a real terminal, a real repository, real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.case import create_case
from store.store import Store
from tests.lab.conftest import make_foreign_repo

ROOT = Path(__file__).resolve().parents[2]
OPEN = """
import sys
from pathlib import Path
from tui.app import run_app
from tui.door import Door
from tui.gateway import Gateway
run_app(Door(lambda: Gateway(Path(sys.argv[1]))))
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]


class Terminal:
    """A terminal of 80x24 in a tmux server of its own."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-f", os.devnull, "-S", str(self.socket), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout

    def keys(self, *names: str) -> None:
        for name in names:
            self.tmux("send-keys", "-t", "main", name)

    def shows(self, words: str, *, within_s: float = 60.0) -> str:
        """Waits until the words are on screen."""
        deadline = time.monotonic() + within_s
        while words not in (screen := self.tmux("capture-pane", "-p", "-t", "main")):
            assert time.monotonic() < deadline, f"never showed `{words}`:\n{screen}"
            time.sleep(0.1)
        return screen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    repo = make_foreign_repo(tmp_path / "foreign", careful=True)
    create_case(repo.path, "prices", "the till charges too much").close()
    return repo.path


@pytest.fixture
def terminal(folder: Path, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path / "tmux")
    opened.tmux("new-session", "-d", "-s", "main", "-x", "80", "-y", "24", "-c", str(ROOT), "sh")
    opened.tmux("send-keys", "-t", "main", "-l", f"exec {sys.executable} -c '{OPEN}' {folder}")
    opened.keys("Enter")
    yield opened
    subprocess.run(["tmux", "-S", str(opened.socket), "kill-server"], capture_output=True, check=False)


def test_from_the_open_app_to_a_finding_by_keys_alone(terminal: Terminal, folder: Path) -> None:
    terminal.shows("the till charges too much")
    terminal.keys("a")
    terminal.shows("Add a hypothesis")
    terminal.tmux("send-keys", "-t", "main", "-l", "the last commit did it")
    terminal.keys("Enter")
    terminal.shows("the last commit did it")

    screen = terminal.shows("✗ culprit", within_s=120)
    assert "charge-four" in next(line for line in screen.splitlines() if "✗ culprit" in line)
    terminal.shows("✓ investigate done", within_s=120)

    terminal.keys("4", "/")
    terminal.shows("filter: words")
    terminal.tmux("send-keys", "-t", "main", "-l", "charge-four culprit")
    terminal.keys("Enter")
    screen = terminal.shows("Diff of charge-four")
    assert "●L +    return amount * 4" in screen
    terminal.keys("q")

    with Store.open(folder / ".livepath" / "prices.db") as store:
        finding = next(finding for finding in store.findings() if finding.patch == "charge-four")
        assert finding.verdict == "culprit"
        assert "the last commit did it" in [hypothesis.text for hypothesis in store.hypotheses()]
