"""Index scores of paged keys on a GPU: one program per sequence, block of keys and group of queries.

Contract: as `index_page_ref.index_scores_ref`, except that a key's scale multiplies after the dot product instead of
before it. bf16 queries use bf16 tensor cores (e4m3 and bf16 keys are exact in bf16), fp32 queries full fp32.
Live when: tensors lie on a GPU of sm_80 or newer; on sm_90 one bf16 query a sequence goes to `index_hopper` instead,
where that fits. FP8_KEYS: the two scale loads and their multiply run; otherwise the bf16 load does. UPCAST: dots take
fp32 operands, for fp32 queries and for the interpreter, whose bf16 dots are wrong.
"""

# B sequences, T queries, S keys, H index heads, D index head dim.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import index_hopper
from kernels.checks import interpreting, require, require_device
from kernels.errors import DtypeError, ShapeError
from kernels.index_page_ref import PAGE_SIZE, SCALE_BYTES, reader_layout
from kernels.launch import launch


def _metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What a profiler is told: keys read once per group of queries, scores written; two flops a multiply-add."""
    scores = args["scores_BTS"].numel()
    key_bytes = args["D"] + SCALE_BYTES if args["FP8_KEYS"] else 2 * args["D"]
    return {
        "name": f"index_scores_{'fp8' if args['FP8_KEYS'] else 'bf16'}",
        "bytes": grid[1] * grid[2] * args["num_keys"] * key_bytes + scores * 4,
        "flops": scores * args["H"] * (2 * args["D"] + 3),
    }


@triton.jit(launch_metadata=_metadata)
def _index_scores(  # type: ignore[no-untyped-def]
    q_BTHD,
    pages,
    block_table_BP,
    weights_BTH,
    scores_BTS,
    scale,
    num_queries,
    num_keys,
    num_pages,
    page_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    VALUE_BASE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    SCALE_BASE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    FP8_KEYS: tl.constexpr,
    UPCAST: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    QUERIES: tl.constexpr,
):
    sequence = tl.program_id(2)
    key_S = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    d_D = tl.arange(0, BLOCK_D)
    h_H = tl.arange(0, BLOCK_H)
    real_S = key_S < num_keys
    page_S = tl.load(block_table_BP + sequence * num_pages + key_S // PAGE, mask=real_S, other=0).to(tl.int64)
    page_S = page_S * page_stride
    place_S = key_S % PAGE
    real_SD = real_S[:, None] & (d_D < D)[None, :]
    value_SD = (page_S + VALUE_BASE + place_S * VALUE_STRIDE)[:, None] + d_D[None, :]
    if FP8_KEYS:
        key_SD = tl.load(pages + value_SD, mask=real_SD, other=0).to(tl.float8e4nv, bitcast=True)
        scale_S = (page_S + SCALE_BASE + place_S * SCALE_STRIDE) // 4
        key_scale_S = tl.load(pages.to(tl.pointer_type(tl.float32)) + scale_S, mask=real_S, other=0.0)
    else:
        key_SD = tl.load(pages + value_SD, mask=real_SD, other=0.0)
    if UPCAST:
        operand_SD = key_SD.to(tl.float32)
    else:
        operand_SD = key_SD.to(tl.bfloat16)
    for i in range(QUERIES):
        query = tl.program_id(1) * QUERIES + i
        if query < num_queries:
            row = (sequence * num_queries + query).to(tl.int64)
            real_HD = (h_H < H)[:, None] & (d_D < D)[None, :]
            q_HD = tl.load(q_BTHD + row * H * D + h_H[:, None] * D + d_D[None, :], mask=real_HD, other=0.0)
            weight_H = tl.load(weights_BTH + row * H + h_H, mask=h_H < H, other=0.0).to(tl.float32)
            if UPCAST:
                dots_SH = tl.dot(operand_SD, tl.trans(q_HD.to(tl.float32)), input_precision="ieee")
            else:
                dots_SH = tl.dot(operand_SD, tl.trans(q_HD))
            if FP8_KEYS:
                dots_SH = dots_SH * key_scale_S[:, None]
            dots_SH = dots_SH * scale
            # Not tl.maximum, which would turn NaN into 0; and a padded head must not turn an infinite scale into NaN.
            dots_SH = tl.where((dots_SH < 0.0) | (h_H >= H)[None, :], 0.0, dots_SH)
            score_S = tl.sum(dots_SH * weight_H[None, :], axis=1)
            score_S = tl.where(score_S != score_S, -1e20, score_S)
            score_S = tl.where(score_S == float("inf"), 1e20, score_S)
            score_S = tl.where(score_S == float("-inf"), -1e20, score_S)
            tl.store(scores_BTS + row * num_keys + key_S, score_S, mask=real_S)


def index_scores(
    q_BTHD: Tensor, pages: Tensor, block_table_BP: Tensor, num_keys: int, weights_BTH: Tensor, scale: float
) -> Tensor:
    """Index scores fp32 [B, T, num_keys] of bf16 pages, or of fp8 pages read by `reader_layout`.

    Raises:
        DtypeError: queries are not bf16 or fp32, or pages not uint8 or bf16.
        ShapeError: a size or a stride does not fit.
        DeviceError: the tensors are not all on one GPU.
    """
    batch, num_queries, num_heads, dim = q_BTHD.shape
    fp8 = pages.dtype == torch.uint8
    page_numbers = PAGE_SIZE * (dim + SCALE_BYTES) if fp8 else PAGE_SIZE * dim
    require_device("index_scores", q_BTHD, pages, block_table_BP, weights_BTH)
    require(q_BTHD.dtype in (torch.bfloat16, torch.float32), DtypeError, "index queries", q_BTHD.dtype, "bf16 or fp32")
    require(fp8 or pages.dtype == torch.bfloat16, DtypeError, "index pages", pages.dtype, "uint8 or bf16")
    require(dim % 16 == 0, ShapeError, "index head dim", dim, "a multiple of 16")
    require(pages.shape[1] == page_numbers, ShapeError, "page size", pages.shape[1], page_numbers)
    require(pages.stride(1) == 1, ShapeError, "page stride", pages.stride(), "contiguous pages")
    require(
        block_table_BP.shape[0] == batch and num_keys <= block_table_BP.shape[1] * PAGE_SIZE,
        ShapeError,
        "block table",
        tuple(block_table_BP.shape),
        f"[{batch}, at least {-(-num_keys // PAGE_SIZE)}]",
    )
    require(
        weights_BTH.shape == q_BTHD.shape[:3], ShapeError, "head weights", tuple(weights_BTH.shape), q_BTHD.shape[:3]
    )
    scores_BTS = torch.empty(batch, num_queries, num_keys, dtype=torch.float32, device=q_BTHD.device)
    if scores_BTS.numel() == 0:
        return scores_BTS
    layout = reader_layout(dim)
    if not interpreting() and index_hopper.fits(q_BTHD, pages, layout):
        index_hopper.score_pages(q_BTHD, pages, block_table_BP, weights_BTH, scores_BTS, scale, layout)
        return scores_BTS
    upcast = interpreting() or q_BTHD.dtype == torch.float32
    # fp32 products of 128 keys and 64 heads would spill all but every register.
    block_s, queries = (128, 1) if num_queries == 1 and not upcast else (64, 8)
    grid = (triton.cdiv(num_keys, block_s), triton.cdiv(num_queries, queries), batch)
    launch(_index_scores, grid)(
        q_BTHD.contiguous(),
        pages,
        block_table_BP.contiguous(),
        weights_BTH.contiguous(),
        scores_BTS,
        scale,
        num_queries,
        num_keys,
        block_table_BP.shape[1],
        pages.stride(0),
        H=num_heads,
        D=dim,
        VALUE_BASE=layout.value_base if fp8 else 0,
        VALUE_STRIDE=layout.value_stride if fp8 else dim,
        SCALE_BASE=layout.scale_base,
        SCALE_STRIDE=layout.scale_stride,
        FP8_KEYS=fp8,
        UPCAST=upcast,
        PAGE=PAGE_SIZE,
        BLOCK_S=block_s,
        BLOCK_H=max(16, triton.next_power_of_2(num_heads)),
        BLOCK_D=triton.next_power_of_2(dim),
        QUERIES=queries,
        num_warps=4,
    )
    return scores_BTS
