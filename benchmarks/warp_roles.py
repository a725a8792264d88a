"""The least program of warps with roles, for the sanitizer: what it says here it says of any such program.

One kind of warps hands numbers over to another through shared memory, ordered by an mbarrier for full and one for
empty; nothing else is shared. Two numbers a thread, or the compiler would store and load with `stmatrix` and
`ldmatrix`, which racecheck does not see. `python -m benchmarks.sanitizer_child roles` runs it.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

WIDTH, ROUNDS = 256, 5
W = gl.constexpr(WIDTH)
EACH = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))


@gluon.jit
def _produce(numbers, full, empty, num_rounds):  # type: ignore[no-untyped-def]
    for i in range(num_rounds):
        mbarrier.wait(empty, (i & 1) ^ 1)
        numbers.store(gl.arange(0, W, layout=EACH) + i)
        mbarrier.arrive(full, count=1)


@gluon.jit
def _consume(numbers, full, empty, out, num_rounds, ORDERED: gl.constexpr):  # type: ignore[no-untyped-def]
    total_W = gl.zeros([W], gl.int32, EACH)
    for i in range(num_rounds):
        if ORDERED:
            mbarrier.wait(full, i & 1)
        total_W += numbers.load(EACH)
        if not ORDERED:
            mbarrier.wait(full, i & 1)
        mbarrier.arrive(empty, count=1)
    gl.store(out + gl.arange(0, W, layout=EACH), total_W)


@gluon.jit
def hand_over(out, num_rounds, ORDERED: gl.constexpr):  # type: ignore[no-untyped-def]
    numbers = gl.allocate_shared_memory(gl.int32, [W], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [
            (_consume, (numbers, full, empty, out, num_rounds, ORDERED)),
            (_produce, (numbers, full, empty, num_rounds)),
        ],
        [4],
        [64],
    )


def ordered(device: str) -> None:
    """Every number is handed over; fails where one is not."""
    out = torch.empty(WIDTH, dtype=torch.int32, device=device)
    hand_over[(1,)](out, ROUNDS, True, num_warps=4)
    expected = ROUNDS * torch.arange(WIDTH, dtype=torch.int32) + sum(range(ROUNDS))
    assert torch.equal(out.cpu(), expected), out


def unordered(device: str) -> None:
    """The same with numbers read before they are known to be there: a race, but no round is lost."""
    hand_over[(1,)](torch.empty(WIDTH, dtype=torch.int32, device=device), ROUNDS, False, num_warps=4)
