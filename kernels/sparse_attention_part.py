"""The softmax of one query over one stretch of its candidates, by heads in blocks: one program gathers its own rows.

Contract: keys are the values. Logits and sums are fp32 in the log2 domain, candidates in blocks with a running maximum;
probabilities are rounded to the keys' type for the second product only. Nothing is read of a candidate that is not
there, and it has no weight.
Live when: `sparse_attention` runs on a GPU. GATHERED: candidate n of a query is row n of its own rows and there where
`valid` says so; otherwise rows are looked up in two caches, window rows before entry rows. PACKED: rows are pages of
e4m3 and bf16 (`attention_cache_ref`), decoded exactly: by `_decoded`, or in fp32 under UPCAST. WHOLE: the only part, so
the sink, the rotation and the output's type follow at once; otherwise `sparse_attention_merge` follows. ROTATE: the
last channels are rotated back. UPCAST: dots take fp32 operands, for fp32 queries and for the interpreter, whose bf16
dots are wrong.
"""

# B queries, H heads, D head dim, N candidates of a block, W window rows, K entry rows, G scales of a key, R parts.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernels.attention_cache_ref import GROUP, KEYS_PER_PAGE, ROPE_CHANNELS, SCALE_BYTES

PAGE = tl.constexpr(KEYS_PER_PAGE)
ROPE = tl.constexpr(ROPE_CHANNELS)
GROUP_SIZE = tl.constexpr(GROUP)
SCALES = tl.constexpr(SCALE_BYTES)


def _metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """As if every candidate were there."""
    queries, heads, dim = args["q_BHD"].shape
    rows = queries * (args["num_window"] + args["num_entries"])
    row_bytes = args["KEY_BYTES"] + SCALE_BYTES if args["PACKED"] else dim * args["window"].element_size()
    out = args["out"]
    return {
        "name": f"sparse_attention_part {queries}x{heads}x{dim} of {rows // max(queries, 1)}",
        "bytes": rows * row_bytes + args["q_BHD"].nbytes + out.numel() * out.element_size(),
        "flops": 4 * rows * heads * dim,
    }


@triton.jit
def _decoded(code, scale, rope, is_rope):  # type: ignore[no-untyped-def]
    """e4m3 bytes times bf16 scales of 2^120 * s, exactly, as bf16; `rope` where all bits of `is_rope` are set.

    A byte's exponent and mantissa, four bits up in a bf16, are its value * 2^-120, subnormals included. Codes must be 0
    where the rotary channels go. Four numbers take twelve instructions.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 low, high, low_bits, high_bits, minus_zero;
        mov.b32 minus_zero, 0x80008000;
        prmt.b32 low, $2, 0, 0x1404;
        prmt.b32 high, $2, 0, 0x3424;
        shr.u32 low_bits, low, 4;
        shr.u32 high_bits, high, 4;
        and.b32 low_bits, low_bits, 0x07f007f0;
        and.b32 high_bits, high_bits, 0x07f007f0;
        lop3.b32 low, low, 0x80008000, low_bits, 0xea;
        lop3.b32 high, high, 0x80008000, high_bits, 0xea;
        fma.rn.bf16x2 low, low, $3, minus_zero;
        fma.rn.bf16x2 high, high, $4, minus_zero;
        lop3.b32 $0, $5, $7, low, 0xea;
        lop3.b32 $1, $6, $8, high, 0xea;
        }
        """,
        "=&r,=&r,r,r,r,r,r,r,r",
        [code, scale, rope, is_rope],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _packed_keys(  # type: ignore[no-untyped-def]
    pages, row_N, real_N, D: tl.constexpr, KEY_BYTES: tl.constexpr, PAGE_BYTES: tl.constexpr, UPCAST: tl.constexpr
):
    """The keys [N, D] of packed rows, bf16 or fp32."""
    d_D = tl.arange(0, D)
    g_G = tl.arange(0, D // GROUP_SIZE)
    x_X = tl.arange(0, ROPE)
    num_values: tl.constexpr = D - ROPE
    page_N = row_N // PAGE
    data_N = row_N.to(tl.int64) * KEY_BYTES + page_N.to(tl.int64) * (PAGE_BYTES - PAGE * KEY_BYTES)
    # A key's scale bytes are one word; 8 bytes are its alignment, as a page is a multiple of them.
    word_N = tl.load(
        pages.to(tl.pointer_type(tl.int64))
        + (page_N.to(tl.int64) * (PAGE_BYTES // 8) + (PAGE * KEY_BYTES // 8 + row_N % PAGE)),
        mask=real_N,
        other=0,
    )
    code_ND = tl.load(
        pages + data_N[:, None] + d_D[None, :], mask=real_N[:, None] & (d_D < num_values)[None, :], other=0
    )
    rope_NX = tl.load(
        (pages + num_values).to(tl.pointer_type(tl.bfloat16)) + (data_N >> 1)[:, None] + x_X[None, :],
        mask=real_N[:, None],
        other=0.0,
    )
    # What the unused bytes hold must not become infinite: it is multiplied by 0 where the rotary channels go.
    used_G = tl.where(g_G < num_values // GROUP_SIZE, 255, 0)
    exponent_NG = ((word_N[:, None] >> (g_G * 8)[None, :]) & used_G[None, :]).to(tl.int32)
    if UPCAST:
        scale_NG = ((exponent_NG + 120) << 23).to(tl.float32, bitcast=True)
        rope_NX = rope_NX.to(tl.float32)
    else:
        scale_NG = ((exponent_NG + 120) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
    wide: tl.constexpr = [row_N.shape[0], D // GROUP_SIZE, GROUP_SIZE]
    scale_ND = tl.reshape(tl.broadcast_to(scale_NG[:, :, None], wide), (row_N.shape[0], D))
    rope_ND = tl.reshape(tl.broadcast_to(rope_NX[:, None, :], wide), (row_N.shape[0], D))
    if UPCAST:
        code_ND = code_ND.to(tl.int32)
        value_ND = (((code_ND & 0x80) << 24) | ((code_ND & 0x7F) << 20)).to(tl.float32, bitcast=True) * scale_ND
        return tl.where((d_D < num_values)[None, :], value_ND, rope_ND)
    else:
        # By group, so that a thread holds one word of it.
        is_rope_G = tl.where(g_G == num_values // GROUP_SIZE, -1, 0).to(tl.int16)
        is_rope_ND = tl.reshape(tl.broadcast_to(is_rope_G[None, :, None], wide), (row_N.shape[0], D))
        return _decoded(code_ND, scale_ND, rope_ND, is_rope_ND)


@triton.jit
def rotated_back(out_HD, cos_BF, sin_BF, query, D: tl.constexpr, F: tl.constexpr):  # type: ignore[no-untyped-def]
    """The last 2 * F of D channels in pairs (2i, 2i + 1), rotated by minus the angle of each pair."""
    block_h: tl.constexpr = out_HD.shape[0]
    block_d: tl.constexpr = out_HD.shape[1]
    even_HP, odd_HP = tl.split(tl.reshape(out_HD, (block_h, block_d // 2, 2)))
    pair_P = tl.arange(0, block_d // 2) - (D // 2 - F)
    turns_P = (pair_P >= 0) & (pair_P < F)
    cos_P = tl.load(cos_BF + query * F + pair_P, mask=turns_P, other=1.0)[None, :]
    sin_P = tl.load(sin_BF + query * F + pair_P, mask=turns_P, other=0.0)[None, :]
    pairs_HP2 = tl.join(even_HP * cos_P + odd_HP * sin_P, odd_HP * cos_P - even_HP * sin_P)
    return tl.reshape(pairs_HP2, (block_h, block_d))


@triton.jit(launch_metadata=_metadata)
def sparse_attention_part(  # type: ignore[no-untyped-def]
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
    H: tl.constexpr,
    D: tl.constexpr,
    F: tl.constexpr,
    KEY_BYTES: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    GATHERED: tl.constexpr,
    PACKED: tl.constexpr,
    WHOLE: tl.constexpr,
    ROTATE: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    part = tl.program_id(0) % num_parts
    group = tl.program_id(0) // num_parts % tl.cdiv(H, BLOCK_H)
    query = (tl.program_id(0) // (num_parts * tl.cdiv(H, BLOCK_H))).to(tl.int64)
    h_H = group * BLOCK_H + tl.arange(0, BLOCK_H)
    d_D = tl.arange(0, BLOCK_D)
    real_HD = (h_H < H)[:, None] & (d_D < D)[None, :]
    q_HD = tl.load(q_BHD + query * H * D + h_H[:, None] * D + d_D[None, :], mask=real_HD, other=0.0)
    if UPCAST:
        q_HD = q_HD.to(tl.float32)
    max_H = tl.full([BLOCK_H], float("-inf"), tl.float32)
    sum_H = tl.zeros([BLOCK_H], tl.float32)
    acc_HD = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    # A block of candidates is all window or all entries: entries are counted from the first block after the window on.
    first_entry = tl.cdiv(num_window, BLOCK_N) * BLOCK_N
    first = part * split_size
    stop = tl.minimum(first + split_size, first_entry + num_entries)
    for start in range(first, stop, BLOCK_N):
        in_window = start < first_entry
        cache = tl.where(in_window, window, entries)
        n_N = start + tl.arange(0, BLOCK_N)
        if GATHERED:
            row_N = (query * num_window).to(tl.int32) + n_N
            real_N = tl.load(window_rows_BW + query * num_window + n_N, mask=n_N < num_window, other=0) != 0
        else:
            rows = tl.where(
                in_window, window_rows_BW + query * num_window, entry_rows_BK + (query * num_entries - first_entry)
            )
            last = tl.where(in_window, num_window, first_entry + num_entries)
            row_N = tl.load(rows + n_N, mask=n_N < last, other=-1)
            real_N = (row_N >= 0) & (row_N < tl.where(in_window, window_size, entries_size))
            row_N = row_N.to(tl.int32)
        if PACKED:
            key_ND = _packed_keys(cache, row_N, real_N, D, KEY_BYTES, PAGE_BYTES, UPCAST)
        else:
            key_ND = tl.load(
                (cache + row_N.to(tl.int64) * D)[:, None] + d_D[None, :],
                mask=real_N[:, None] & (d_D < D)[None, :],
                other=0.0,
            )
            if UPCAST:
                key_ND = key_ND.to(tl.float32)
        shrink_H = tl.full([BLOCK_H], 1.0, tl.float32)
        prob_HN = tl.zeros([BLOCK_H, BLOCK_N], key_ND.dtype)
        # Always so. A product that feeds another in the same region makes Triton stack all warps along the heads, where
        # four of eight would repeat the 64 heads of the others; in a region of its own they share the candidates.
        if start < stop:
            if UPCAST:
                logit_HN = tl.dot(q_HD, tl.trans(key_ND), input_precision="ieee")
            else:
                logit_HN = tl.dot(q_HD, tl.trans(key_ND))
            logit_HN = tl.where(real_N[None, :], logit_HN * scale, float("-inf"))
            new_max_H = tl.maximum(max_H, tl.max(logit_HN, axis=1))
            # While no candidate is there the maximum is -inf, and subtracting it from -inf would give NaN.
            base_H = tl.where(new_max_H == float("-inf"), 0.0, new_max_H)
            weight_HN = tl.exp2(logit_HN - base_H[:, None])
            shrink_H = tl.exp2(max_H - base_H)
            sum_H = sum_H * shrink_H + tl.sum(weight_HN, axis=1)
            max_H = new_max_H
            prob_HN = weight_HN.to(key_ND.dtype)
        if UPCAST:
            acc_HD = tl.dot(prob_HN, key_ND, acc_HD * shrink_H[:, None], input_precision="ieee")
        else:
            acc_HD = tl.dot(prob_HN, key_ND, acc_HD * shrink_H[:, None])
    if WHOLE:
        sink_H = tl.load(sinks_H + h_H, mask=h_H < H, other=0.0) * 1.4426950408889634
        # Against the larger of the two, neither power can overflow.
        top_H = tl.maximum(max_H, sink_H)
        shrink_H = tl.exp2(max_H - top_H)
        factor_H = shrink_H / (sum_H * shrink_H + tl.exp2(sink_H - top_H))
        row = query * H
    else:
        # Of a part without a candidate the sum is 0; its output is 0 and the maximum, so the log-sum-exp, -inf.
        sum_H = tl.where(sum_H > 0.0, sum_H, 1.0)
        factor_H = 1.0 / sum_H
        row = (part * num_queries + query) * H
        tl.store(lse_RBH + row + h_H, max_H + tl.log2(sum_H), mask=h_H < H)
    acc_HD = acc_HD * factor_H[:, None]
    if ROTATE:
        acc_HD = rotated_back(acc_HD, cos_BF, sin_BF, query, D, F)
    tl.store(out + row * D + h_H[:, None] * D + d_D[None, :], acc_HD.to(out.dtype.element_ty), mask=real_HD)
