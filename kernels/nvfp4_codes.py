"""The short arithmetic of NVFP4 encode in Triton: codes in some nine operations a weight, and the better of two scales.

Contract: the codes of `nvfp4_ref` for blocks that are `plain`, and its choice between two scales where `better_scale`
is sure of it; a tile with any other block takes `nvfp4_round`'s arithmetic as a whole.
Live when: `nvfp4_encode` runs. FMA: a quotient is a sum of two products; otherwise, in the interpreter, which fuses
nothing, a division. BF16: as there.
"""

# B blocks of 16 elements, handled in halves of L = 8.

from __future__ import annotations

import triton
import triton.language as tl

from kernels.nvfp4_round import TO_E2M1

# Quotients carry a factor of 2^48, for `_word`'s sake.
LIFT = tl.constexpr(2.0**48)
DROP = tl.constexpr(2.0**-48)
BELOW_TWO = tl.constexpr(2.0**49 - 2.0**25)  # the largest float below 2 * LIFT
SMALLEST_GLOBAL = tl.constexpr(2.0**-30)
LARGEST_GLOBAL_FP32 = tl.constexpr(2.0**-9)
LARGEST_GLOBAL_BF16 = tl.constexpr(2.0**7)
# Of a rough choice: the largest step, and the difference it needs, in parts of both errors and of a squared step.
LARGEST_ROUGH_STEP = tl.constexpr(2.0)
SURE_OF_ERROR = tl.constexpr(2.0**-14)
SURE_OF_STEP = tl.constexpr(2.0**-18)
FROM_E2M1 = tl.constexpr(2.0**126)  # the inverse of TO_E2M1


@triton.jit
def plain(amax_B, step_B, global_scale, BF16: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which blocks are plain, by their largest magnitude and their step, which is their scale times the global one.

    Below 7 steps nothing saturates. Between these global scales steps and their inverses are far from the ends of
    fp32's range. And no quotient but 0's rounds to 0, which would cost it its sign: bf16 weights are at least 2^-133
    and fp32's 2^-149, steps at most 448 global scales.
    """
    largest = LARGEST_GLOBAL_BF16 if BF16 else LARGEST_GLOBAL_FP32
    middling = (global_scale >= SMALLEST_GLOBAL) & (global_scale <= largest)
    return amax_B < step_B * tl.where(middling, 6.99, -1.0)


@triton.jit
def rough_inverse(step_B, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 / step, a last bit off at most; anything where a block is not plain."""
    if FMA:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [step_B], tl.float32, True, 1)
    else:
        return tl.div_rn(1.0, step_B)


@triton.jit
def _quotient(w_BL, step_B, inverse_B, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """LIFT * w / step as an IEEE division rounds it, where that decides a code; -0 gives +0."""
    if FMA:
        # The inverse as a sum of two numbers, the second good to its last bit. 2^-30 rounds the first up where 1 / step
        # is all but between two floats, so that it is the same from every inverse up to a last bit off. So it gave the
        # quotient of a division for each of the 2^23 mantissas of a step and the eleven floats around each boundary
        # between e2m1 values; further away a last bit does not matter.
        against_B = step_B * -1.0
        first_B = tl.fma(tl.fma(against_B, inverse_B, 1.0) + 9.313225746154785e-10, inverse_B, inverse_B)
        rest_B = tl.fma(against_B, first_B, 1.0)
        second_B = rest_B * first_B
        second_B = tl.fma(second_B, rest_B, second_B) * LIFT
        return tl.fma(w_BL, (first_B * LIFT)[:, None], tl.fma(w_BL, second_B[:, None], 0.0))
    else:
        return tl.div_rn(w_BL, step_B[:, None]) * LIFT + 0.0


@triton.jit
def _each(x_BL):  # type: ignore[no-untyped-def]
    """The eight columns of half a block."""
    even_BPP, odd_BPP = tl.split(tl.reshape(x_BL, (x_BL.shape[0], 2, 2, 2)))
    x0_BP, x2_BP = tl.split(even_BPP)
    x1_BP, x3_BP = tl.split(odd_BPP)
    x0_B, x4_B = tl.split(x0_BP)
    x1_B, x5_B = tl.split(x1_BP)
    x2_B, x6_B = tl.split(x2_BP)
    x3_B, x7_B = tl.split(x3_BP)
    return x0_B, x1_B, x2_B, x3_B, x4_B, x5_B, x6_B, x7_B


@triton.jit
def _word(number_BL):  # type: ignore[no-untyped-def]
    """Eight codes, the first in the lowest bits.

    A number here has a sign, the exponent 197 + e of its binade and in its last bits a count k of steps; its code is
    k + 2e. The product brings k and 2e to the top and keeps the sign; 65 * 197 is 5 modulo 512, which stays below.
    """
    code_BL = (number_BL.to(tl.int32, bitcast=True) * 0x10000041).to(tl.uint32, bitcast=True)
    c0_B, c1_B, c2_B, c3_B, c4_B, c5_B, c6_B, c7_B = _each(code_BL)
    # Each line is one shift of two registers.
    word_B = c7_B >> 28
    word_B = (word_B << 4) | (c6_B >> 28)
    word_B = (word_B << 4) | (c5_B >> 28)
    word_B = (word_B << 4) | (c4_B >> 28)
    word_B = (word_B << 4) | (c3_B >> 28)
    word_B = (word_B << 4) | (c2_B >> 28)
    word_B = (word_B << 4) | (c1_B >> 28)
    word_B = (word_B << 4) | (c0_B >> 28)
    return word_B.to(tl.int32, bitcast=True)


@triton.jit
def _plain_half(w_BL, step_B, inverse_B, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight codes as a word, the first in the lowest bits."""
    quotient_BL = _quotient(w_BL, step_B, inverse_B, FMA)
    bits_BL = quotient_BL.to(tl.int32, bitcast=True)
    near_BL = tl.maximum(tl.abs(quotient_BL), BELOW_TWO).to(tl.int32, bitcast=True)
    # The quotient's sign over the exponent of `near`: nothing is left of the quotient's mantissa, as that of `near` is
    # the same or all ones. This form is one operation.
    binade_BL = (near_BL ^ ((near_BL | bits_BL) & -0x7F800001)).to(tl.float32, bitcast=True)
    # Of the quotient's binade, or of 1's, below which steps stay the same; 2^22 times as large, fp32 has e2m1's steps.
    return _word(tl.fma(binade_BL, 4194304.0, quotient_BL))


@triton.jit
def plain_codes(low_BL, high_BL, step_B, inverse_B, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """The words of codes of plain blocks' first and second halves; `inverse` is the rough one."""
    return _plain_half(low_BL, step_B, inverse_B, FMA), _plain_half(high_BL, step_B, inverse_B, FMA)


@triton.jit
def _add_squares(error_B, w_BL, inverse_B, step_B):  # type: ignore[no-untyped-def]
    """`error` and the squared errors of half a block; inverse / 2^126 and -step * 2^126 are given."""
    # Where fp32's subnormals begin with e2m1's, numbers are e2m1's but for their lower mantissa bits. Ties go up: which
    # neighbour of a boundary is taken does not change the error there.
    bits_BL = (w_BL * inverse_B[:, None]).to(tl.int32, bitcast=True)
    value_BL = ((bits_BL + 0x200000) & -0x400000).to(tl.float32, bitcast=True)
    e0_B, e1_B, e2_B, e3_B, e4_B, e5_B, e6_B, e7_B = _each(tl.fma(value_BL, step_B[:, None], w_BL))
    error_B = tl.fma(e0_B, e0_B, error_B)
    error_B = tl.fma(e1_B, e1_B, error_B)
    error_B = tl.fma(e2_B, e2_B, error_B)
    error_B = tl.fma(e3_B, e3_B, error_B)
    error_B = tl.fma(e4_B, e4_B, error_B)
    error_B = tl.fma(e5_B, e5_B, error_B)
    error_B = tl.fma(e6_B, e6_B, error_B)
    return tl.fma(e7_B, e7_B, error_B)


@triton.jit
def _rough_error(low_BL, high_BL, step_B, inverse_B):  # type: ignore[no-untyped-def]
    inverse_B *= TO_E2M1
    step_B *= -FROM_E2M1
    error_B = _add_squares(tl.zeros_like(step_B), low_BL, inverse_B, step_B)
    return _add_squares(error_B, high_BL, inverse_B, step_B)


@triton.jit
def better_scale(low_BL, high_BL, step_B, inverse_B, four_step_B, four_inverse_B):  # type: ignore[no-untyped-def]
    """Whether plain blocks take the second scale, and whether that is sure to be the reference's choice.

    Five operations a weight and scale give each error within 2^-15 of itself plus 2^-21 of the step's square:
    the inverse, its product with 2^-126 and the quotient are each rounded once, which moves a boundary by 2^-20.4 below
    2, 2^-19.8 below 4 and 2^-19.3 above, so a squared error next to it (at least 1/4, 1/2, 1) by 2^-16 of itself;
    the reference rounds the decoded weight, by 2^-21.4 of a step: as 2 a b <= a^2 / c + c b^2, another 2^-16 of the
    error and, with 16 weights, 2^-22 of the step's square; and sums of 16 squares round by 2^-19.
    Twice as much is asked for. The second step is the larger one; below LARGEST_ROUGH_STEP its 2^126-fold is finite.
    Equal steps give equal errors, of which the reference keeps the first scale's.
    """
    error_B = _rough_error(low_BL, high_BL, step_B, inverse_B)
    four_error_B = _rough_error(low_BL, high_BL, four_step_B, four_inverse_B)
    doubt_B = tl.fma(error_B + four_error_B, SURE_OF_ERROR, four_step_B * four_step_B * SURE_OF_STEP)
    sure_B = (tl.abs(four_error_B - error_B) > doubt_B) | (four_step_B == step_B)
    return four_error_B < error_B, sure_B & (four_step_B < LARGEST_ROUGH_STEP)
