"""The GEMM of the fused NVFP4 experts for Hopper, in Gluon: 4-bit weights go from global memory to wgmma's registers.

Contract: out^T[rows, tokens] = W[rows, K] x^T, weights in the layout of `nvfp4_layout.repack`, activations bf16 with
their columns permuted to match. Codes and block scales become bf16 exactly (one multiply per pair), sums are fp32, the
global scale multiplies in the fp32 epilogue.
Live when: the GPU is sm_90. GATE_UP: rows are gathered from the tokens and the epilogue is the clamped SwiGLU;
otherwise rows lie in sorted order and the epilogue scatters them to their flat row. ONE_TOKEN: no sort ran, tile i is
pick i. OVERLAP: launched with programmatic dependent launch; what it reads before `gdc_wait` was complete before the
launch ahead of it began. PREFETCH_CHUNK: the next 256 columns of words are on their way, otherwise the next 64.
TAIL_T: a second, narrower product for tiles of few rows; 0 for none.
"""

# T tokens, K picks per token, N routed rows = T * K; C columns (the GEMM's inner axis).

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.experts_launch import gemm_launch

# One word, eight codes: three of the four placements need one mask, the last is gathered from what they leave.
# $9 and $10 are the scale of row half 0 and 1, twice each as bf16.
_DECODE = gl.constexpr("""
{
.reg .b32 a, b, c, d, e;
and.b32 a, $8, 0x81C081C0;
shl.b32 b, $8, 3;
and.b32 b, b, 0x81C081C0;
shl.b32 c, $8, 6;
and.b32 c, c, 0x81C081C0;
shl.b32 d, $8, 1;
and.b32 d, d, 0x80008000;
shr.b32 e, $8, 3;
and.b32 e, e, 0x01800180;
or.b32 d, d, e;
shr.b32 e, $8, 7;
and.b32 e, e, 0x00400040;
or.b32 d, d, e;
mul.rn.bf16x2 a, a, $9;
mul.rn.bf16x2 b, b, $10;
mul.rn.bf16x2 c, c, $9;
mul.rn.bf16x2 d, d, $10;
mov.b32 {$0, $1}, a;
mov.b32 {$2, $3}, b;
mov.b32 {$4, $5}, c;
mov.b32 {$6, $7}, d;
}
""")


@gluon.jit
def _decode(words, scale, SHIFT: gl.constexpr, NUM_WARPS: gl.constexpr, A_LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """One tile of words int32 [threads, 4] to the bf16 operand [16 * warps, 64], all in registers."""
    low = ((scale >> SHIFT) & 255) * 0x00100010 + 0x70007000
    high = ((scale >> (SHIFT + 8)) & 255) * 0x00100010 + 0x70007000
    low, _ = gl.broadcast(gl.expand_dims(low, 1), words)
    high, _ = gl.broadcast(gl.expand_dims(high, 1), words)
    a0, a1, b0, b1, c0, c1, d0, d1 = gl.inline_asm_elementwise(
        _DECODE,
        "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r",
        [words, low, high],
        dtype=(gl.bfloat16,) * 8,
        is_pure=True,
        pack=1,
    )
    first = gl.join(gl.join(a0, a1), gl.join(b0, b1))
    second = gl.join(gl.join(c0, c1), gl.join(d0, d1))
    pairs = gl.join(first, second)  # thread j c h d
    pairs = pairs.reshape([NUM_WARPS, 8, 4, 4, 2, 2, 2])  # warp g t j c h d
    pairs = pairs.permute([0, 5, 1, 3, 6, 2, 4])  # warp h g | j d t c
    return gl.convert_layout(pairs.reshape([NUM_WARPS * 16, 64]), A_LAYOUT, assert_trivial=True)


@gluon.jit
def _copy_x(x_shared, x_ptr, real, step, num_steps, X_COLUMNS: gl.constexpr, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Start the copy of one step's activations; beyond the last step the last is copied again, to keep the count."""
    async_copy.async_copy_global_to_shared(
        x_shared.index(step % STAGES), x_ptr + gl.minimum(step, num_steps - 1) * X_COLUMNS, mask=real
    )
    async_copy.commit_group()


@gluon.jit
def _load_chunk(word_ptr):  # type: ignore[no-untyped-def]
    """The words of 256 columns, 64 at a time."""
    return gl.load(word_ptr), gl.load(word_ptr + 512), gl.load(word_ptr + 1024), gl.load(word_ptr + 1536)


@gluon.jit
def _tile(  # type: ignore[no-untyped-def]
    x,
    words,
    scales,
    global_scale_E,
    out,
    sorted_rows,
    expert,
    start,
    end,
    block,
    num_row_tiles,
    num_chunks,
    out_stride,
    out_rows,
    swiglu_limit,
    TOPK: gl.constexpr,
    GATE_UP: gl.constexpr,
    ONE_TOKEN: gl.constexpr,
    HAS_LIMIT: gl.constexpr,
    BLOCK_T: gl.constexpr,
    NUM_WARPS: gl.constexpr,
    X_COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    PREFETCH_CHUNK: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """One product of 16 * NUM_WARPS weight rows and up to BLOCK_T routed rows, from first load to last store."""
    ROWS: gl.constexpr = NUM_WARPS * 16
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, BLOCK_T, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    WORD: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [NUM_WARPS, 1], [1, 0])
    SCALE: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [NUM_WARPS, 1], [1, 0])
    # Threads along the columns of the activation tile, then along tokens: 16 bytes a thread either way.
    X: gl.constexpr = gl.BlockedLayout([1, 8], [256 // X_COLUMNS, X_COLUMNS // 8], [NUM_WARPS, 1], [1, 0])
    X_SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    CHUNK: gl.constexpr = 256

    place_T = start + gl.arange(0, BLOCK_T, layout=gl.SliceLayout(1, X))
    # Places beyond the tile's end are not copied: their columns hold anything and are not stored.
    real_T = place_T < end
    row_T = gl.minimum(place_T, end - 1)
    if GATE_UP:
        if ONE_TOKEN:
            row_T = row_T * 0
        else:
            row_T = gl.load(sorted_rows + row_T) // TOPK
    column = gl.arange(0, X_COLUMNS, layout=gl.SliceLayout(0, X))
    x_ptr = x + row_T.to(gl.int64)[:, None] * (num_chunks * CHUNK) + column[None, :]
    real, _ = gl.broadcast(real_T[:, None], x_ptr)

    x_shared = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_T, X_COLUMNS], X_SHARED)
    thread = gl.arange(0, NUM_WARPS * 32, layout=gl.SliceLayout(1, WORD))
    group = thread // 128
    row_tile = (expert * num_row_tiles + block).to(gl.int64) * (NUM_WARPS // 4)
    word_T = group * (num_chunks * 2048) + thread % 128 * 4
    word_ptr = words + row_tile * num_chunks * 2048 + word_T[:, None]
    word_ptr = word_ptr + gl.arange(0, 4, layout=gl.SliceLayout(0, WORD))[None, :]
    s_thread = gl.arange(0, NUM_WARPS * 32, layout=gl.SliceLayout(1, SCALE))
    scale_T = s_thread // 128 * (num_chunks * 256) + s_thread % 128 * 2
    scale_ptr = scales + row_tile * num_chunks * 256 + scale_T[:, None]
    scale_ptr = scale_ptr + gl.arange(0, 2, layout=gl.SliceLayout(0, SCALE))[None, :]

    # Weights depend on no other launch: they are on their way before the launch that writes the activations has ended.
    if PREFETCH_CHUNK:
        w_4 = _load_chunk(word_ptr)
    else:
        w = gl.load(word_ptr)
    scale = gl.load(scale_ptr)
    if OVERLAP:
        gdc_wait()
    num_steps = num_chunks * (CHUNK // X_COLUMNS)
    for i in gl.static_range(STAGES - 1):
        _copy_x(x_shared, x_ptr, real, i, num_steps, X_COLUMNS, STAGES)
    if OVERLAP:
        gdc_launch_dependents()
    acc = gl.zeros([ROWS, BLOCK_T], gl.float32, MMA)
    for chunk in range(num_chunks):
        # The next weights are on their way while these are decoded.
        next_chunk = gl.minimum(chunk + 1, num_chunks - 1)
        next_scale = gl.load(scale_ptr + next_chunk * 256)
        if PREFETCH_CHUNK:
            next_w_4 = _load_chunk(word_ptr + next_chunk * 2048)
        scale_2 = gl.split(scale)
        for sub in gl.static_range(4):
            if PREFETCH_CHUNK:
                w = w_4[sub]
            else:
                next_w = gl.load(word_ptr + gl.minimum(chunk * 4 + sub + 1, num_chunks * 4 - 1) * 512)
            scale_of_sub = gl.convert_layout(scale_2[sub // 2], gl.SliceLayout(1, WORD), assert_trivial=True)
            a = _decode(w, scale_of_sub, sub % 2 * 16, NUM_WARPS, A_LAYOUT)
            if not PREFETCH_CHUNK:
                w = next_w
            step = chunk * (CHUNK // X_COLUMNS) + sub * 64 // X_COLUMNS
            if sub * 64 % X_COLUMNS == 0:
                async_copy.wait_group(STAGES - 2)
                fence_async_shared()
            x_tile = x_shared.index(step % STAGES).slice(sub * 64 % X_COLUMNS, 64, dim=1)
            acc = warpgroup_mma(a, x_tile.permute([1, 0]), acc, is_async=True)
            if (sub * 64 % X_COLUMNS == 0) | (sub == 3) | (not PREFETCH_CHUNK):
                acc = warpgroup_mma_wait(1, deps=[acc])
            if sub * 64 % X_COLUMNS == 0:
                # Every product of the step before this one is done, so its stage is free for a copy.
                _copy_x(x_shared, x_ptr, real, step + STAGES - 1, num_steps, X_COLUMNS, STAGES)
        if PREFETCH_CHUNK:
            w_4 = next_w_4
        scale = next_scale
    acc = warpgroup_mma_wait(0, deps=[acc])
    async_copy.wait_group(0)

    # 2^9 undoes what the exact scale encoding takes away.
    acc = acc * (gl.load(global_scale_E + expert) * 512.0)
    if GATE_UP:
        gate, up = gl.split(acc.reshape([NUM_WARPS, 2, 8, BLOCK_T]).permute([0, 2, 3, 1]))
        if HAS_LIMIT:
            # Without being told so, a minimum of NaN and the limit is the limit.
            gate = gl.minimum(gate, swiglu_limit, propagate_nan=tl.PropagateNan.ALL)
            up = gl.maximum(up, -swiglu_limit, propagate_nan=tl.PropagateNan.ALL)
            up = gl.minimum(up, swiglu_limit, propagate_nan=tl.PropagateNan.ALL)
        value = (gate / (1.0 + gl.exp(-gate)) * up).reshape([ROWS // 2, BLOCK_T])
    else:
        value = acc
    OUT_ROWS: gl.constexpr = value.shape[0]
    # Through shared memory to rows that are contiguous in a thread.
    OUT: gl.constexpr = gl.BlockedLayout([OUT_ROWS // 16, 1], [16, 2], [1, NUM_WARPS], [0, 1])
    result = gl.convert_layout(value.to(gl.bfloat16), OUT)
    place_T = start + gl.arange(0, BLOCK_T, layout=gl.SliceLayout(0, OUT))
    r = block * OUT_ROWS + gl.arange(0, OUT_ROWS, layout=gl.SliceLayout(1, OUT))
    if GATE_UP or ONE_TOKEN:
        target = place_T
    else:
        target = gl.load(sorted_rows + place_T, mask=place_T < end, other=0)
    real = (r < out_rows)[:, None] & (place_T < end)[None, :]
    gl.store(out + target.to(gl.int64)[None, :] * out_stride + r[:, None], result, mask=real)


def _metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    rows, columns = args["words"].shape[1] * 64, args["words"].shape[2] * 256
    return gemm_launch("nvfp4_experts_hopper", args, ("words", "scales"), rows=rows, columns=columns)


@gluon.jit(launch_metadata=_metadata)
def expert_gemm(  # type: ignore[no-untyped-def]
    x,
    words,
    scales,
    global_scale_E,
    out,
    topk_ids,
    sorted_rows,
    tile_expert,
    tile_start,
    tile_end,
    num_row_tiles,
    num_chunks,
    out_stride,
    out_rows,
    swiglu_limit,
    TOPK: gl.constexpr,
    E: gl.constexpr,
    GATE_UP: gl.constexpr,
    ONE_TOKEN: gl.constexpr,
    HAS_LIMIT: gl.constexpr,
    BLOCK_T: gl.constexpr,
    TAIL_T: gl.constexpr,
    NUM_WARPS: gl.constexpr,
    X_COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    PREFETCH_CHUNK: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    program = gl.program_id(0)
    tile = program // num_row_tiles
    block = program % num_row_tiles
    if ONE_TOKEN:
        expert = gl.load(topk_ids + tile).to(gl.int32)
        start = tile
        end = tile + 1
    else:
        expert = gl.load(tile_expert + tile)
        start = gl.load(tile_start + tile)
        end = gl.load(tile_end + tile)
    if (expert >= 0) & (expert < E):
        operands = (x, words, scales, global_scale_E, out, sorted_rows)
        place = (expert, start, end, block, num_row_tiles, num_chunks, out_stride, out_rows, swiglu_limit)
        # A tile that an expert's last few rows leave mostly empty takes a narrower product.
        if TAIL_T > 0:
            if end - start <= TAIL_T:
                _tile(
                    *operands,
                    *place,
                    TOPK,
                    GATE_UP,
                    ONE_TOKEN,
                    HAS_LIMIT,
                    TAIL_T,
                    NUM_WARPS,
                    X_COLUMNS,
                    STAGES,
                    PREFETCH_CHUNK,
                    OVERLAP,
                )
            else:
                _tile(
                    *operands,
                    *place,
                    TOPK,
                    GATE_UP,
                    ONE_TOKEN,
                    HAS_LIMIT,
                    BLOCK_T,
                    NUM_WARPS,
                    X_COLUMNS,
                    STAGES,
                    PREFETCH_CHUNK,
                    OVERLAP,
                )
        else:
            _tile(
                *operands,
                *place,
                TOPK,
                GATE_UP,
                ONE_TOKEN,
                HAS_LIMIT,
                BLOCK_T,
                NUM_WARPS,
                X_COLUMNS,
                STAGES,
                PREFETCH_CHUNK,
                OVERLAP,
            )
