"""Merges the parts of one softmax by their log-sum-exp: one program per query and head.

Contract: the sink is one more part whose output is 0. Parts are summed eight at a time in their order, in fp32, against
the largest log-sum-exp so far; a part without a candidate has log-sum-exp -inf and no weight.
Live when: `sparse_attention` cut the candidates into more than one part. ROTATE: the last channels are rotated back.
OVERLAP: launched with programmatic dependent launch, it starts before the parts have ended and waits inside.
"""

# B queries, H heads, D head dim, R parts.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.sparse_attention_part import rotated_back


def _metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    parts, out = args["parts_RBHD"], args["out_BHD"]
    return {
        "name": f"sparse_attention_merge {out.shape[0]}x{out.shape[1]}x{out.shape[2]} of {parts.shape[0]}",
        "bytes": parts.numel() * parts.element_size() + out.numel() * out.element_size(),
        "flops": 2 * parts.numel(),
    }


@triton.jit(launch_metadata=_metadata, do_not_specialize=["num_parts", "num_rows"])
def sparse_attention_merge(  # type: ignore[no-untyped-def]
    parts_RBHD,
    lse_RBH,
    sinks_H,
    cos_BF,
    sin_BF,
    out_BHD,
    num_parts,
    num_rows,
    H: tl.constexpr,
    D: tl.constexpr,
    F: tl.constexpr,
    ROTATE: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, BLOCK_D)
    r_R = tl.arange(0, 8)
    top = tl.load(sinks_H + row % H) * 1.4426950408889634
    total = 1.0
    acc_D = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, num_parts, 8):
        real_R = start + r_R < num_parts
        place_R = (start + r_R) * num_rows + row
        lse_R = tl.load(lse_RBH + place_R, mask=real_R, other=float("-inf"))
        part_RD = tl.load(
            parts_RBHD + (place_R * D)[:, None] + d_D[None, :],
            mask=real_R[:, None] & (d_D < D)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(lse_R, axis=0))
        weight_R = tl.exp2(lse_R - new_top)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weight_R, axis=0)
        acc_D = acc_D * shrink + tl.sum(part_RD * weight_R[:, None], axis=0)
        top = new_top
    out_1D = (acc_D / total)[None, :]
    if ROTATE:
        out_1D = rotated_back(out_1D, cos_BF, sin_BF, row // H, D, F)
    tl.store(out_BHD + row * D + d_D[None, :], out_1D.to(out_BHD.dtype.element_ty), mask=(d_D < D)[None, :])
