"""Lets each thread of some warps arrive at an mbarrier by itself, where the compiler lets one arrive for them all.

Contract: `each_thread_arrives(ptx)` takes the predicate off every arrival that stands right after a barrier of its
warps, and makes up for the greater number: of n warps' threads each counts ALL / n, and what an mbarrier waits for
counts as much more. Order is neither lost nor gained: what all of them did is before the one arrival by the barrier in
front of it, and before each one's own arrival by itself. `rewriting()` does so to all that is compiled inside.
Why: racecheck follows an mbarrier from the thread that arrives, and not from the others through the barrier before it,
so it takes every hand-over of a Gluon kernel's warps for a race but for the bytes of the one thread.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# What the arrivals of any warps together count: the most threads that one kind of warps has.
ALL = 256
# Copies arrive for a warp group's threads one by one already.
COPIERS = 128
_BARRIER = re.compile(r"\bbar\.sync\s+\d+, (\d+);")
_ARRIVAL = re.compile(r"@%p\d+ (mbarrier\.arrive\.shared::cta\.b64 _, \[[^\]]+\]);")
_INIT = re.compile(r"(mbarrier\.init\.shared::cta\.b64 \[[^\]]+\]), (\d+);")


def each_thread_arrives(ptx: str) -> tuple[str, int]:
    """`ptx` with every such arrival rewritten, and how many there were.

    A kernel whose mbarriers also wait for bytes (`expect_tx`) stays as it is, with 0: the thread that says how many
    bytes are to come arrives by the same, and must be one.
    """
    if ".expect_tx." in ptx:
        return ptx, 0
    lines, threads, rewritten = ptx.splitlines(keepends=True), ALL, 0
    for i, line in enumerate(lines):
        if barrier := _BARRIER.search(line):
            threads = int(barrier[1])
        elif _ARRIVAL.search(line):
            lines[i] = _ARRIVAL.sub(rf"\1, {ALL // threads};", line)
            rewritten += 1
    if not rewritten:
        return ptx, 0

    def count(init: re.Match[str]) -> str:
        copied, elected = divmod(int(init[2]), COPIERS)
        return f"{init[1]}, {copied * COPIERS + elected * ALL};"

    return _INIT.sub(count, "".join(lines)), rewritten


@contextmanager
def rewriting() -> Iterator[list[int]]:
    """Rewrites what Triton compiles inside, with a cache of its own; the arrivals rewritten in each kernel."""
    from triton.backends.nvidia.compiler import CUDABackend

    original, cache = CUDABackend.make_ptx, os.environ.get("TRITON_CACHE_DIR")
    counts: list[int] = []

    def make_ptx(self: Any, *args: Any, **kwargs: Any) -> str:
        ptx, rewritten = each_thread_arrives(original(self, *args, **kwargs))
        counts.append(rewritten)
        return ptx

    with tempfile.TemporaryDirectory() as folder:
        CUDABackend.make_ptx = make_ptx
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield counts
        finally:
            CUDABackend.make_ptx = original
            if cache is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = cache
