"""The least program of warps with roles: `compute-sanitizer --tool racecheck python -m benchmarks.warp_roles`.

One kind of warps hands 128 numbers a round to another through shared memory, ordered by an mbarrier for full and one
for empty; nothing else is shared. What racecheck shows here it shows of any such program; docs/kernels.md says what.
"""

from __future__ import annotations

import sys

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

WIDTH, ROUNDS = 128, 5
W = gl.constexpr(WIDTH)
EACH = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _produce(numbers, full, empty, num_rounds):  # type: ignore[no-untyped-def]
    for i in range(num_rounds):
        mbarrier.wait(empty, (i & 1) ^ 1)
        numbers.store(gl.arange(0, W, layout=EACH) + i)
        mbarrier.arrive(full, count=1)


@gluon.jit
def _consume(numbers, full, empty, out, num_rounds):  # type: ignore[no-untyped-def]
    total_W = gl.zeros([W], gl.int32, EACH)
    for i in range(num_rounds):
        mbarrier.wait(full, i & 1)
        total_W += numbers.load(EACH)
        mbarrier.arrive(empty, count=1)
    gl.store(out + gl.arange(0, W, layout=EACH), total_W)


@gluon.jit
def hand_over(out, num_rounds):  # type: ignore[no-untyped-def]
    numbers = gl.allocate_shared_memory(gl.int32, [W], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [(_consume, (numbers, full, empty, out, num_rounds)), (_produce, (numbers, full, empty, num_rounds))], [4], [64]
    )


def main() -> int:
    if not torch.cuda.is_available():
        print("warp_roles: no CUDA device; this needs one of sm_90", file=sys.stderr)
        return 2
    out = torch.empty(WIDTH, dtype=torch.int32, device="cuda")
    hand_over[(1,)](out, ROUNDS, num_warps=4)
    expected = ROUNDS * torch.arange(WIDTH, dtype=torch.int32) + sum(range(ROUNDS))
    print("right" if torch.equal(out.cpu(), expected) else "wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
