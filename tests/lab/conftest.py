"""Real repositories for the lab's tests: a ten-line foreign one whose probe is pytest and that writes no events."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.git import Git
from lab.runner import RunSpec
from lab.target import Probe, Target

_WHO = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.invalid",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}

PRICE = """\
def price(amount):
    return amount * 3


def rarely(amount):
    return amount - 1
"""

STACK = [
    # (message, file, old, new): each is one commit.
    ("pricing: add a discount table", "shop/table.py", "", "DISCOUNT = {'none': 0}\n"),
    ("pricing: read the table", "shop/price.py", "amount * 3", "amount * 3 - DISCOUNT['none']"),
    ("pricing: round rarely\n\nPatch-Name: round-rarely\n", "shop/price.py", "amount - 1", "round(amount - 1)"),
    ("pricing: charge four", "shop/price.py", "amount * 3", "amount * 4"),
]

TOML = """\
schema = 1
[target]
repo = "."
base = "v1"
head = "main"
trace = ["shop"]
env = {{ PYTEST_ADDOPTS = "-p no:cacheprovider" }}
[probe.suite]
command = "python3 -m pytest -q tests"
timeout_s = 30
"""


@dataclass
class Repo:
    """A repository under test, with the git commands a person would type."""

    path: Path

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.path, env={**os.environ, **_WHO}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def commit(self, message: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    @property
    def target(self) -> Target:
        return Target.load(self.path)


def make_repo(path: Path) -> Repo:
    path.mkdir(parents=True, exist_ok=True)
    repo = Repo(path)
    repo.git("init", "--quiet", "--initial-branch=main")
    return repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """An empty repository."""
    return make_repo(tmp_path / "repo")


@pytest.fixture
def foreign_repo(tmp_path: Path) -> Repo:
    """A package, its test, and a stack: a dependency, its user, one that never runs, and one that breaks the test."""
    return make_foreign_repo(tmp_path / "foreign")


# pytest ends with 2 when a test cannot be imported, which reads as "bad"; a careful suite says 125.
CAREFUL = """\
import pytest

def pytest_sessionstart(session):
    try:
        import shop.price
    except ImportError as error:
        pytest.exit(f"cannot be tested: {error}", returncode=125)
"""


def make_foreign_repo(path: Path, *, careful: bool = False) -> Repo:
    """The foreign repository; a careful one tells "cannot be tested" from "bad"."""
    repo = make_repo(path)
    if careful:
        repo.write("tests/conftest.py", CAREFUL)
    repo.write("shop/__init__.py", "")
    repo.write("shop/price.py", PRICE)
    repo.write("tests/test_price.py", "from shop.price import price\n\n\ndef test_price():\n    assert price(2) == 6\n")
    repo.write("livepath.toml", TOML.format())
    repo.write(".gitignore", "__pycache__/\n.livepath/\n")
    repo.commit("shop: first")
    repo.git("tag", "v1")
    for message, name, old, new in STACK:
        path = repo.path / name
        text = path.read_text(encoding="utf-8").replace(old, new) if old else new
        if "DISCOUNT['" in new:
            text = f"from shop.table import DISCOUNT\n\n\n{text}"
        repo.write(name, text)
        repo.commit(message)
    return repo


@pytest.fixture
def plain_target(repo: Repo) -> Callable[..., Target]:
    """Makes a target out of files: commits them as base, one probe `p` with the given command."""

    def make(files: dict[str, str], command: str, **settings: object) -> Target:
        for name, text in files.items():
            repo.write(name, text)
        extra = "".join(f"{key} = {value}\n" for key, value in settings.items())
        repo.write(
            "livepath.toml",
            f'schema = 1\n[target]\nbase = "HEAD"\nhead = "HEAD"\ntrace = ["pkg"]\n'
            f"[probe.p]\ncommand = '''{command}'''\n{extra}",
        )
        repo.commit("first")
        return repo.target

    return make


@pytest.fixture
def spec_of(tmp_path: Path) -> Callable[..., RunSpec]:
    """A run of a target's only probe in its own checkout, or in a worktree."""
    count = iter(range(1000))

    def make(target: Target, worktree: Path | None = None, **settings: object) -> RunSpec:
        probe: Probe = next(iter(target.probes.values()))
        folder = tmp_path / "runs" / str(next(count))
        return RunSpec(probe=probe, target=target, worktree=worktree or target.repo, folder=folder, **settings)  # type: ignore[arg-type]

    return make


@pytest.fixture
def git(foreign_repo: Repo) -> Git:
    return Git(foreign_repo.path)


def living(marker: str) -> list[int]:
    """Processes whose command line or environment carries a marker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if marker.encode() in text and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found
