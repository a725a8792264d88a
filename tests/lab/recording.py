"""Real line records for tests: a script run under coverage.py in a child, with arcs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from coverage import CoverageData

from lab.seen import Seen
from store.models import Attempt, ExecutedFile, Patch


def record(folder: Path, *words: str, env: dict[str, str] | None = None) -> dict[str, ExecutedFile]:
    """What runs of the Python files in a folder when it is the cwd of `python WORDS`."""
    with tempfile.TemporaryDirectory() as scratch:
        data_file = Path(scratch) / "data"
        command = [
            sys.executable,
            "-m",
            "coverage",
            "run",
            "--branch",
            f"--source={folder}",
            f"--data-file={data_file}",
        ]
        done = subprocess.run(
            [*command, *words],
            cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        data = CoverageData(str(data_file))
        data.read()
        files = {}
        for name in data.measured_files():
            lines = data.lines(name)
            if lines:
                path = Path(name).relative_to(folder).as_posix()
                files[path] = ExecutedFile(
                    attempt_id=1,
                    path=path,
                    sha256=hashlib.sha256(Path(name).read_bytes()).hexdigest(),
                    lines=tuple(sorted(lines)),
                    arcs=tuple(sorted(data.arcs(name) or ())),
                )
        data.close()
    return files


def seen(files: dict[str, ExecutedFile], *, fully: bool = True, trace: Sequence[str] = (".",)) -> Seen:
    return Seen(files=files, fully_traced=fully, blind=() if fully else ("a process was killed",), trace=trace)


def attempt(*, fully: bool = True) -> Attempt:
    blind = () if fully else ("a process was killed",)
    return Attempt(run_id=1, number=1, status="ok", folder="", fully_traced=fully, blind=blind, id=1)


def commit_patch(name: str, commit: str, diff: str) -> Patch:
    return Patch(
        name=name, role="stack", kind="commit", position=0, commit=commit, patch_id=name, subject=name, diff=diff
    )
