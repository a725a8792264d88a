"""Everything a session on a GPU is for, in one command: `./run gpu --out FOLDER [--quick] [--steps tests,bench]`.

The steps run in the order of their value, each under its own limit and all under the session's; a step that fails or
is stopped does not keep the next from running. FOLDER gets a log per step, the result files and `session.json`.
It is a plain module: `python3 -m benchmarks.gpu` needs torch, triton, numpy, safetensors and pytest and no environment.
BENCH_COMMIT names the commit where the checkout came without its git folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.children import ROOT, run_child, tail

# A little under ten minutes, for machines that are had for so long at a time.
SESSION_LIMIT_S = 570.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A module to run in a process of its own, and the seconds it gets."""

    name: str
    limit_s: float
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a step came to; `code` is None where it was stopped or never started."""

    step: str
    verdict: str
    code: int | None
    seconds: float


def steps_of(out: Path, *, quick: bool) -> list[Step]:
    """The steps of a session, most valuable first."""
    to, quickly = ("--out", str(out)), ("--quick",) if quick else ()
    return [
        Step(name="tests", limit_s=240, command=("benchmarks.gpu_tests", "--out", str(out / "tests"))),
        Step(name="sanitizer", limit_s=240, command=("benchmarks.sanitize", *to, *quickly)),
        Step(name="trained", limit_s=120, command=("benchmarks.engine_gpu", "trained", *to)),
        Step(name="engine", limit_s=240, command=("benchmarks.engine_gpu", "flash", *to, *quickly)),
        Step(name="bench", limit_s=540, command=("benchmarks.run", "all", *to, *quickly)),
        Step(
            name="skewed", limit_s=240, command=("benchmarks.run", "experts", "--skewed", "--no-peers", *to, *quickly)
        ),
    ]


def run_steps(steps: Sequence[Step], out: Path, session_limit_s: float) -> list[Done]:
    """Run the steps one after another; what is left of the session's time bounds each."""
    end = time.monotonic() + session_limit_s
    done: list[Done] = []
    for step in steps:
        limit = min(step.limit_s, end - time.monotonic())
        if limit <= 0:
            done.append(Done(step=step.name, verdict="not run, the session's time was over", code=None, seconds=0.0))
        else:
            log = out / f"{step.name}.log"
            log.unlink(missing_ok=True)
            print(f"== {step.name}: up to {limit:.0f} s, log in {log}", flush=True)
            ended = run_child([sys.executable, "-m", *step.command], limit, log, {"PYTHONUNBUFFERED": "1"})
            done.append(Done(step=step.name, verdict=ended.verdict, code=ended.code, seconds=round(ended.seconds, 1)))
            print(tail(log, 12 if ended.code == 0 else 40), flush=True)
        # Written after each step, so that a session cut short from outside keeps what it knew.
        (out / "session.json").write_text(json.dumps([asdict(item) for item in done], indent=1) + "\n")
    return done


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for logs and result files")
    parser.add_argument("--quick", action="store_true", help="memcheck only, and the first shape of each op")
    parser.add_argument("--steps", help="names of steps, by commas; all of them without it")
    parser.add_argument("--limit", type=float, default=SESSION_LIMIT_S, help="seconds for the whole session")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    steps = {step.name: step for step in steps_of(out, quick=options.quick)}
    names = options.steps.split(",") if options.steps else list(steps)
    if unknown := [name for name in names if name not in steps]:
        parser.error(f"no step {', '.join(unknown)}; expected some of {', '.join(steps)}")
    if not (ROOT / ".git").exists() and not os.environ.get("BENCH_COMMIT"):
        parser.error("no git folder here; set BENCH_COMMIT to the commit of this checkout, results must name it")
    out.mkdir(parents=True, exist_ok=True)
    done = run_steps([steps[name] for name in names], out, options.limit)
    print("\n".join(["", "== summary", *(f"{item.step:10} {item.seconds:7.1f} s  {item.verdict}" for item in done)]))
    return 0 if all(item.code == 0 for item in done) else 1


if __name__ == "__main__":
    sys.exit(main())
