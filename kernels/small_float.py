"""Rounding to a small float format in Triton, without a cast: the interpreter's casts do not round to nearest.

Contract: fp32 in and out, to nearest, ties to even, by one addition and its inverse; NaN stays NaN. The result casts to
the format without rounding.
Live when: NVFP4 is encoded, or activations become e4m3, on a GPU or in the interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def on_grid(x, SMALLEST: tl.constexpr, SHIFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """x >= 0 rounded to the steps of a small float format; what exceeds its largest number is the caller's to limit.

    SMALLEST is the format's smallest normal number, SHIFT the fp32 mantissa bits it lacks: 1 and 22 for e2m1, 2^-6 and
    20 for e4m3.
    """
    # fp32 has the format's steps at 2^SHIFT times the binade of x, or of SMALLEST, below which steps stay the same.
    far = (tl.maximum(x, SMALLEST) * (1 << SHIFT)).to(tl.int32, bitcast=True) & 0x7F800000
    far = far.to(tl.float32, bitcast=True)
    return (x + far) - far
