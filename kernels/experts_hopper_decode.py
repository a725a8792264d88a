"""4-bit weights to the register operand of Hopper's wgmma, for `experts_hopper_gemm`: no shared memory, no shuffle.

Contract: words and scales in the layout of `nvfp4_layout.repack`, a word eight codes of one thread, of which four are
of each of its two rows. A code becomes e2m1 * 2^-126 and its scale block_scale * 2^117, both exact in bf16, and so is
their product, e2m1 * block_scale * 2^-9: the GEMM's epilogue gives back the 2^9.
Live when: the GPU is sm_90. PARTS 2: the words of 64 columns are decoded 32 columns at a time.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

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
def parts_of(words, PARTS: gl.constexpr, PART: gl.constexpr):  # type: ignore[no-untyped-def]
    """The words [threads, 4] of 64 columns as PARTS tensors of layout PART, those of 64 / PARTS columns each."""
    if PARTS == 1:
        return (words,)
    else:  # needed: what follows a return would be compiled too
        first, second = gl.split(words.reshape([words.shape[0], 2, 2]).permute([0, 2, 1]))
        first = gl.convert_layout(first, PART, assert_trivial=True)
        return first, gl.convert_layout(second, PART, assert_trivial=True)


@gluon.jit
def decode(words, scale, SHIFT: gl.constexpr, NUM_WARPS: gl.constexpr, OPERAND: gl.constexpr):  # type: ignore[no-untyped-def]
    """Words int32 [threads, J] of 16 J columns to the bf16 operand [16 * warps, 16 J], all in registers.

    `scale` int32 [threads] holds the bytes of the thread's two rows from bit SHIFT on.
    """
    J: gl.constexpr = words.shape[1]
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
    pairs = pairs.reshape([NUM_WARPS, 8, 4, J, 2, 2, 2])  # warp g t j c h d
    pairs = pairs.permute([0, 5, 1, 3, 6, 2, 4])  # warp h g | j d t c
    return gl.convert_layout(pairs.reshape([NUM_WARPS * 16, 16 * J]), OPERAND, assert_trivial=True)
