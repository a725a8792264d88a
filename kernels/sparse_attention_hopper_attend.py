"""Attends to candidates in shared memory for `sparse_attention_hopper`: two kinds of its warps.

Contract: `_softmax`, four warps, multiplies the keys of a block by the query and leaves in shared memory the block's
probabilities against the maximum so far, rounded to the keys' type, and what the sums before it shrink by.
`_accumulate`, eight warps, brings the query, multiplies probabilities by the keys into 64 by 512 fp32 sums in its
registers, and writes the output. Barriers: `asked`, the query lies in shared memory; `full`, a stage's keys do;
`ready`, its probabilities; `empty`, its product is done, packed by halves of its candidates; `ended`, what the sums are
to be multiplied by is known. That a stage's probabilities may be written needs no barrier, as `full` of a stage comes
after its last `empty`; packed there is room for those of one stage only, so they wait for the product before them.
Live when: always. PACKED: keys are fp16, and so becomes the query, each head times a power of two that brings its
largest element to 2^14..2^15: elements down to 2^-31 of the largest stay exact; its first half stays in registers of
`_softmax`, which leaves room in shared memory for keys on their way. WHOLE, ROTATE: as in
`sparse_attention_part`; a whole output in bf16 goes through shared memory, which writes full lines.
"""

# H heads, D head dim, N candidates of a block, P rotated pairs, G groups of 128 channels.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention_cache_ref import ROPE_CHANNELS
from kernels.sparse_attention_hopper_gather import BLOCK_N, DIM, HALVES, STAGES

HEADS = 64
H = gl.constexpr(HEADS)
D = gl.constexpr(DIM)
N = gl.constexpr(BLOCK_N)
PAIRS = gl.constexpr(ROPE_CHANNELS // 2)
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def _softmax(  # type: ignore[no-untyped-def]
    q_HD,
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
    sinks_H,
    lse_H,
    num_blocks,
    PACKED: gl.constexpr,
    WHOLE: gl.constexpr,
):
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    Q: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, MMA)
    max_H = gl.full([H], float("-inf"), gl.float32, ROW)
    sum_H = gl.zeros([H], gl.float32, ROW)
    zero = gl.zeros([H, N], gl.float32, MMA)
    if PACKED:
        head_H = gl.arange(0, H, layout=gl.SliceLayout(1, Q))
        d_D = gl.arange(0, D // 2, layout=gl.SliceLayout(0, Q))
        q = gl.load(q_HD + head_H[:, None] * D + d_D[None, :])
    mbarrier.wait(asked, 0)
    # What the query's heads were multiplied by is taken back here.
    scale_H = factor.load(ROW) * scale
    if PACKED:
        q = (q.to(gl.float32) * (1.0 / factor.load(gl.SliceLayout(1, Q)))[:, None]).to(gl.float16)
    for i in range(num_blocks):
        stage = i % STAGES
        mbarrier.wait(full.index(stage), i // STAGES & 1)
        fence_async_shared()
        k_ND = k_shared.index(stage)
        if PACKED:
            first_DN = k_ND.slice(0, D // 2, dim=1).permute([1, 0])
            second_DN = k_ND.slice(D // 2, D // 2, dim=1).permute([1, 0])
            logit_HN = warpgroup_mma(q, first_DN, zero, use_acc=False, is_async=True)
            logit_HN = warpgroup_mma(q_shared, second_DN, logit_HN, is_async=True)
        else:
            logit_HN = warpgroup_mma(q_shared, k_ND.permute([1, 0]), zero, use_acc=False, is_async=True)
        bias_N = bias.index(stage).load(gl.SliceLayout(0, MMA))
        logit_HN = warpgroup_mma_wait(0, deps=[logit_HN])
        logit_HN = logit_HN * scale_H[:, None] + bias_N[None, :]
        new_max_H = gl.maximum(max_H, gl.max(logit_HN, axis=1))
        # While no candidate is there the maximum is -inf, and subtracting it from -inf would give NaN.
        base_H = gl.where(new_max_H == float("-inf"), 0.0, new_max_H)
        weight_HN = gl.exp2(logit_HN - base_H[:, None])
        shrink_H = gl.exp2(max_H - base_H)
        if p_shared.shape[0] == 1:
            # The product of the block before is done, which the keys of the block after this wait for too.
            mbarrier.wait(empty.index((i + 1) % STAGES * HALVES + HALVES - 1), ((i + 1) // STAGES & 1) ^ 1)
        p_shared.index(i % p_shared.shape[0]).store(weight_HN.to(p_shared.dtype))
        shrink.index(stage).store(shrink_H)
        fence_async_shared()
        mbarrier.arrive(ready.index(stage), count=1)
        sum_H = sum_H * shrink_H + gl.sum(weight_HN, axis=1)
        max_H = new_max_H
    h_H = gl.arange(0, H, layout=ROW)
    if WHOLE:
        sink_H = gl.load(sinks_H + h_H) * 1.4426950408889634
        # Against the larger of the two, neither power can overflow.
        top_H = gl.maximum(max_H, sink_H)
        shrink_H = gl.exp2(max_H - top_H)
        factor_H = shrink_H / (sum_H * shrink_H + gl.exp2(sink_H - top_H))
    else:
        # Of a part without a candidate the sum is 0; its output is 0 and the maximum, so the log-sum-exp, -inf.
        sum_H = gl.where(sum_H == 0.0, 1.0, sum_H)
        factor_H = 1.0 / sum_H
        gl.store(lse_H + h_H, max_H + gl.log2(sum_H))
    factor.store(factor_H)
    mbarrier.arrive(ended, count=1)


@gluon.jit
def _ask(q_HD, q_shared, factor, asked, PACKED: gl.constexpr):  # type: ignore[no-untyped-def]
    """The query to shared memory in the keys' type, and what undoes its scaling."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    h_H = gl.arange(0, H, layout=gl.SliceLayout(1, LOAD))
    d_D = gl.arange(0, D, layout=gl.SliceLayout(0, LOAD))
    q = gl.load(q_HD + h_H[:, None] * D + d_D[None, :])
    if PACKED:
        exponent_H = (gl.max(gl.abs(q.to(gl.float32)), axis=1).to(gl.int32, bitcast=True) >> 23) & 255
        exponent_H = gl.maximum(exponent_H, 15)  # below, the inverse would be no normal number
        factor_H = ((268 - exponent_H) << 23).to(gl.float32, bitcast=True)
        inverse_H = ((exponent_H - 14) << 23).to(gl.float32, bitcast=True)
        # The first half of the channels is with the warps that multiply by it.
        q = (q.to(gl.float32) * factor_H[:, None]).to(gl.float16)
        q_shared.store(gl.split(q.reshape([H, 2, D // 2]).permute([0, 2, 1]))[1])
    else:
        inverse_H = gl.full([H], 1.0, gl.float32, gl.SliceLayout(1, LOAD))
        q_shared.store(q)
    factor.store(inverse_H)
    fence_async_shared()
    mbarrier.arrive(asked, count=1)


@gluon.jit
def _halves(x, DIMENSION: gl.constexpr):  # type: ignore[no-untyped-def]
    """The first and the second half of the last axis, each [..., DIMENSION]; that needs no exchange between threads."""
    rank: gl.constexpr = len(x.shape)
    if rank == 2:
        return gl.split(x.reshape([x.shape[0], 2, DIMENSION]).permute([0, 2, 1]))
    else:
        return gl.split(x.reshape([x.shape[0], x.shape[1], 2, DIMENSION]).permute([0, 1, 3, 2]))


@gluon.jit
def _rejoined(a, b):  # type: ignore[no-untyped-def]
    """What `_halves` took apart."""
    rank: gl.constexpr = len(a.shape)
    b = gl.convert_layout(b, a.type.layout, assert_trivial=True)
    if rank == 2:
        return gl.join(a, b).permute([0, 2, 1]).reshape([a.shape[0], 2 * a.shape[1]])
    else:
        return gl.join(a, b).permute([0, 1, 3, 2]).reshape([a.shape[0], a.shape[1], 2 * a.shape[2]])


@gluon.jit
def _keep_turns(cos_F, sin_F, turns, F: gl.constexpr):  # type: ignore[no-untyped-def]
    """Cosines and sines [2, P] to shared memory, for the pairs of channels 320 to 383, which stay (1 and 0), and 448 to
    511: registers are short until the sums are complete."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [8, 1], [1, 0])
    group_G = gl.arange(0, 2, layout=gl.SliceLayout(1, LAYOUT))
    pair_P = gl.arange(0, PAIRS, layout=gl.SliceLayout(0, LAYOUT)) - (PAIRS - F)
    turns_GP = (group_G == 1)[:, None] & (pair_P >= 0)[None, :]
    place = (group_G * 0)[:, None] + pair_P[None, :]
    turns.index(0).store(gl.load(cos_F + place, mask=turns_GP, other=1.0))
    turns.index(1).store(gl.load(sin_F + place, mask=turns_GP, other=0.0))


@gluon.jit
def _rotated_back(acc_HD, turns):  # type: ignore[no-untyped-def]
    """The last channels in pairs, rotated by minus the angle of each pair."""
    low, high = _halves(acc_HD, D // 2)
    middle, last = _halves(high.reshape([H, 2, D // 4]), D // 8)
    even, odd = gl.split(last.reshape([H, 2, PAIRS, 2]))
    cos = turns.index(0).load(gl.SliceLayout(0, even.type.layout))[None, :, :]
    sin = turns.index(1).load(gl.SliceLayout(0, even.type.layout))[None, :, :]
    last = gl.join(even * cos + odd * sin, odd * cos - even * sin).reshape([H, 2, D // 8])
    turned = _rejoined(low, _rejoined(middle, last).reshape([H, D // 2]))
    return gl.convert_layout(turned, acc_HD.type.layout, assert_trivial=True)


@gluon.jit
def _accumulate(  # type: ignore[no-untyped-def]
    q_HD,
    q_shared,
    k_shared,
    p_shared,
    shrink,
    factor,
    ready,
    empty,
    ended,
    asked,
    cos_F,
    sin_F,
    turns,
    out_HD,
    num_blocks,
    F: gl.constexpr,
    PACKED: gl.constexpr,
    WHOLE: gl.constexpr,
    ROTATE: gl.constexpr,
):
    # A warp group has channels 0 to 127 and 256 to 383, the other one the rest.
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 128, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, MMA)
    COUNT: gl.constexpr = HALVES if PACKED else 1
    PIECE: gl.constexpr = N // COUNT
    _ask(q_HD, q_shared, factor, asked, PACKED)
    if ROTATE:
        _keep_turns(cos_F, sin_F, turns, F)
    acc_HD = gl.zeros([H, D], gl.float32, MMA)
    for i in range(num_blocks):
        stage = i % STAGES
        mbarrier.wait(ready.index(stage), i // STAGES & 1)
        acc_HD = acc_HD * shrink.index(stage).load(ROW)[:, None]
        for piece in gl.static_range(COUNT):
            p_HN = p_shared.index(i % p_shared.shape[0]).slice(piece * PIECE, PIECE, dim=1)
            k_ND = k_shared.index(stage).slice(piece * PIECE, PIECE, dim=0)
            acc_HD = warpgroup_mma(p_HN, k_ND, acc_HD, is_async=True)
        for piece in gl.static_range(COUNT):
            acc_HD = warpgroup_mma_wait(COUNT - 1 - piece, deps=[acc_HD])
            mbarrier.arrive(empty.index(stage * COUNT + piece), count=1)
    mbarrier.wait(ended, 0)
    acc_HD = acc_HD * factor.load(ROW)[:, None]
    if ROTATE:
        acc_HD = _rotated_back(acc_HD, turns)
    if out_HD.dtype.element_ty == gl.bfloat16:
        # Every product is done, so the first stage is free.
        OUT: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
        out_shared = k_shared.index(0)._reinterpret(gl.bfloat16, [H, D], TILE)
        out_shared.store(acc_HD.to(gl.bfloat16))
        h_H = gl.arange(0, H, layout=gl.SliceLayout(1, OUT))
        d_D = gl.arange(0, D, layout=gl.SliceLayout(0, OUT))
        gl.store(out_HD + h_H[:, None] * D + d_D[None, :], out_shared.load(OUT))
    else:
        h_H = gl.arange(0, H, layout=ROW)
        d_D = gl.arange(0, D, layout=gl.SliceLayout(0, MMA))
        gl.store(out_HD + h_H[:, None] * D + d_D[None, :], acc_HD)
