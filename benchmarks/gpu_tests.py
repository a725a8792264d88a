"""Run the tests that need a GPU: `python -m benchmarks.gpu_tests [FILE...]`, all of them without a file.

One process per file, several at once: compiling the kernels is most of the time, and an illegal access in one file
must not turn the next one red. Needs torch, triton, numpy, safetensors and pytest, and no environment of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.children import ROOT, Ended, run_child, tail

TESTS = ROOT / "tests"
JOBS = 8
FILE_LIMIT_S = 200.0
# Options of the project's own that need plugins or a strict list of warnings are left out: versions differ there.
PYTEST = ("-m", "pytest", "-o", "addopts=--import-mode=importlib", "-W", "default", "-p", "no:cacheprovider", "-q")
NO_TEST_SELECTED = 5
MARKED = re.compile(r"^\s*(@|pytestmark\b.*|.*marks=.*)pytest\.mark\.gpu\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the GPU tests of one file came to."""

    file: Path
    green: bool
    passed: int
    verdict: str
    seconds: float
    log: Path


def files_with_gpu_tests(patterns: Sequence[str] = ("*/test_*.py",)) -> list[Path]:
    """The test files that match one of the patterns below tests/ and mark a test `gpu`."""
    found = {path for pattern in patterns for path in TESTS.glob(pattern)}
    return sorted(path for path in found if MARKED.search(path.read_text(encoding="utf-8")))


def run_file(file: Path, folder: Path, limit_s: float = FILE_LIMIT_S) -> Outcome:
    """The GPU tests of one file in a process of their own; its log lies in `folder`."""
    log = folder / f"{file.parent.name}-{file.stem}.log"
    ended = run_child([sys.executable, *PYTEST, "-m", "gpu", file], limit_s, log)
    return outcome_of(file, ended, log)


def outcome_of(file: Path, ended: Ended, log: Path) -> Outcome:
    text = log.read_text(encoding="utf-8", errors="replace")
    # The last line of pytest counts; a file that crashed has none.
    last = (text.strip().splitlines() or [""])[-1].strip("= ")
    passed = int(match[1]) if (match := re.search(r"(\d+) passed", last)) else 0
    green = ended.code in (0, NO_TEST_SELECTED)
    counted = re.search(r"\d+ (passed|failed|skipped|deselected|error)", last)
    return Outcome(
        file=file,
        green=green,
        passed=passed,
        verdict=last if counted and ended.code is not None else ended.verdict,
        seconds=ended.seconds,
        log=log,
    )


def run_files(files: Sequence[Path], folder: Path, limit_s: float = FILE_LIMIT_S, jobs: int = JOBS) -> list[Outcome]:
    """The outcomes in the order of `files`; each is told as it ends, a red one with the end of its output."""

    def one(file: Path) -> Outcome:
        outcome = run_file(file, folder, limit_s)
        line = f"{'green' if outcome.green else 'RED  '} {outcome.seconds:6.1f} s  {file.relative_to(ROOT)}"
        more = "" if outcome.green else "\n" + tail(outcome.log, 40)
        print(f"{line}: {outcome.verdict}{more}", flush=True)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, files))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tests", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="test files; every one that has a GPU test without it")
    parser.add_argument("--jobs", type=int, default=JOBS, help="files at once")
    parser.add_argument("--limit", type=float, default=FILE_LIMIT_S, help="seconds for each file")
    parser.add_argument("--out", type=Path, help="folder that keeps each file's log")
    options = parser.parse_args(arguments)
    files = [file.resolve() for file in options.files] or files_with_gpu_tests()
    with tempfile.TemporaryDirectory() as passing:
        folder = options.out or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = run_files(files, folder, options.limit, options.jobs)
    red = [outcome.file.name for outcome in outcomes if not outcome.green]
    passed = sum(outcome.passed for outcome in outcomes)
    print(f"{passed} tests passed in {len(files)} files; red: {', '.join(red) or 'none'}")
    # Without a GPU all are skipped, which is not what was asked for.
    return 1 if red or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
