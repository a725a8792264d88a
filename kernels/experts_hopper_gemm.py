"""The GEMM of the fused NVFP4 experts for Hopper, in Gluon: 4-bit weights go from global memory to wgmma's registers.

Contract: out^T[rows, tokens] = W[rows, K] x^T, weights in the layout of `nvfp4_layout.repack`, activations bf16 with
their columns permuted to match. Codes and block scales become bf16 exactly (one multiply per pair), sums are fp32, the
global scale multiplies in the fp32 epilogue. A tile has at most BLOCK_T + EXTRA_T rows.
Live when: the GPU is sm_90. GATE_UP: rows are gathered from the tokens and the epilogue is the clamped SwiGLU;
otherwise rows lie in sorted order and the epilogue scatters them to their flat row. ONE_TOKEN: no sort ran, tile i is
pick i. OVERLAP: launched with programmatic dependent launch; what it reads before `gdc_wait` was complete before the
launch ahead of it began. PREFETCH_CHUNK: the next 256 columns of words are on their way, otherwise the next 64.
TAIL_T: tiles of at most so many rows take a product of that width, 0 for none. EXTRA_T: tiles of more than BLOCK_T rows
take a second product, of that width, of the same decoded weights, 0 for none; in `_tile` it is 0 for all other tiles.
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

from kernels.experts_hopper_decode import decode, parts_of
from kernels.experts_launch import gemm_launch


@gluon.jit
def _activations(  # type: ignore[no-untyped-def]
    x,
    sorted_rows,
    start,
    end,
    num_columns,
    TOPK: gl.constexpr,
    GATE_UP: gl.constexpr,
    ONE_TOKEN: gl.constexpr,
    T: gl.constexpr,
    NUM_WARPS: gl.constexpr,
    X_COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """The activations of the T places from `start` on, as three things.

    Their stages in shared memory, bf16 [STAGES, T, X_COLUMNS]; pointers [T, X_COLUMNS] to the first columns of each;
    bool [T, X_COLUMNS], whether the place is before `end`.
    """
    # Threads along the columns of the activation tile, then along tokens: 16 bytes a thread either way.
    X: gl.constexpr = gl.BlockedLayout([1, 8], [256 // X_COLUMNS, X_COLUMNS // 8], [NUM_WARPS, 1], [1, 0])
    place_T = start + gl.arange(0, T, layout=gl.SliceLayout(1, X))
    # Places beyond the tile's end are not copied: their columns hold anything and are not stored.
    real_T = place_T < end
    row_T = gl.minimum(place_T, end - 1)
    if GATE_UP:
        if ONE_TOKEN:
            row_T = row_T * 0
        else:
            row_T = gl.load(sorted_rows + row_T) // TOPK
    column = gl.arange(0, X_COLUMNS, layout=gl.SliceLayout(0, X))
    x_ptr = x + row_T.to(gl.int64)[:, None] * num_columns + column[None, :]
    real, _ = gl.broadcast(real_T[:, None], x_ptr)
    stages = gl.allocate_shared_memory(gl.bfloat16, [STAGES, T, X_COLUMNS], gl.NVMMASharedLayout(128, 16, 2))
    return stages, x_ptr, real


@gluon.jit
def _copy(activations, step, num_steps):  # type: ignore[no-untyped-def]
    """Start the copy of one step's activations; beyond the last step the last is copied again, to keep the count."""
    stages, x_ptr, real = activations
    stage = stages.index(step % stages.shape[0])
    step_ptr = x_ptr + gl.minimum(step, num_steps - 1) * stages.shape[2]
    async_copy.async_copy_global_to_shared(stage, step_ptr, mask=real)


@gluon.jit
def _multiply(weights, activations, step, COLUMN: gl.constexpr, acc):  # type: ignore[no-untyped-def]
    """Start acc[rows, T] += weights[rows, C] x^T, x being the C columns from COLUMN on of one step's activations."""
    stages, _, _ = activations
    x_TC = stages.index(step % stages.shape[0]).slice(COLUMN, weights.shape[1], dim=1)
    return warpgroup_mma(weights, x_TC.permute([1, 0]), acc, is_async=True)


@gluon.jit
def _store(  # type: ignore[no-untyped-def]
    acc,
    out,
    sorted_rows,
    scale,
    start,
    end,
    block,
    out_stride,
    out_rows,
    swiglu_limit,
    GATE_UP: gl.constexpr,
    ONE_TOKEN: gl.constexpr,
    HAS_LIMIT: gl.constexpr,
    NUM_WARPS: gl.constexpr,
):
    """The epilogue of one product: what it leaves for the places from `start` to `end` goes to their rows of `out`."""
    T: gl.constexpr = acc.shape[1]
    acc = acc * scale
    if GATE_UP:
        gate, up = gl.split(acc.reshape([NUM_WARPS, 2, 8, T]).permute([0, 2, 3, 1]))
        if HAS_LIMIT:
            # Without being told so, a minimum of NaN and the limit is the limit.
            gate = gl.minimum(gate, swiglu_limit, propagate_nan=tl.PropagateNan.ALL)
            up = gl.maximum(up, -swiglu_limit, propagate_nan=tl.PropagateNan.ALL)
            up = gl.minimum(up, swiglu_limit, propagate_nan=tl.PropagateNan.ALL)
        value = (gate / (1.0 + gl.exp(-gate)) * up).reshape([NUM_WARPS * 8, T])
    else:
        value = acc
    OUT_ROWS: gl.constexpr = value.shape[0]
    # Through shared memory to rows that are contiguous in a thread.
    OUT: gl.constexpr = gl.BlockedLayout([OUT_ROWS // 16, 1], [16, 2], [1, NUM_WARPS], [0, 1])
    result = gl.convert_layout(value.to(gl.bfloat16), OUT)
    place_T = start + gl.arange(0, T, layout=gl.SliceLayout(0, OUT))
    r = block * OUT_ROWS + gl.arange(0, OUT_ROWS, layout=gl.SliceLayout(1, OUT))
    if GATE_UP or ONE_TOKEN:
        target = place_T
    else:
        target = gl.load(sorted_rows + place_T, mask=place_T < end, other=0)
    real = (r < out_rows)[:, None] & (place_T < end)[None, :]
    gl.store(out + target.to(gl.int64)[None, :] * out_stride + r[:, None], result, mask=real)


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
    EXTRA_T: gl.constexpr,
    NUM_WARPS: gl.constexpr,
    X_COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    PREFETCH_CHUNK: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """16 * NUM_WARPS weight rows times up to BLOCK_T + EXTRA_T routed rows, from first load to last store."""
    ROWS: gl.constexpr = NUM_WARPS * 16
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, BLOCK_T, 16])
    WORD: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [NUM_WARPS, 1], [1, 0])
    SCALE: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [NUM_WARPS, 1], [1, 0])
    CHUNK: gl.constexpr = 256
    # Beside sums of more than 128 columns, 128 registers a thread do not hold two operands of 64 columns, one that is
    # multiplied and one that is decoded meanwhile: ptxas would wait for each product.
    PARTS: gl.constexpr = 2 if BLOCK_T + EXTRA_T > 128 else 1
    PART: gl.constexpr = gl.BlockedLayout([1, 4 // PARTS], [32, 1], [NUM_WARPS, 1], [1, 0])
    PART_COLUMNS: gl.constexpr = 64 // PARTS

    rows = (x, sorted_rows, start, end, num_chunks * CHUNK)
    activations = _activations(*rows, TOPK, GATE_UP, ONE_TOKEN, BLOCK_T, NUM_WARPS, X_COLUMNS, STAGES)
    if EXTRA_T > 0:
        rows = (x, sorted_rows, start + BLOCK_T, end, num_chunks * CHUNK)
        extra_activations = _activations(*rows, TOPK, GATE_UP, ONE_TOKEN, EXTRA_T, NUM_WARPS, X_COLUMNS, STAGES)
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
        _copy(activations, i, num_steps)
        if EXTRA_T > 0:
            _copy(extra_activations, i, num_steps)
        async_copy.commit_group()
    if OVERLAP:
        gdc_launch_dependents()
    acc = gl.zeros([ROWS, BLOCK_T], gl.float32, MMA)
    if EXTRA_T > 0:
        EXTRA_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NUM_WARPS, 1], [16, EXTRA_T, 16])
        extra = gl.zeros([ROWS, EXTRA_T], gl.float32, EXTRA_MMA)
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
            scale_of_sub = gl.convert_layout(scale_2[sub // 2], gl.SliceLayout(1, PART), assert_trivial=True)
            step = chunk * (CHUNK // X_COLUMNS) + sub * 64 // X_COLUMNS
            parts = parts_of(w, PARTS, PART)
            for part in gl.static_range(PARTS):
                a = decode(parts[part], scale_of_sub, sub % 2 * 16, NUM_WARPS, gl.DotOperandLayout(0, MMA, 2))
                if (part == 0) & (sub * 64 % X_COLUMNS == 0):
                    async_copy.wait_group(STAGES - 2)
                    fence_async_shared()
                acc = _multiply(a, activations, step, sub * 64 % X_COLUMNS + part * PART_COLUMNS, acc)
                if EXTRA_T > 0:
                    a = gl.convert_layout(a, gl.DotOperandLayout(0, EXTRA_MMA, 2), assert_trivial=True)
                    extra = _multiply(a, extra_activations, step, sub * 64 % X_COLUMNS + part * PART_COLUMNS, extra)
                # What is left in flight is the products of this operand, while the next one is decoded.
                if (sub * 64 % X_COLUMNS == 0) | (sub == 3) | (not PREFETCH_CHUNK):
                    if EXTRA_T > 0:
                        acc, extra = warpgroup_mma_wait(2, deps=[acc, extra])
                    else:
                        acc = warpgroup_mma_wait(1, deps=[acc])
            if not PREFETCH_CHUNK:
                w = next_w
            if sub * 64 % X_COLUMNS == 0:
                # Every product of the step before this one is done, so its stage is free for a copy.
                _copy(activations, step + STAGES - 1, num_steps)
                if EXTRA_T > 0:
                    _copy(extra_activations, step + STAGES - 1, num_steps)
                async_copy.commit_group()
        if PREFETCH_CHUNK:
            w_4 = next_w_4
        scale = next_scale
    if EXTRA_T > 0:
        acc, extra = warpgroup_mma_wait(0, deps=[acc, extra])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    async_copy.wait_group(0)

    # 2^9 undoes what the exact scale encoding takes away.
    output_scale = gl.load(global_scale_E + expert) * 512.0
    target = (end, block, out_stride, out_rows, swiglu_limit)
    _store(acc, out, sorted_rows, output_scale, start, *target, GATE_UP, ONE_TOKEN, HAS_LIMIT, NUM_WARPS)
    if EXTRA_T > 0:
        start += BLOCK_T
        _store(extra, out, sorted_rows, output_scale, start, *target, GATE_UP, ONE_TOKEN, HAS_LIMIT, NUM_WARPS)


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
    EXTRA_T: gl.constexpr,
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
        # A tile that an expert's last few rows leave mostly empty takes a narrower product, a tile that has a few rows
        # more than one product takes a second one.
        if TAIL_T > 0 and end - start <= TAIL_T:
            _tile(
                *operands, *place, TOPK, GATE_UP, ONE_TOKEN, HAS_LIMIT, TAIL_T, 0,
                NUM_WARPS, X_COLUMNS, STAGES, PREFETCH_CHUNK, OVERLAP,
            )  # fmt: skip
        elif EXTRA_T > 0 and end - start > BLOCK_T:
            _tile(
                *operands, *place, TOPK, GATE_UP, ONE_TOKEN, HAS_LIMIT, BLOCK_T, EXTRA_T,
                NUM_WARPS, X_COLUMNS, STAGES, PREFETCH_CHUNK, OVERLAP,
            )  # fmt: skip
        else:
            _tile(
                *operands, *place, TOPK, GATE_UP, ONE_TOKEN, HAS_LIMIT, BLOCK_T, 0,
                NUM_WARPS, X_COLUMNS, STAGES, PREFETCH_CHUNK, OVERLAP,
            )  # fmt: skip
