"""NVFP4 encode's search on a GPU: the bits of the largest magnitude of every matrix.

Contract: the largest magnitude's fp32 bits, exact; those of infinity or NaN if a matrix holds one.
Live when: `nvfp4_encode` needs a global scale or checks weights; in `amax` alone, or `largest` as part of an encode.
BF16: weights are the upper halves of fp32. COMPILED: two of them are compared at once; otherwise, in the interpreter,
which takes no assembly, one by one.
Floor: 2 (bf16) or 4 (fp32) bytes read per weight; one instruction a weight of bf16.
"""

# E matrices; W words, each one fp32 or two bf16 weights.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import interpreting
from kernels.launch import launch

WORDS = 512  # at a time, 16 bytes a thread
STEPS = 32
TOGETHER = tl.constexpr(8)  # loads on their way at once


@triton.jit
def _larger(largest_W, word_W, BF16: tl.constexpr, COMPILED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The larger magnitudes of two words' weights, NaN before any other; `largest` has no signs."""
    if not BF16:
        # Without their signs magnitudes order as integers do, infinity and NaN last.
        return tl.maximum(largest_W, word_W & 0x7FFFFFFF)
    elif COMPILED:
        ASM: tl.constexpr = "{.reg .b32 t; abs.bf16x2 t, $2; max.NaN.bf16x2 $0, $1, t;}"
        return tl.inline_asm_elementwise(ASM, "=r,r,r", [largest_W, word_W], tl.int32, True, 1)
    else:
        upper_W = tl.maximum(largest_W & 0x7FFF0000, word_W & 0x7FFF0000)
        return upper_W | tl.maximum(largest_W & 0x7FFF, word_W & 0x7FFF)


@triton.jit
def largest(  # type: ignore[no-untyped-def]
    words, num_words, BF16: tl.constexpr, COMPILED: tl.constexpr, WORDS: tl.constexpr, STEPS: tl.constexpr
):
    """The bits of the largest magnitude of `num_words` words, WORDS * STEPS at most; a NaN is the largest."""
    largest_W = tl.zeros([WORDS], tl.int32)
    w_W = tl.arange(0, WORDS)
    if num_words >= WORDS * STEPS:
        for step in range(0, STEPS, TOGETHER):
            for other in tl.static_range(TOGETHER):
                largest_W = _larger(largest_W, tl.load(words + (step + other) * WORDS + w_W), BF16, COMPILED)
    else:
        for step in range(tl.cdiv(num_words, WORDS)):
            word_W = tl.load(words + step * WORDS + w_W, mask=step * WORDS + w_W < num_words, other=0)
            largest_W = _larger(largest_W, word_W, BF16, COMPILED)
    if BF16:
        largest_W = tl.maximum(largest_W & 0x7FFF0000, largest_W << 16)
    return tl.max(largest_W, axis=0)


def _amax_metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    searched = grid[0] // args["num_tiles"]
    return {"name": "nvfp4_amax", "bytes": searched * args["num_blocks"] * (32 if args["BF16"] else 64), "flops": 0}


@triton.jit(launch_metadata=_amax_metadata)
def amax(  # type: ignore[no-untyped-def]
    w_words,
    amax_bits_E,
    num_blocks,
    num_tiles,
    BF16: tl.constexpr,
    COMPILED: tl.constexpr,
    WORDS: tl.constexpr,
    STEPS: tl.constexpr,
):
    matrix = (tl.program_id(0) // num_tiles).to(tl.int64)
    first = tl.program_id(0) % num_tiles * (WORDS * STEPS)
    num_words = num_blocks * (8 if BF16 else 16)
    bits = largest(w_words + matrix * num_words + first, num_words - first, BF16, COMPILED, WORDS, STEPS)
    # An integer maximum is the same in any order.
    tl.atomic_max(amax_bits_E + matrix, bits, sem="relaxed")


def search(w_words: Tensor, amax_bits_E: Tensor, num_matrices: int, num_blocks: int, bf16: bool) -> None:
    """Raise `amax_bits`, int32, to the largest magnitudes of the first matrices, each of `num_blocks` blocks of 16."""
    num_tiles = triton.cdiv(num_blocks * (8 if bf16 else 16), WORDS * STEPS)
    launch(amax, (num_matrices * num_tiles,))(
        w_words,
        amax_bits_E,
        num_blocks,
        num_tiles,
        BF16=bf16,
        COMPILED=not interpreting(),
        WORDS=WORDS,
        STEPS=STEPS,
        num_warps=4,
    )
