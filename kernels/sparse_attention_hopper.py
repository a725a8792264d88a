"""The softmax of 64 heads of a query over a part of its candidates for Hopper, in Gluon: three kinds of warps.

Contract: as `sparse_attention_part`, from rows of two caches only. Four warps bring blocks of 64 candidates into two
stages of shared memory (`sparse_attention_hopper_gather`); four multiply them by the query and take the softmax, eight
multiply probabilities by the candidates (`sparse_attention_hopper_attend`). So the products of two blocks, a softmax
and a gather run at a time.
With packed caches products are in fp16: exact for e4m3 under every scale that the caches' writer makes; rotary channels
round by up to 2^-25 below 2^-14, and beyond 65504 become infinite, which the output shows as NaN or infinity.
Live when: `fits` says so. WHOLE, ROTATE: as in `sparse_attention_part`.
"""

# B queries, H heads, D head dim, N candidates of a block, W window rows, K entry rows, F rotated pairs, R parts.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.attention_cache_ref import ROPE_CHANNELS, SCALE_BYTES
from kernels.checks import interpreting
from kernels.sparse_attention_hopper_attend import HEADS, TILE, _accumulate, _softmax
from kernels.sparse_attention_hopper_gather import (
    BLOCK_N,
    DIM,
    GATHERERS,
    GROUP_WORDS,
    GROUPS,
    HALVES,
    ROPE,
    SLOTS,
    STAGES,
    _gather,
)

H = gl.constexpr(HEADS)
D = gl.constexpr(DIM)
N = gl.constexpr(BLOCK_N)
# Of a thread that takes the softmax and one that gathers, together 192; those that accumulate take 160, as their sums
# lie in registers 24 to 151.
PLAIN_REGISTERS = gl.constexpr([80, 112])
PACKED_REGISTERS = gl.constexpr([136, 56])


def fits(q_BHD: Tensor, window: tuple[Tensor, Tensor], num_pairs: int) -> bool:
    """Whether this kernel can attend from these queries to the rows of caches like `window`, rotating `num_pairs`."""
    _, num_heads, dim = q_BHD.shape
    return (
        not interpreting()
        and torch.cuda.get_device_capability(q_BHD.device) == (9, 0)
        and q_BHD.dtype == torch.bfloat16
        and dim == DIM
        and num_heads % HEADS == 0
        and window[1].dtype != torch.uint8  # the gathered form
        and 2 * num_pairs <= ROPE_CHANNELS
    )


def _metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """As if every candidate were there."""
    queries, heads, dim = args["q_BHD"].shape
    rows = queries * (args["num_window"] + args["num_entries"])
    row_bytes = dim + ROPE_CHANNELS + SCALE_BYTES if args["PACKED"] else 2 * dim
    out = args["out"]
    return {
        "name": f"sparse_attention_hopper {queries}x{heads}x{dim} of {rows // max(queries, 1)}",
        "bytes": rows * row_bytes + args["q_BHD"].nbytes + out.numel() * out.element_size(),
        "flops": 4 * rows * heads * dim,
    }


# These change from step to step of a decode; a compilation for each kind of value would stall it.
@gluon.jit(
    launch_metadata=_metadata,
    do_not_specialize=[
        "num_window",
        "num_entries",
        "window_size",
        "entries_size",
        "num_queries",
        "num_parts",
        "split_size",
    ],
)
def sparse_attention_hopper(  # type: ignore[no-untyped-def]
    q_BHD,
    window,
    window_rows_BW,
    entries,
    entry_rows_BK,
    sinks_H,
    cos_BF,
    sin_BF,
    out,
    lse_RBH,
    scale,
    num_window,
    num_entries,
    window_size,
    entries_size,
    num_queries,
    num_parts,
    split_size,
    BLOCKS: gl.constexpr,
    F: gl.constexpr,
    PACKED: gl.constexpr,
    WHOLE: gl.constexpr,
    ROTATE: gl.constexpr,
):
    part = gl.program_id(0) % num_parts
    # Programs of BLOCKS blocks of heads gather the same rows at about the same time.
    block = (gl.program_id(0) // num_parts).to(gl.int64)
    query = block // BLOCKS
    first_head = block % BLOCKS * H
    first_entry = (num_window + N - 1) // N * N
    first = part * split_size
    end = gl.minimum(first + split_size, first_entry + num_entries)
    num_blocks = gl.maximum((end - first + N - 1) // N, 0)
    row = part * num_queries * BLOCKS * H + block * H

    COUNT: gl.constexpr = HALVES if PACKED else 1
    KEY: gl.constexpr = gl.float16 if PACKED else gl.bfloat16
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_shared = gl.allocate_shared_memory(KEY, [H, D // 2 if PACKED else D], TILE)
    k_shared = gl.allocate_shared_memory(KEY, [STAGES, N, D], TILE)
    p_shared = gl.allocate_shared_memory(KEY, [1 if PACKED else STAGES, H, N], TILE)
    bias = gl.allocate_shared_memory(gl.float32, [STAGES, N], FLAT)
    shrink = gl.allocate_shared_memory(gl.float32, [STAGES, H], FLAT)
    factor = gl.allocate_shared_memory(gl.float32, [H], FLAT)
    turns = gl.allocate_shared_memory(gl.float32, [2, 2, ROPE // 2], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    staged = bias
    if PACKED:
        # Where words lie that are yet to be decoded.
        WORDS: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 1, [1, 0])
        values = ()
        for _ in gl.static_range(GROUPS):
            # One buffer each: copies to one and the same would wait for each other.
            values += (gl.allocate_shared_memory(gl.int32, [SLOTS, N // HALVES, GROUP_WORDS], WORDS),)  # type: ignore[assignment]
        scales = gl.allocate_shared_memory(gl.int64, [SLOTS, N // HALVES], FLAT)
        rope = gl.allocate_shared_memory(gl.int32, [SLOTS, N // HALVES, ROPE // 2], WORDS)
        rows = gl.allocate_shared_memory(window_rows_BW.dtype.element_ty, [SLOTS, N // HALVES], FLAT)
        staged = (values, scales, rope, rows)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES * COUNT, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ended = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    asked = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=COUNT if PACKED else GATHERERS + 1)
        mbarrier.init(ready.index(stage), count=1)
    for piece in gl.static_range(STAGES * COUNT):
        mbarrier.init(empty.index(piece), count=1)
    mbarrier.init(ended, count=1)
    mbarrier.init(asked, count=1)

    lookup = (
        window_rows_BW + query * num_window,
        entry_rows_BK + (query * num_entries - first_entry),
        first_entry,
        gl.minimum(num_window, end),
        end,
        window_size,
        entries_size,
    )
    gl.warp_specialize(
        [
            (
                _accumulate,
                (
                    q_BHD + block * (H * D),
                    q_shared,
                    k_shared,
                    p_shared,
                    shrink,
                    factor,
                    ready,
                    empty,
                    ended,
                    asked,
                    cos_BF + query * F,
                    sin_BF + query * F,
                    turns,
                    out + row * D,
                    num_blocks,
                    F,
                    PACKED,
                    WHOLE,
                    ROTATE,
                ),
            ),
            (
                _softmax,
                (
                    q_BHD + block * (H * D),
                    q_shared,
                    k_shared,
                    p_shared,
                    bias,
                    shrink,
                    factor,
                    full,
                    empty,
                    ready,
                    ended,
                    asked,
                    scale,
                    sinks_H + first_head,
                    lse_RBH + row,
                    num_blocks,
                    PACKED,
                    WHOLE,
                ),
            ),
            (_gather, (window, entries, lookup, first, num_blocks, k_shared, bias, full, empty, staged, PACKED)),
        ],
        [4, 4],
        PACKED_REGISTERS if PACKED else PLAIN_REGISTERS,
    )
