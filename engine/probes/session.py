"""What every probe shares: arguments, one thread, the identity of the code that ran, and how it ends.

Contract: the first event is `identity`, the last is `end`; a probe that raised says `failed` and leaves a non-zero exit
code. The human table goes to stdout, talk and errors to stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from engine import events
from engine.checkpoint import DEFAULT_CHECKPOINT
from engine.errors import EngineError
from kernels.errors import KernelError

ROOT = Path(__file__).resolve().parent.parent.parent


def parser_of(name: str, doc: str | None, example: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m engine.probes.{name}",
        description=doc,
        epilog=f"example: python -m engine.probes.{name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--checkpoint", type=Path, default=DEFAULT_CHECKPOINT, help="folder (default: the shipped one)")
    parser.add_argument("--seed", type=amount, default=os.environ.get("LIVEPATH_SEED") or "0", help="or LIVEPATH_SEED")
    return parser


def numbers(kind: type[int] | type[float]) -> Callable[[str], list[float]]:
    """An argument type: numbers separated by commas."""

    def parse(text: str) -> list[float]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 1,2,3") from None

    return parse


def count(text: str) -> int:
    """An argument type: a number of things, at least one."""
    return _at_least(1, text)


def amount(text: str) -> int:
    """An argument type: a number of things, possibly none."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {least}")
    return int(text)


def run(parser: argparse.ArgumentParser, argv: list[str] | None, work: Callable[[argparse.Namespace], None]) -> int:
    """Runs a probe's work between its first and its last event and returns the exit code."""
    args = parser.parse_args(argv)
    began = time.monotonic()
    torch.set_num_threads(1)
    identity()
    status, code = "failed", 1
    try:
        work(args)
        status, code = "ok", 0
    except (EngineError, KernelError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
    finally:
        events.emit("end", status=status, wall_s=round(time.monotonic() - began, 3))
    return code


def identity() -> None:
    """Says which files of the engine and its kernels are loaded, with their digests, and at which commit."""
    if not events.enabled():
        return
    files = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and name.split(".")[0] in ("engine", "kernels"):
            files[name] = [path, hashlib.sha256(Path(path).read_bytes()).hexdigest()]
    changes = _git("status", "--porcelain", "--untracked-files=no")
    dirty = None if changes is None else bool(changes)
    events.emit("identity", commit=_git("rev-parse", "HEAD"), dirty=dirty, files=files)


def _git(*args: str) -> str | None:
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(ROOT), *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@contextmanager
def unheard() -> Iterator[None]:
    """No events inside: for a second engine that is only there to compare with."""
    path = os.environ.pop("LIVEPATH_EVENTS", None)
    try:
        yield
    finally:
        if path is not None:
            os.environ["LIVEPATH_EVENTS"] = path


def progress(done: int, total: int, note: str) -> None:
    events.emit("progress", done=done, total=total, note=note)


def item_id(seed: int, name: str) -> str:
    """Items of another seed are other items, so their ids differ."""
    return name if seed == 0 else f"s{seed}/{name}"


def wilson(right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """A 95 % interval of a share."""
    centre = (right + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(right * (n - right) / n + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)
