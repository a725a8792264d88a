"""Brings blocks of candidates into shared memory for `sparse_attention_hopper`: one kind of its warps.

Contract: four warps walk over a part's blocks of 64 candidates, window rows before entry rows; block i lies in stage
i % STAGES of `k_shared`, and `bias` says which of its candidates are there: 0, or -inf. Nothing is read of a candidate
that is not there; its keys are zeros. A stage is written once `empty` says that its last block is done with; `full`
says that it is written.
Packed blocks are decoded and said to be full, and waited for, by halves.
Packed keys become fp16 exactly: e4m3 times a power of two of 2^-13 to 2^7. Rotary channels round to fp16, and beyond
65504 become infinite. Scales above 2^15 count as infinite, scales below 2^-14 as 0; the cache's writer makes neither.
Live when: `_gather` says which: bf16 rows are copied by `_gather_plain`, packed rows decoded by `_gather_packed`.
"""

# N candidates of a block or half of one, D head dim, X words.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.attention_cache_ref import GROUP, KEYS_PER_PAGE, ROPE_CHANNELS

DIM, BLOCK_N = 512, 64
D = gl.constexpr(DIM)
N = gl.constexpr(BLOCK_N)
STAGES = gl.constexpr(2)
# Of a block of packed keys: each is decoded by itself, and its place free by itself.
HALVES = gl.constexpr(2)
# Halves of a block that are on their way, or there and not yet decoded.
SLOTS = gl.constexpr(3)
ROPE = gl.constexpr(ROPE_CHANNELS)
GROUPS = gl.constexpr((DIM - ROPE_CHANNELS) // GROUP)
CHANNELS = gl.constexpr(GROUP)
GROUP_WORDS = gl.constexpr(GROUP // 4)
PAGE = gl.constexpr(KEYS_PER_PAGE)
KEY_WORDS = gl.constexpr((DIM + ROPE_CHANNELS) // 4)
# By the eight bytes that a key's scales are.
PAGE_SCALES = gl.constexpr(65 * (DIM + ROPE_CHANNELS) // 8)
FIRST_SCALES = gl.constexpr(KEYS_PER_PAGE * (DIM + ROPE_CHANNELS) // 8)
# Threads of the gathering warps: each arrives once its copies have.
GATHERERS = gl.constexpr(128)

# Words of e4m3 and of rotary channels: a thread gets as many channels side by side of the one as of the other.
VALUE = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))
TURN = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))

# One word of e4m3 to four fp16, times a power of two given twice as fp16.
_FROM_FP8 = gl.constexpr("""
{
.reg .b16 low, high;
.reg .b32 a, b;
mov.b32 {low, high}, $4;
cvt.rn.f16x2.e4m3x2 a, low;
cvt.rn.f16x2.e4m3x2 b, high;
mul.rn.f16x2 a, a, $5;
mul.rn.f16x2 b, b, $5;
mov.b32 {$0, $1}, a;
mov.b32 {$2, $3}, b;
}
""")
# One word of two bf16 to two fp16.
_FROM_BF16 = gl.constexpr("""
{
.reg .b32 a, b;
shl.b32 a, $2, 16;
and.b32 b, $2, 0xffff0000;
cvt.rn.f16x2.f32 a, b, a;
mov.b32 {$0, $1}, a;
}
""")


@gluon.jit
def _row_places(lookup, start, n_N):  # type: ignore[no-untyped-def]
    """Pointers to the rows of candidates `start` + `n_N`, and which are before the last.

    `lookup`: the query's window rows; its entry rows, less `first_entry`; `first_entry`, where candidates become
    entries; the number of window rows; where entries end; how many rows each cache has.
    """
    window_rows, entry_rows, first_entry, num_window, end, _, _ = lookup
    in_window = start < first_entry
    last = gl.where(in_window, num_window, end)
    return gl.where(in_window, window_rows, entry_rows) + start + n_N, start + n_N < last


@gluon.jit
def _rows(lookup, start, n_N):  # type: ignore[no-untyped-def]
    """The rows of candidates `start` + `n_N` as they are given, -1 beyond the last; nothing waits for them yet."""
    ptr_N, inside_N = _row_places(lookup, start, n_N)
    return gl.load(ptr_N, mask=inside_N, other=-1)


@gluon.jit
def _found(lookup, start, row_N, window, entries):  # type: ignore[no-untyped-def]
    """Rows of candidates from `start` on as int32, which of them are there, and their cache."""
    in_window = start < lookup[2]
    real_N = (row_N >= 0) & (row_N < gl.where(in_window, lookup[5], lookup[6]))
    return row_N.to(gl.int32), real_N, gl.where(in_window, window, entries)


@gluon.jit
def _gather_plain(window, entries, lookup, first, num_blocks, k_shared, bias, full, empty):  # type: ignore[no-untyped-def]
    """Copies rows of bf16 without waiting for them: they arrive at `full` themselves."""
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    n_N = gl.arange(0, N, layout=gl.SliceLayout(1, COPY))
    d_D = gl.arange(0, D, layout=gl.SliceLayout(0, COPY))
    flat_N = gl.arange(0, N, layout=FLAT)
    row_N = _rows(lookup, first, n_N)
    told_N = _rows(lookup, first, flat_N)
    for i in range(num_blocks):
        stage = i % STAGES
        start = first + i * N
        row_N, real_N, cache = _found(lookup, start, row_N, window, entries)
        _, told_N, _ = _found(lookup, start, told_N, window, entries)
        ptr = (cache + row_N.to(gl.int64) * D)[:, None] + d_D[None, :]
        real, _ = gl.broadcast(real_N[:, None], ptr)
        mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
        async_copy.async_copy_global_to_shared(k_shared.index(stage), ptr, mask=real)
        async_copy.mbarrier_arrive(full.index(stage), increment_count=False)
        bias.index(stage).store(gl.where(told_N, 0.0, float("-inf")))
        mbarrier.arrive(full.index(stage), count=1)
        row_N = _rows(lookup, start + N, n_N)
        told_N = _rows(lookup, start + N, flat_N)


@gluon.jit
def _places(found, group: gl.constexpr):  # type: ignore[no-untyped-def]
    """Pointers [N, words] to a group of e4m3 of packed rows, and which are there."""
    row_N, real_N, pages = found
    x_X = gl.arange(0, GROUP_WORDS, layout=gl.SliceLayout(0, VALUE))
    ptr_N = pages + (row_N + row_N // PAGE).to(gl.int64) * KEY_WORDS
    ptr = ptr_N[:, None] + (x_X + group * GROUP_WORDS)[None, :]
    real, _ = gl.broadcast(real_N[:, None], ptr)
    return ptr, real


@gluon.jit
def _rope_places(found):  # type: ignore[no-untyped-def]
    """Pointers [N, words] to the rotary channels of packed rows, and which are there."""
    row_N = gl.convert_layout(found[0], gl.SliceLayout(1, TURN), assert_trivial=True)
    real_N = gl.convert_layout(found[1], gl.SliceLayout(1, TURN), assert_trivial=True)
    x_X = gl.arange(0, ROPE // 2, layout=gl.SliceLayout(0, TURN))
    ptr_N = found[2] + (row_N + row_N // PAGE).to(gl.int64) * KEY_WORDS
    ptr = ptr_N[:, None] + (x_X + GROUPS * GROUP_WORDS)[None, :]
    real, _ = gl.broadcast(real_N[:, None], ptr)
    return ptr, real


@gluon.jit
def _scale_places(found):  # type: ignore[no-untyped-def]
    """Pointers int64 [N] to the scales of packed rows."""
    row_N, _, pages = found
    place_N = (row_N // PAGE).to(gl.int64) * PAGE_SCALES + FIRST_SCALES + row_N % PAGE
    return pages.to(gl.pointer_type(gl.int64), bitcast=True) + place_N


@gluon.jit
def _copy(found, lookup, start, n_N, staged, slot):  # type: ignore[no-untyped-def]
    """Starts to bring what packed rows hold to a slot of `staged`, and the rows of candidates from `start` on.

    `staged`: e4m3 by groups, scales, rotary channels, rows; each [SLOTS, N, ...].
    """
    values, scales, rope, rows = staged
    for group in gl.static_range(GROUPS):
        ptr, real = _places(found, group)
        async_copy.async_copy_global_to_shared(values[group].index(slot), ptr, mask=real)
    async_copy.async_copy_global_to_shared(scales.index(slot), _scale_places(found), mask=found[1])
    ptr, real = _rope_places(found)
    async_copy.async_copy_global_to_shared(rope.index(slot), ptr, mask=real)
    ptr_N, inside_N = _row_places(lookup, start, n_N)
    async_copy.async_copy_global_to_shared(rows.index(slot), ptr_N, mask=inside_N)
    async_copy.commit_group()


@gluon.jit
def _values(staged, slot, scale_N, group: gl.constexpr):  # type: ignore[no-untyped-def]
    """A group of channels, e4m3 times 2^(scale's byte - 127), as fp16 [N, channels]."""
    word_NX = staged[0][group].index(slot).load(VALUE)
    exponent_N = (scale_N >> (8 * group)).to(gl.int32) & 255
    scale_N = gl.minimum(gl.maximum(exponent_N - 112, 0), 31) * 0x04000400
    scale_NX, _ = gl.broadcast(scale_N[:, None], word_NX)
    a, b, c, d = gl.inline_asm_elementwise(
        _FROM_FP8, "=h,=h,=h,=h,r,r", [word_NX, scale_NX], dtype=(gl.float16,) * 4, is_pure=True, pack=1
    )
    return gl.join(gl.join(a, c), gl.join(b, d)).reshape([word_NX.shape[0], word_NX.shape[1] * 4])


@gluon.jit
def _turned(staged, slot):  # type: ignore[no-untyped-def]
    """The rotary channels as fp16 [N, channels]."""
    word_NX = staged[2].index(slot).load(TURN)
    low, high = gl.inline_asm_elementwise(
        _FROM_BF16, "=h,=h,r", [word_NX], dtype=(gl.float16,) * 2, is_pure=True, pack=1
    )
    return gl.join(low, high).reshape([word_NX.shape[0], ROPE])


@gluon.jit
def _beside(a, b):  # type: ignore[no-untyped-def]
    """[N, 2 D] of two [N, D]."""
    return gl.join(a, b).permute([0, 2, 1]).reshape([a.shape[0], a.shape[1] * 2])


@gluon.jit
def _decode(staged, slot, scale_N, k_ND):  # type: ignore[no-untyped-def]
    """Half a block from a slot of `staged` to its place. Half of its channels follow the other: registers are short."""
    first = _beside(_values(staged, slot, scale_N, 0), _values(staged, slot, scale_N, 1))
    second = _beside(_values(staged, slot, scale_N, 2), _values(staged, slot, scale_N, 3))
    k_ND.slice(0, D // 2, dim=1).store(_beside(first, second))
    first = _beside(_values(staged, slot, scale_N, 4), _values(staged, slot, scale_N, 5))
    second = _beside(_values(staged, slot, scale_N, 6), _turned(staged, slot))
    k_ND.slice(D // 2, D // 2, dim=1).store(_beside(first, second))


@gluon.jit
def _gather_packed(window, entries, lookup, first, num_blocks, k_shared, bias, full, empty, staged):  # type: ignore[no-untyped-def]
    """Decodes half a block at a time, while SLOTS - 1 others are on their way. A half brings the rows of the one that
    takes its slot. No fence follows a store, as it would wait for what is on its way: it is the reader's."""
    HALF: gl.constexpr = N // HALVES
    n_N = gl.arange(0, HALF, layout=gl.SliceLayout(1, VALUE))
    scales, rows = staged[1], staged[3]
    asked = ()
    for slot in gl.static_range(SLOTS):
        asked += (_rows(lookup, first + slot * HALF, n_N),)  # type: ignore[assignment]
    # Which candidates of the halves on their way are there, the next one to be decoded first.
    real = ()
    for slot in gl.static_range(SLOTS):
        found = _found(lookup, first + slot * HALF, asked[slot], window, entries)
        _copy(found, lookup, first + (slot + SLOTS) * HALF, n_N, staged, slot)
        real += (found[1],)  # type: ignore[assignment]
    place = 0
    for i in range(num_blocks):
        stage = i % STAGES
        for half in gl.static_range(HALVES):
            ahead = first + i * N + (half + SLOTS) * HALF
            k_ND = k_shared.index(stage).slice(half * HALF, HALF, dim=0)
            bias_N = bias.index(stage).slice(half * HALF, HALF, dim=0)
            async_copy.wait_group(SLOTS - 1)
            row_N = rows.index(place).load(gl.SliceLayout(1, VALUE))
            scale_N = scales.index(place).load(gl.SliceLayout(1, VALUE))
            mbarrier.wait(empty.index(stage * HALVES + half), (i // STAGES & 1) ^ 1)
            _decode(staged, place, scale_N, k_ND)
            bias_N.store(gl.where(real[0], 0.0, float("-inf")))  # type: ignore[misc]
            mbarrier.arrive(full.index(stage), count=1)
            # Of rows beyond the last, zeros came.
            _, inside_N = _row_places(lookup, ahead, n_N)
            found = _found(lookup, ahead, gl.where(inside_N, row_N, -1), window, entries)
            _copy(found, lookup, ahead + SLOTS * HALF, n_N, staged, place)
            real = real[1:] + (found[1],)  # type: ignore[assignment]  # noqa: RUF005 (Gluon knows no starred tuple)
            place = gl.where(place == SLOTS - 1, 0, place + 1)
    async_copy.wait_group(0)


@gluon.jit
def _gather(window, entries, lookup, first, num_blocks, k_shared, bias, full, empty, staged, PACKED: gl.constexpr):  # type: ignore[no-untyped-def]
    if PACKED:
        _gather_packed(window, entries, lookup, first, num_blocks, k_shared, bias, full, empty, staged)
    else:
        _gather_plain(window, entries, lookup, first, num_blocks, k_shared, bias, full, empty)
