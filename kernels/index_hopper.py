"""Index scores of paged keys for Hopper, one query a sequence, in Gluon: keys go from memory to wgmma's registers.

Contract: as `index.index_scores`. One page of 64 keys is one product [64 keys, D] x [D, heads]; a program walks over
consecutive pages of one sequence with its query in shared memory, and the next two pages on their way. A thread's 16
contiguous bytes are its part of the keys' fragment, which permutes the columns within 4 threads' bytes; the query is
permuted alike once.
fp8 keys become fp16 by one instruction a pair, exactly and with NaN kept (bf16 would cost a detour through fp32). The
query becomes fp16 too, each head times a power of two that brings its largest element to 2^14..2^15 and that its
weight takes back: elements down to 2^-31 of the largest stay exact, smaller ones round by at most 2^-39 of it.
Live when: the GPU is sm_90, queries are bf16, one per sequence, and D is 64 or 128. FP8_KEYS: `_head_factor` and the
loads of key scales run; otherwise keys and query stay bf16.
Time: the floor is the bytes, as in `benchmarks/kernels/index.py`: 470 cycles of a multiprocessor's share of memory for
a page in fp8, 900 in bf16. Beside them a page takes 128 cycles of tensor core and about 240 of instruction issue.
"""

# B sequences, S keys of one page, H index heads, D index head dim.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from kernels.index_page_ref import PAGE_SIZE, PageLayout
from kernels.launch import launch

# One word to four fp16, or to two bf16.
_FROM_FP8 = gl.constexpr("""
{
.reg .b16 low, high;
.reg .b32 a, b;
mov.b32 {low, high}, $4;
cvt.rn.f16x2.e4m3x2 a, low;
cvt.rn.f16x2.e4m3x2 b, high;
mov.b32 {$0, $1}, a;
mov.b32 {$2, $3}, b;
}
""")
_FROM_BF16 = gl.constexpr("mov.b32 {$0, $1}, $2;")

# Three programs a multiprocessor hide each other's products and sums; each has two pages on their way.
PROGRAMS_EACH, MAX_REGISTERS = 3, 168
MAX_HEADS = 64


def _metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What a profiler is told: every key read once, every score written; two flops a multiply-add."""
    keys = args["scores_BS"].numel()
    key_bytes = args["D"] + 4 if args["FP8_KEYS"] else 2 * args["D"]
    return {
        "name": f"index_scores_hopper_{'fp8' if args['FP8_KEYS'] else 'bf16'}",
        "bytes": keys * (key_bytes + 4),
        "flops": keys * args["H"] * (2 * args["D"] + 3),
    }


@gluon.jit
def _fragment(x_SD, D: gl.constexpr, VECTOR: gl.constexpr):  # type: ignore[no-untyped-def]
    """Columns in the order of wgmma's fragments: of 4 threads' vectors, thread t holds columns 8j + 2t, 8j + 2t + 1."""
    ROWS: gl.constexpr = x_SD.shape[0]
    x = x_SD.reshape([ROWS, D // (4 * VECTOR), 4, VECTOR // 2, 2])  # row, chunk, thread, pair, element
    return x.permute([0, 1, 3, 2, 4]).reshape([ROWS, D])


@gluon.jit
def _decode(word_SW, FP8_KEYS: gl.constexpr):  # type: ignore[no-untyped-def]
    """The columns of int32 words, in their order: fp16 [S, 4 W] of e4m3 or bf16 [S, 2 W]."""
    if FP8_KEYS:
        a, b, c, d = gl.inline_asm_elementwise(
            _FROM_FP8, "=h,=h,=h,=h,r", [word_SW], dtype=(gl.float16,) * 4, is_pure=True, pack=1
        )
        x = gl.join(gl.join(a, c), gl.join(b, d))
        x = x.reshape([word_SW.shape[0], word_SW.shape[1] * 4])
    else:
        a, b = gl.inline_asm_elementwise(
            _FROM_BF16, "=h,=h,r", [word_SW], dtype=(gl.bfloat16,) * 2, is_pure=True, pack=1
        )
        x = gl.join(a, b).reshape([word_SW.shape[0], word_SW.shape[1] * 2])
    return x


@gluon.jit
def _head_factor(q_HD):  # type: ignore[no-untyped-def]
    """A power of two for each head of fp32 `q_HD`, and its inverse."""
    exponent_H = (gl.max(gl.abs(q_HD), axis=1).to(gl.int32, bitcast=True) >> 23) & 255
    exponent_H = gl.maximum(exponent_H, 15)  # below, the inverse would be no normal number
    factor_H = ((268 - exponent_H) << 23).to(gl.float32, bitcast=True)
    inverse_H = ((exponent_H - 14) << 23).to(gl.float32, bitcast=True)
    return factor_H, inverse_H


# These change from step to step of a decode; a compilation for each kind of value would stall it.
@gluon.jit(launch_metadata=_metadata, do_not_specialize=["num_keys", "table_stride", "pages_each"])
def _score_pages(  # type: ignore[no-untyped-def]
    q_BHD,
    pages,
    block_table_BP,
    weights_BH,
    scores_BS,
    scale,
    num_keys,
    table_stride,
    page_stride,
    pages_each,
    H: gl.constexpr,
    D: gl.constexpr,
    VALUE_BASE: gl.constexpr,
    VALUE_STRIDE: gl.constexpr,
    SCALE_BASE: gl.constexpr,
    SCALE_STRIDE: gl.constexpr,
    FP8_KEYS: gl.constexpr,
    PAGE: gl.constexpr,
    BLOCK_H: gl.constexpr,
):
    VECTOR: gl.constexpr = 16 if FP8_KEYS else 8
    WORDS: gl.constexpr = D // 4 if FP8_KEYS else D // 2
    KEYS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    QUERY: gl.constexpr = gl.BlockedLayout([1, 8], [32 // (D // 8), D // 8], [4, 1], [1, 0])
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_H, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, MMA)
    HEAD: gl.constexpr = gl.SliceLayout(0, MMA)
    gl.static_assert(PAGE == 64)

    sequence = gl.program_id(1)
    first = gl.program_id(0) * pages_each
    last = gl.minimum(first + pages_each, (num_keys + PAGE - 1) // PAGE) - 1
    table = block_table_BP + sequence.to(gl.int64) * table_stride

    # Row 32 r + 8 w + g of the load is row 16 w + 8 r + g of the product: warp w, lane group g.
    row_S = gl.arange(0, PAGE, layout=gl.SliceLayout(1, KEYS))
    row_S = ((row_S & 24) << 1) | ((row_S & 32) >> 2) | (row_S & 7)
    column_W = gl.arange(0, WORDS, layout=gl.SliceLayout(0, KEYS))
    value_ptr = pages + (VALUE_BASE + row_S * VALUE_STRIDE)[:, None] + column_W[None, :]
    place_S = gl.arange(0, PAGE, layout=ROW)
    scale_ptr = pages.to(gl.pointer_type(gl.float32), bitcast=True) + SCALE_BASE + place_S * SCALE_STRIDE

    page_0 = gl.load(table + first).to(gl.int64) * page_stride
    page_1 = gl.load(table + gl.minimum(first + 1, last)).to(gl.int64) * page_stride
    word_SW = gl.load(value_ptr + page_0)
    next_word_SW = gl.load(value_ptr + page_1)
    if FP8_KEYS:
        key_scale_S = gl.load(scale_ptr + page_0)
        next_key_scale_S = gl.load(scale_ptr + page_1)
    page_2 = gl.load(table + gl.minimum(first + 2, last))

    h_H = gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, QUERY))
    d_D = gl.arange(0, D, layout=gl.SliceLayout(0, QUERY))
    q_ptr = q_BHD + sequence.to(gl.int64) * (H * D) + (h_H * D)[:, None] + d_D[None, :]
    real, _ = gl.broadcast((h_H < H)[:, None], q_ptr)
    q_HD = gl.load(q_ptr, mask=real, other=0.0)
    head_H = gl.arange(0, BLOCK_H, layout=HEAD)
    weight_H = gl.load(weights_BH + sequence.to(gl.int64) * H + head_H, mask=head_H < H, other=0.0).to(gl.float32)
    if FP8_KEYS:
        q_HD = q_HD.to(gl.float32)
        factor_H, inverse_H = _head_factor(q_HD)
        q_HD = (q_HD * factor_H[:, None]).to(gl.float16)
        weight_H = weight_H * gl.convert_layout(inverse_H, HEAD)
    OPERAND: gl.constexpr = q_HD.dtype
    q_shared = gl.allocate_shared_memory(
        OPERAND, [BLOCK_H, D], gl.NVMMASharedLayout(128, 16, 2), _fragment(q_HD, D, VECTOR)
    )
    fence_async_shared()

    zero = gl.zeros([PAGE, BLOCK_H], gl.float32, MMA)
    for number in range(first, last + 1):
        if FP8_KEYS:
            row_factor_S = key_scale_S * scale
            key_scale_S = next_key_scale_S
            next_key_scale_S = gl.load(scale_ptr + page_2.to(gl.int64) * page_stride)
        key_SD = _fragment(_decode(word_SW, FP8_KEYS), D, VECTOR)
        key_SD = key_SD.reshape([2, 4, 8, D]).permute([1, 0, 2, 3]).reshape([PAGE, D])
        key_SD = gl.convert_layout(key_SD, A_LAYOUT, assert_trivial=True)
        word_SW = next_word_SW
        next_word_SW = gl.load(value_ptr + page_2.to(gl.int64) * page_stride)
        page_2 = gl.load(table + gl.minimum(number + 3, last))
        dots_SH = warpgroup_mma(key_SD, q_shared.permute([1, 0]), zero, use_acc=False, is_async=True)
        dots_SH = warpgroup_mma_wait(0, deps=[dots_SH])
        if FP8_KEYS:
            dots_SH = dots_SH * row_factor_S[:, None]
        else:
            dots_SH = dots_SH * scale
        # NaN must pass.
        dots_SH = gl.maximum(dots_SH, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if H < BLOCK_H:
            # A head that does not exist must not turn an infinite scale into NaN.
            dots_SH = gl.where((head_H < H)[None, :], dots_SH, 0.0)
        score_S = gl.sum(dots_SH * weight_H[None, :], axis=1)
        score_S = gl.where(score_S != score_S, -1e20, score_S)
        score_S = gl.where(score_S == float("inf"), 1e20, score_S)
        score_S = gl.where(score_S == float("-inf"), -1e20, score_S)
        key_S = number * PAGE + place_S
        gl.store(scores_BS + sequence.to(gl.int64) * num_keys + key_S, score_S, mask=key_S < num_keys)


def fits(q_BTHD: Tensor, pages: Tensor, layout: PageLayout) -> bool:
    """Whether this kernel can score these queries and pages; what lies in a page must lie on whole words."""
    _, num_queries, num_heads, dim = q_BTHD.shape
    places = (layout.value_base, layout.value_stride, layout.scale_base, layout.scale_stride)
    return (
        torch.cuda.get_device_capability(q_BTHD.device) == (9, 0)
        and q_BTHD.dtype == torch.bfloat16
        and num_queries == 1
        and num_heads <= MAX_HEADS
        and dim in (64, 128)
        and (pages.dtype != torch.uint8 or all(place % 4 == 0 for place in places))
        and pages.stride(0) * pages.itemsize % 4 == 0
        and pages.data_ptr() % 4 == 0
    )


def score_pages(
    q_BTHD: Tensor,
    pages: Tensor,
    block_table_BP: Tensor,
    weights_BTH: Tensor,
    scores_BTS: Tensor,
    scale: float,
    layout: PageLayout,
) -> None:
    """Write the index scores of operands that `index.index_scores` has checked and that `fits` here."""
    batch, _, num_heads, dim = q_BTHD.shape
    fp8 = pages.dtype == torch.uint8
    num_keys = scores_BTS.shape[-1]
    num_pages = triton.cdiv(num_keys, PAGE_SIZE)
    programs = PROGRAMS_EACH * torch.cuda.get_device_properties(q_BTHD.device).multi_processor_count
    pages_each = triton.cdiv(num_pages, max(1, programs // batch))
    launch(_score_pages, (triton.cdiv(num_pages, pages_each), batch))(
        q_BTHD.contiguous(),
        pages.view(torch.int32),
        block_table_BP.contiguous(),
        weights_BTH.contiguous(),
        scores_BTS,
        scale,
        num_keys,
        block_table_BP.shape[1],
        pages.stride(0) * pages.itemsize // 4,
        pages_each,
        H=num_heads,
        D=dim,
        VALUE_BASE=layout.value_base // 4 if fp8 else 0,
        VALUE_STRIDE=layout.value_stride // 4 if fp8 else dim // 2,
        SCALE_BASE=layout.scale_base // 4,
        SCALE_STRIDE=layout.scale_stride // 4,
        FP8_KEYS=fp8,
        PAGE=PAGE_SIZE,
        BLOCK_H=max(16, triton.next_power_of_2(num_heads)),
        num_warps=4,
        maxnreg=MAX_REGISTERS,
    )
