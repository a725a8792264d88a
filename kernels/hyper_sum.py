"""Hyper-connections on a GPU, the pre-mix: the sums of `hyper_mix`'s programs to z, and the RMS norm's factor.

Contract: ROWS rows of dot products [T, M] and sums of squares [T], each EACH of them a group. A group's rows are added
in their order, then the groups in theirs. The last group may be short.
Live when: after every `_mix_slice`, with EACH = 1 where its programs took whole groups. OVERLAP as there.
"""

# T tokens, M mixing numbers.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


def _add_metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    tokens, m, rows = args["num_tokens"], args["M"], args["ROWS"]
    size = 4 * tokens * (rows * (m + 1) + m)
    return {"name": f"hyper premix sum {tokens} x {rows}", "bytes": size, "flops": tokens * rows * (m + 1)}


@triton.jit(launch_metadata=_add_metadata, do_not_specialize=["num_tokens"])
def _add_slices(  # type: ignore[no-untyped-def]
    dots,
    squares,
    z,
    num_tokens,
    norm_eps,
    K: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    EACH: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    t_T = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    m_M = tl.arange(0, BLOCK_M)
    real_T = t_T < num_tokens
    real_TM = real_T[:, None] & (m_M < M)[None, :]
    place_TM = t_T[:, None] * M + m_M[None, :]
    dot_TM = tl.zeros([BLOCK_T, BLOCK_M], tl.float32)
    square_T = tl.zeros([BLOCK_T], tl.float32)
    # Unrolled, so that many rows are on their way at once.
    for first in range(0, ROWS, AT_ONCE * EACH):
        for group in tl.static_range(AT_ONCE):
            group_TM = tl.zeros([BLOCK_T, BLOCK_M], tl.float32)
            group_T = tl.zeros([BLOCK_T], tl.float32)
            for i in tl.static_range(EACH):
                number = first + group * EACH + i
                row = number * num_tokens.to(tl.int64)
                group_TM += tl.load(dots + row * M + place_TM, mask=real_TM & (number < ROWS), other=0.0)
                group_T += tl.load(squares + row + t_T, mask=real_T & (number < ROWS), other=0.0)
            dot_TM += group_TM
            square_T += group_T
    tl.store(z + place_TM, dot_TM * tl.rsqrt(square_T / K + norm_eps)[:, None], mask=real_TM)
