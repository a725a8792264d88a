"""Fused NVFP4 experts in plain Triton, from the weights as a checkpoint stores them: the portable path.

Contract: as `experts_ref.experts_ref` on the decoded weights. Code times block scale is exact in bf16; sums are fp32;
the global scale multiplies in the fp32 epilogue, the routed scaling factor only where `factor` is given. The
intermediate and the rows before the weighted sum have the tokens' dtype.
Live when: the GPU is sm_80 or newer and not sm_90 with repacked weights. GATE_UP: rows are gathered from the tokens and
the epilogue is the clamped SwiGLU; otherwise rows lie in sorted order and go to their flat row. UPCAST: dots take fp32
operands, for fp32 tokens and for the interpreter, whose bf16 dots are wrong.
"""

# T tokens, K picks per token, N routed rows = T * K, D model dim, I expert hidden.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.align import align
from kernels.checks import interpreting
from kernels.combine import combine
from kernels.experts_launch import check_routing, gemm_launch
from kernels.launch import launch
from kernels.nvfp4_layout import Nvfp4Experts
from kernels.swiglu import limited


@triton.jit
def _weights(codes, scales, row, column_block, rows, C, BLOCK_C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Codes times block scales, fp32 [rows, BLOCK_C], of one column block; zeros beyond the matrix."""
    byte = column_block * (BLOCK_C // 2) + tl.arange(0, BLOCK_C // 2)
    real = (row < rows)[:, None] & (byte < C // 2)[None, :]
    packed = tl.load(codes + row.to(tl.int64)[:, None] * (C // 2) + byte[None, :], mask=real, other=0)
    group = column_block * (BLOCK_C // 16) + tl.arange(0, BLOCK_C // 16)
    real = (row < rows)[:, None] & (group < C // 16)[None, :]
    scale = tl.load(scales + row.to(tl.int64)[:, None] * (C // 16) + group[None, :], mask=real, other=0)
    scale = scale.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    code = tl.interleave(packed & 15, packed >> 4).to(tl.int32)
    # The magnitude's bits across fp32's exponent and mantissa are e2m1 * 2^-126, the smallest of them a subnormal.
    value = (((code & 8) << 28) | ((code & 7) << 22)).to(tl.float32, bitcast=True) * 8.507059173023462e37
    return (tl.reshape(value, (row.shape[0], BLOCK_C // 16, 16)) * scale[:, :, None]).reshape(row.shape[0], BLOCK_C)


@triton.jit
def _product(x_TC, w_RC, acc_TR, UPCAST: tl.constexpr):  # type: ignore[no-untyped-def]
    if UPCAST:
        return tl.dot(x_TC.to(tl.float32), tl.trans(w_RC), acc_TR, input_precision="ieee")
    else:
        return tl.dot(x_TC, tl.trans(w_RC.to(x_TC.dtype)), acc_TR)


def _metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    rows = args["rows"] * (2 if args["GATE_UP"] else 1)
    return gemm_launch("nvfp4_experts", args, ("codes", "scales"), rows=rows, columns=args["C"])


@triton.jit(launch_metadata=_metadata)
def _expert_gemm(  # type: ignore[no-untyped-def]
    x,
    codes,
    scales,
    global_scale_E,
    out,
    sorted_rows,
    tile_expert,
    tile_start,
    tile_end,
    rows,
    C,
    num_blocks,
    swiglu_limit,
    TOPK: tl.constexpr,
    GATE_UP: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    tile = tl.program_id(0) // num_blocks
    block = tl.program_id(0) % num_blocks
    expert = tl.load(tile_expert + tile)
    if expert >= 0:
        end = tl.load(tile_end + tile)
        place_T = tl.load(tile_start + tile) + tl.arange(0, BLOCK_T)
        real_T = place_T < end
        flat_T = tl.load(sorted_rows + place_T, mask=real_T, other=0)
        if GATE_UP:
            source_T = flat_T // TOPK
            target_T = place_T
            matrix_rows = 2 * rows
        else:
            source_T = place_T
            target_T = flat_T
            matrix_rows = rows
        row_R = block * BLOCK_R + tl.arange(0, BLOCK_R)
        codes += expert.to(tl.int64) * matrix_rows * (C // 2)
        scales += expert.to(tl.int64) * matrix_rows * (C // 16)
        acc_TR = tl.zeros([BLOCK_T, BLOCK_R], tl.float32)
        up_TR = tl.zeros([BLOCK_T, BLOCK_R], tl.float32)
        for column_block in range(tl.cdiv(C, BLOCK_C)):
            column = column_block * BLOCK_C + tl.arange(0, BLOCK_C)
            x_TC = tl.load(
                x + source_T.to(tl.int64)[:, None] * C + column[None, :],
                mask=real_T[:, None] & (column < C)[None, :],
                other=0.0,
            )
            acc_TR = _product(x_TC, _weights(codes, scales, row_R, column_block, rows, C, BLOCK_C), acc_TR, UPCAST)
            if GATE_UP:
                up_RC = _weights(
                    codes + rows.to(tl.int64) * (C // 2),
                    scales + rows.to(tl.int64) * (C // 16),
                    row_R,
                    column_block,
                    rows,
                    C,
                    BLOCK_C,
                )
                up_TR = _product(x_TC, up_RC, up_TR, UPCAST)
        global_scale = tl.load(global_scale_E + expert)
        value_TR = acc_TR * global_scale
        if GATE_UP:
            up_TR = up_TR * global_scale
            if HAS_LIMIT:
                value_TR, up_TR = limited(value_TR, up_TR, swiglu_limit)
            value_TR = value_TR / (1.0 + tl.exp(-value_TR)) * up_TR
        tl.store(
            out + target_T.to(tl.int64)[:, None] * rows + row_R[None, :],
            value_TR.to(out.dtype.element_ty),
            mask=real_T[:, None] & (row_R < rows)[None, :],
        )


def experts(
    x_TD: Tensor,
    weights: Nvfp4Experts,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    factor: float | None = None,
) -> Tensor:
    """The weighted sum of the routed experts [T, D], in the tokens' dtype (bf16 or fp32).

    Args:
        topk_ids_TK: int32; ids that are no expert add nothing.
        topk_weights_TK: fp32.
        swiglu_limit: clamp of the activation, None for none.
        factor: the routed scaling factor where it belongs to the kernel; None where it sits elsewhere.

    Raises:
        DtypeError, ShapeError, DeviceError: before any launch.
    """
    check_routing(
        x_TD, weights.w13_codes, topk_ids_TK, topk_weights_TK, dim=weights.dim, num_experts=weights.num_experts
    )
    num_tokens, dim = x_TD.shape
    topk = topk_ids_TK.shape[1]
    out_TD = torch.empty_like(x_TD, memory_format=torch.contiguous_format)
    if num_tokens == 0:
        return out_TD
    topk_ids_TK, topk_weights_TK = topk_ids_TK.contiguous(), topk_weights_TK.contiguous()
    block_t = 16 if num_tokens * topk <= 24 * weights.num_experts else 64
    tiles = align(topk_ids_TK, weights.num_experts, block_t)
    hidden = torch.empty(num_tokens * topk, weights.hidden, dtype=x_TD.dtype, device=x_TD.device)
    rows = torch.empty(num_tokens * topk, dim, dtype=x_TD.dtype, device=x_TD.device)
    block_r = 64
    for gate_up in (True, False):
        source, codes, scales, global_scale, target = (
            (x_TD.contiguous(), weights.w13_codes, weights.w13_scale, weights.w13_global, hidden)
            if gate_up
            else (hidden, weights.w2_codes, weights.w2_scale, weights.w2_global, rows)
        )
        num_blocks = triton.cdiv(target.shape[1], block_r)
        launch(_expert_gemm, (tiles.max_tiles * num_blocks,))(
            source,
            codes,
            scales.view(torch.uint8),
            global_scale,
            target,
            tiles.sorted_rows,
            tiles.expert,
            tiles.start,
            tiles.end,
            target.shape[1],
            source.shape[1],
            num_blocks,
            0.0 if swiglu_limit is None else swiglu_limit,
            TOPK=topk,
            GATE_UP=gate_up,
            HAS_LIMIT=swiglu_limit is not None,
            UPCAST=interpreting() or x_TD.dtype == torch.float32,
            BLOCK_T=block_t,
            BLOCK_R=block_r,
            BLOCK_C=64,
            num_warps=4,
            num_stages=3,
        )
    return combine(rows, topk_ids_TK, topk_weights_TK, weights.num_experts, factor, out_TD)
