"""Fused NVFP4 experts for Hopper: sort, gate-up GEMM with clamped SwiGLU, down GEMM, weighted sum.

Contract: as `experts_ref.experts_ref` on the decoded weights, in bf16 with fp32 sums; the routed scaling factor
multiplies here only where `factor` is given. Bitwise repeatable; a token's bits depend on its batch only through the
choice of tile.
Live when: the GPU is sm_90 and the weights are NVFP4 repacked by `nvfp4_layout.repack`.
"""

# T tokens, K picks per token, D model dim.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.align import Tiles, align
from kernels.checks import overlapped, require
from kernels.combine import combine, permute_columns
from kernels.errors import DeviceError
from kernels.experts_hopper_gemm import expert_gemm
from kernels.experts_launch import check_routing
from kernels.launch import launch
from kernels.nvfp4_layout import COLUMN_PAD, HopperExperts


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How much one program computes: BLOCK_T tokens x 16 * num_warps rows, and how it stages its operands.

    `prefetch_chunk` keeps the next 256 columns of weights in registers instead of the next 64: more bytes on their way
    for a program whose time is memory latency, more registers than a program with a large accumulator has. A tile with
    at most `tail_t` rows takes a product of that width; 0 for none. A tile grows by up to `extra_t` rows where that
    saves its expert a tile, and with it the decoding of all its weights once more; 0 for none. `overlap` lets each
    launch start, and fetch its first weights, before the one ahead of it has ended. `max_registers` caps a thread's
    registers.
    """

    block_t: int
    num_warps: int
    x_columns: int
    stages: int
    prefetch_chunk: bool
    tail_t: int = 0
    extra_t: int = 0
    overlap: bool = False
    max_registers: int | None = None


def choose_tile(num_rows: int, num_experts: int) -> Tile:
    """A tile for the mean number of rows an expert gets."""
    mean = num_rows / num_experts
    if mean <= 3:
        return Tile(block_t=8, num_warps=4, x_columns=256, stages=4, prefetch_chunk=True, overlap=True)
    if mean <= 12:
        return Tile(block_t=16, num_warps=4, x_columns=256, stages=3, prefetch_chunk=True)
    if mean <= 40:
        return Tile(block_t=32, num_warps=8, x_columns=128, stages=4, prefetch_chunk=True, tail_t=16)
    # With 128 registers two programs share a multiprocessor: one computes while the other starts or stores.
    # Extra rows save a second tile only where many experts have a few more rows than one holds.
    if mean <= 64:
        block_t, stages, tail_t, extra_t = 64, 5, 16, 16 if mean > 52 else 0
    else:
        block_t, stages, tail_t, extra_t = 128, 4, 32, 16
    return Tile(
        block_t=block_t,
        num_warps=8,
        x_columns=64,
        stages=stages,
        prefetch_chunk=False,
        tail_t=tail_t,
        extra_t=extra_t,
        max_registers=128,
    )


def experts_hopper(
    x_TD: Tensor,
    weights: HopperExperts,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    factor: float | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """The weighted sum of the routed experts, bf16 [T, D].

    Args:
        x_TD: bf16 tokens.
        topk_ids_TK: int32; ids that are no expert add nothing.
        topk_weights_TK: fp32.
        swiglu_limit: clamp of the activation, None for none.
        factor: the routed scaling factor where it belongs to the kernel; None where it sits elsewhere.
        tile: overrides `choose_tile`, for benchmarks and tests.

    Raises:
        DtypeError, ShapeError, DeviceError: before any launch.
    """
    check_routing(
        x_TD,
        weights.w13_words,
        topk_ids_TK,
        topk_weights_TK,
        dim=weights.dim,
        num_experts=weights.num_experts,
        dtypes=(torch.bfloat16,),
    )
    capability = torch.cuda.get_device_capability(x_TD.device)
    require(
        capability == (9, 0),
        DeviceError,
        "experts: GPU of capability",
        capability,
        "(9, 0); ask dispatch for another implementation",
    )
    num_tokens, dim = x_TD.shape
    topk = topk_ids_TK.shape[1]
    out_TD = torch.empty(num_tokens, dim, dtype=torch.bfloat16, device=x_TD.device)
    if num_tokens == 0:
        return out_TD
    topk_ids_TK, topk_weights_TK = topk_ids_TK.contiguous(), topk_weights_TK.contiguous()
    num_rows = num_tokens * topk
    tile = tile or choose_tile(num_rows, weights.num_experts)
    one_token = num_tokens == 1
    if one_token:
        unused = topk_ids_TK
        tiles = Tiles(unused, unused.view(-1), unused, unused)
    else:
        tiles = align(topk_ids_TK, weights.num_experts, tile.block_t, tile.extra_t, tile.overlap)
    hidden_columns = weights.w2_words.shape[2] * COLUMN_PAD
    x_permuted = permute_columns(x_TD.contiguous(), weights.w13_words.shape[2] * COLUMN_PAD, tile.overlap)
    hidden = torch.empty(num_rows, hidden_columns, dtype=torch.bfloat16, device=x_TD.device)
    rows = torch.empty(num_rows, dim, dtype=torch.bfloat16, device=x_TD.device)
    routing = (topk_ids_TK, tiles.sorted_rows, tiles.expert, tiles.start, tiles.end)
    constants = {
        "TOPK": topk,
        "E": weights.num_experts,
        "ONE_TOKEN": one_token,
        "HAS_LIMIT": swiglu_limit is not None,
        "BLOCK_T": tile.block_t,
        "TAIL_T": 0 if one_token else tile.tail_t,
        "EXTRA_T": 0 if one_token else tile.extra_t,
        "NUM_WARPS": tile.num_warps,
        "X_COLUMNS": tile.x_columns,
        "STAGES": tile.stages,
        "PREFETCH_CHUNK": tile.prefetch_chunk,
        "num_warps": tile.num_warps,
        **overlapped(tile.overlap),
        **({} if tile.max_registers is None else {"maxnreg": tile.max_registers}),
    }
    limit = 0.0 if swiglu_limit is None else swiglu_limit
    for gate_up in (True, False):
        source, words, scales, global_scale, target = (
            (x_permuted, weights.w13_words, weights.w13_scales, weights.w13_global, hidden)
            if gate_up
            else (hidden, weights.w2_words, weights.w2_scales, weights.w2_global, rows)
        )
        row_tiles = words.shape[1] * 4 // tile.num_warps
        launch(expert_gemm, (tiles.max_tiles * row_tiles,))(
            source,
            words,
            scales,
            global_scale,
            target,
            *routing,
            row_tiles,
            words.shape[2],
            target.shape[1],
            target.shape[1],
            limit,
            GATE_UP=gate_up,
            **constants,
        )
    return combine(rows, topk_ids_TK, topk_weights_TK, weights.num_experts, factor, out_TD, tile.overlap)
