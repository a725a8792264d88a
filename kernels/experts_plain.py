"""Fused experts over bf16 weights and over FP8 block weights, in Triton: one grouped GEMM for both.

Contract: as `experts_ref.experts_ref` on the decoded weights, sums in fp32; the routed scaling factor multiplies only
where `factor` is given. FP8 with quantised activations (W8A8) multiplies e4m3 by e4m3 and adds each 128 columns' sum,
times the row's scale and the block's, in fp32; without (W8A16) it multiplies the tokens' dtype by e4m3, which is exact
in bf16. The intermediate has the tokens' dtype, except where it is quantised: fp32 then, rounded once. Bitwise
repeatable; a token's bits depend on its batch only through the choice of tile, so a given `tile` is batch-invariant.
Live when: the GPU is sm_80 or newer (W8A8: sm_89), and the weights are bf16 or FP8 blocks. GATE_UP: rows are gathered
from the tokens and the epilogue is the clamped SwiGLU; otherwise rows lie in sorted order and go to their flat row.
FP8: block scales multiply each 128 columns' sum. ROUNDED: activations are e4m3 with scales of their own. UPCAST: dots
take fp32 operands, for fp32 tokens and for the interpreter, whose bf16 dots are wrong; never with ROUNDED.
Floor: weights of the experts drawn, tokens in and out and the intermediate written and read at 4.3 TB/s, or the flops
at 790 TFLOP/s (bf16) and 1580 (e4m3).
"""

# T tokens, K picks per token, N routed rows = T * K, D model dim, I expert hidden, R weight rows, C columns.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.align import align
from kernels.checks import interpreting, require
from kernels.combine import combine
from kernels.errors import DeviceError, DtypeError, ShapeError
from kernels.experts_launch import check_routing, gemm_launch
from kernels.fp8_block_ref import BLOCK, Fp8Experts
from kernels.fp8_rows import quantise_rows
from kernels.launch import launch
from kernels.swiglu import limited


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How much one program computes: BLOCK_R weight rows x BLOCK_T routed rows, and its warps and load stages."""

    block_t: int
    block_r: int
    num_warps: int
    stages: int


def choose_tile(num_rows: int, num_experts: int, *, fp8: bool, rounded: bool, portable: bool = False) -> Tile:
    """A tile for the mean number of rows an expert gets.

    Weight rows are the tensor core's M side, so few tokens are cheap. FP8 keeps a second sum beside the first, and a
    scale for each of a thread's tokens where activations are `rounded`: its tile for many rows is half as large.
    Where they are not, e4m3 becomes bf16 once for each tile, which is most of a wide one's time with few rows in it.
    `portable` tiles fit the shared memory of any GPU; the others want 200 KB.
    """
    mean = num_rows / num_experts
    widened = fp8 and not rounded
    if portable:
        return Tile(block_t=16 if mean <= 12 else 32, block_r=64, num_warps=4, stages=3)
    if mean <= 12:
        return Tile(block_t=16, block_r=128, num_warps=4, stages=4)
    if mean <= (80 if widened else 48):
        return Tile(block_t=64, block_r=128, num_warps=4, stages=4)
    return Tile(block_t=64 if rounded else 128, block_r=128 if widened else 256, num_warps=8, stages=4)


def _metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    rows = args["rows"] * (2 if args["GATE_UP"] else 1)
    name = f"{'fp8' if args['FP8'] else 'bf16'}_experts"
    return gemm_launch(name, args, ("w", "w_scale") if args["FP8"] else ("w",), rows=rows, columns=args["C"])


@triton.jit(launch_metadata=_metadata)
def _expert_gemm(  # type: ignore[no-untyped-def]
    x,
    x_scale,
    w,
    w_scale,
    out,
    sorted_rows,
    tile_expert,
    tile_start,
    tile_end,
    rows,
    C,
    num_tiles,
    num_blocks,
    swiglu_limit,
    TOPK: tl.constexpr,
    GATE_UP: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    FP8: tl.constexpr,
    ROUNDED: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    TILES_EACH: tl.constexpr,
):
    # Programs that run together share weight rows (over TILES_EACH tiles) and tokens, so that L2 serves both again.
    first = tl.program_id(0) // (TILES_EACH * num_blocks) * TILES_EACH
    place = tl.program_id(0) - first * num_blocks
    group = tl.minimum(num_tiles - first, TILES_EACH)
    tile = first + place % group
    block = place // group
    expert = tl.load(tile_expert + tile)
    if expert >= 0:
        end = tl.load(tile_end + tile)
        place_T = tl.load(tile_start + tile) + tl.arange(0, BLOCK_T)
        real_T = place_T < end
        flat_T = tl.load(sorted_rows + place_T, mask=real_T, other=0)
        r_R = tl.arange(0, BLOCK_R)
        # Rows beyond the matrix read its last one; what comes of them is not stored.
        if GATE_UP:
            source_T = flat_T // TOPK
            target_T = place_T
            matrix_rows = 2 * rows
            # Gate and up of one channel lie eight rows apart, where one thread of the tensor core's tile holds both.
            channel_R = block * (BLOCK_R // 2) + r_R // 16 * 8 + r_R % 8
            row_R = tl.minimum(channel_R, rows - 1) + r_R // 8 % 2 * rows
        else:
            source_T = tl.where(real_T, place_T, 0)
            target_T = flat_T
            matrix_rows = rows
            row_R = tl.minimum(block * BLOCK_R + r_R, rows - 1)
        c_C = tl.arange(0, BLOCK_C)
        x_CT = x + source_T.to(tl.int64)[None, :] * C + c_C[:, None]
        w_RC = w + (expert.to(tl.int64) * matrix_rows + row_R)[:, None] * C + c_C[None, :]
        if FP8:
            num_groups = tl.cdiv(C, BLOCK_C)
            w_group_R = (expert * tl.cdiv(matrix_rows, BLOCK_C) + row_R // BLOCK_C) * num_groups
            x_group_T = source_T * num_groups
            next_scale_R = tl.load(w_scale + w_group_R)
        acc_RT = tl.zeros([BLOCK_R, BLOCK_T], tl.float32)
        for step in range(tl.cdiv(C, BLOCK_C)):
            real_C = c_C < C - step * BLOCK_C
            x_tile = tl.load(x_CT + step * BLOCK_C, mask=real_C[:, None] & real_T[None, :], other=0.0)
            w_tile = tl.load(w_RC + step * BLOCK_C, mask=real_C[None, :], other=0.0)
            if UPCAST:
                x_tile = x_tile.to(tl.float32)
                w_tile = w_tile.to(tl.float32)
            elif FP8 and not ROUNDED:
                # By way of fp32, which is exact: from e4m3's own fp16 to bf16 Hopper has only a slow conversion.
                w_tile = w_tile.to(tl.float32).to(x_tile.dtype)
            if FP8:
                scale_R = next_scale_R
                next_scale_R = tl.load(w_scale + tl.minimum(step + 1, num_groups - 1) + w_group_R)
                if ROUNDED:
                    scale_T = tl.load(x_scale + step + x_group_T)
                # Scales multiply after the product: they are on their way while it is computed.
                part_RT = tl.dot(w_tile, x_tile, input_precision="ieee") * scale_R[:, None]
                if ROUNDED:
                    part_RT = part_RT * scale_T[None, :]
                acc_RT += part_RT
            else:
                acc_RT = tl.dot(w_tile, x_tile, acc_RT, input_precision="ieee")
        if GATE_UP:
            pairs = tl.permute(tl.reshape(acc_RT, (BLOCK_R // 16, 2, 8, BLOCK_T)), (0, 2, 3, 1))
            gate, up = tl.split(pairs)
            if HAS_LIMIT:
                gate, up = limited(gate, up, swiglu_limit)
            value = tl.reshape(gate / (1.0 + tl.exp(-gate)) * up, (BLOCK_R // 2, BLOCK_T))
            row = block * (BLOCK_R // 2) + tl.arange(0, BLOCK_R // 2)
        else:
            value = acc_RT
            row = block * BLOCK_R + r_R
        tl.store(
            out + target_T.to(tl.int64)[None, :] * rows + row[:, None],
            value.to(out.dtype.element_ty),
            mask=(row < rows)[:, None] & real_T[None, :],
        )


def bf16_experts(
    x_TD: Tensor,
    w13: Tensor,
    w2: Tensor,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    factor: float | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """The weighted sum of the routed experts [T, D] in the tokens' dtype, from bf16 weights.

    Args:
        x_TD: bf16 or fp32 tokens.
        w13: bf16 [E, 2I, D], gate rows first.
        w2: bf16 [E, D, I].
        topk_ids_TK: int32; ids that are no expert add nothing.
        topk_weights_TK: fp32.
        swiglu_limit: clamp of the activation, None for none.
        factor: the routed scaling factor where it belongs to the kernel; None where it sits elsewhere.
        tile: overrides `choose_tile`; one tile for all batches makes a token's bits independent of its batch.

    Raises:
        DtypeError, ShapeError, DeviceError: before any launch.
    """
    for name, weight in (("w13", w13), ("w2", w2)):
        require(weight.dtype == torch.bfloat16, DtypeError, f"weights {name}", weight.dtype, "bfloat16")
        require(weight.is_contiguous(), ShapeError, f"strides of {name}", weight.stride(), "contiguous weights")
    num_experts, dim, hidden = w2.shape
    require(
        w13.shape == (num_experts, 2 * hidden, dim),
        ShapeError,
        "weights w13",
        tuple(w13.shape),
        f"{(num_experts, 2 * hidden, dim)} beside w2 {tuple(w2.shape)}",
    )
    check_routing(x_TD, w13, topk_ids_TK, topk_weights_TK, dim=dim, num_experts=num_experts)
    return _experts(x_TD, (w13, None), (w2, None), topk_ids_TK, topk_weights_TK, swiglu_limit, factor, tile)


def fp8_experts(
    x_TD: Tensor,
    weights: Fp8Experts,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    quantise_activations: bool = True,
    factor: float | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """The weighted sum of the routed experts [T, D] in the tokens' dtype, from FP8 block weights.

    Args:
        quantise_activations: e4m3 by e4m3 (W8A8, sm_89 or newer); False leaves the activations as they are (W8A16).

    Other arguments and errors as `bf16_experts`.
    """
    for name, values in (("w13", weights.w13), ("w2", weights.w2)):
        require(values.is_contiguous(), ShapeError, f"strides of {name}", values.stride(), "contiguous weights")
    dim, num_experts = weights.dim, weights.num_experts
    check_routing(x_TD, weights.w13, topk_ids_TK, topk_weights_TK, dim=dim, num_experts=num_experts)
    if quantise_activations and not interpreting():
        capability = torch.cuda.get_device_capability(x_TD.device)
        require(
            capability >= (8, 9), DeviceError, "FP8 activations on a GPU of capability", capability, "(8, 9) or more"
        )
    return _experts(
        x_TD,
        (weights.w13, weights.w13_scale.contiguous()),
        (weights.w2, weights.w2_scale.contiguous()),
        topk_ids_TK,
        topk_weights_TK,
        swiglu_limit,
        factor,
        tile,
        rounded=quantise_activations,
    )


def _experts(
    x_TD: Tensor,
    w13: tuple[Tensor, Tensor | None],
    w2: tuple[Tensor, Tensor | None],
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    factor: float | None,
    tile: Tile | None,
    *,
    rounded: bool = False,
) -> Tensor:
    """The layer over checked weights, each with its scales or without."""
    num_tokens, dim = x_TD.shape
    topk = topk_ids_TK.shape[1]
    num_experts, _, hidden = w2[0].shape
    out_TD = torch.empty_like(x_TD, memory_format=torch.contiguous_format)
    if num_tokens == 0:
        return out_TD
    topk_ids_TK, topk_weights_TK = topk_ids_TK.contiguous(), topk_weights_TK.contiguous()
    num_rows = num_tokens * topk
    fp8 = w2[1] is not None
    upcast = not rounded and (interpreting() or x_TD.dtype == torch.float32)
    portable = upcast or interpreting() or torch.cuda.get_device_capability(x_TD.device)[0] not in (9, 10)
    tile = tile or choose_tile(num_rows, num_experts, fp8=fp8, rounded=rounded, portable=portable)
    tiles = align(topk_ids_TK, num_experts, tile.block_t)
    middle = torch.float32 if rounded else x_TD.dtype
    hidden_NI = torch.empty(num_rows, hidden, dtype=middle, device=x_TD.device)
    rows_ND = torch.empty(num_rows, dim, dtype=x_TD.dtype, device=x_TD.device)
    for source, (weight, scale), target in ((x_TD.contiguous(), w13, hidden_NI), (hidden_NI, w2, rows_ND)):
        gate_up = target is hidden_NI
        values, row_scale = quantise_rows(source) if rounded else (source, None)
        num_blocks = triton.cdiv(weight.shape[1], tile.block_r)
        launch(_expert_gemm, (tiles.max_tiles * num_blocks,))(
            values,
            row_scale,
            weight,
            scale,
            target,
            tiles.sorted_rows,
            tiles.expert,
            tiles.start,
            tiles.end,
            target.shape[1],
            weight.shape[2],
            tiles.max_tiles,
            num_blocks,
            0.0 if swiglu_limit is None else swiglu_limit,
            TOPK=topk,
            GATE_UP=gate_up,
            HAS_LIMIT=swiglu_limit is not None,
            FP8=fp8,
            ROUNDED=rounded,
            UPCAST=upcast,
            BLOCK_T=tile.block_t,
            BLOCK_R=tile.block_r,
            BLOCK_C=BLOCK if fp8 else 64,
            TILES_EACH=8,
            num_warps=tile.num_warps,
            num_stages=tile.stages,
        )
    return combine(rows_ND, topk_ids_TK, topk_weights_TK, num_experts, factor, out_TD)
