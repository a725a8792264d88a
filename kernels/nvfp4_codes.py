"""The codes of NVFP4 encode in Triton, by the short arithmetic where blocks are plain: some nine operations a weight.

Contract: the codes of `nvfp4_ref` and the squared errors by which it chooses. A tile with a block that is not plain
takes `nvfp4_round`'s arithmetic as a whole.
Live when: `nvfp4_encode` runs. FMA: a quotient is a sum of two products; otherwise, in the interpreter, which fuses
nothing, a division. BF16: as there.
"""

# B blocks of 16 elements, handled in halves of L = 8.

from __future__ import annotations

import triton
import triton.language as tl

from kernels.nvfp4_round import exact_half, squared_error

# Quotients carry a factor of 2^48, for `_word`'s sake.
LIFT = tl.constexpr(2.0**48)
DROP = tl.constexpr(2.0**-48)
BELOW_TWO = tl.constexpr(2.0**49 - 2.0**25)  # the largest float below 2 * LIFT
SMALLEST_GLOBAL = tl.constexpr(2.0**-30)
LARGEST_GLOBAL_FP32 = tl.constexpr(2.0**-9)
LARGEST_GLOBAL_BF16 = tl.constexpr(2.0**7)


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
def _quotient(w_BL, step_B, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """LIFT * w / step as an IEEE division rounds it, where that decides a code; -0 gives +0."""
    if FMA:
        # The inverse as a sum of two numbers, the second good to its last bit. So it gave the quotient of a division
        # for each of the 2^23 mantissas of a step and the eleven floats around each boundary between e2m1 values;
        # further away a last bit does not matter.
        first_B = tl.div_rn(1.0, step_B)
        rest_B = tl.fma(-step_B, first_B, 1.0)
        second_B = rest_B * first_B
        second_B = tl.fma(second_B, rest_B, second_B) * LIFT
        return tl.fma(w_BL, (first_B * LIFT)[:, None], tl.fma(w_BL, second_B[:, None], 0.0))
    else:
        return tl.div_rn(w_BL, step_B[:, None]) * LIFT + 0.0


@triton.jit
def _word(number_BL):  # type: ignore[no-untyped-def]
    """Eight codes, the first in the lowest bits.

    A number here has a sign, the exponent 197 + e of its binade and in its last bits a count k of steps; its code is
    k + 2e. The product brings k and 2e to the top and keeps the sign; 65 * 197 is 5 modulo 512, which stays below.
    """
    code_BL = (number_BL.to(tl.int32, bitcast=True) * 0x10000041).to(tl.uint32, bitcast=True)
    even_BPP, odd_BPP = tl.split(tl.reshape(code_BL, (code_BL.shape[0], 2, 2, 2)))
    c0_BP, c2_BP = tl.split(even_BPP)
    c1_BP, c3_BP = tl.split(odd_BPP)
    c0_B, c4_B = tl.split(c0_BP)
    c1_B, c5_B = tl.split(c1_BP)
    c2_B, c6_B = tl.split(c2_BP)
    c3_B, c7_B = tl.split(c3_BP)
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
def _plain_half(w_BL, step_B, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight codes as a word, the first in the lowest bits, and their squared error."""
    quotient_BL = _quotient(w_BL, step_B, FMA)
    bits_BL = quotient_BL.to(tl.int32, bitcast=True)
    near_BL = tl.maximum(tl.abs(quotient_BL), BELOW_TWO).to(tl.int32, bitcast=True)
    # The quotient's sign over the exponent of `near`: nothing is left of the quotient's mantissa, as that of `near` is
    # the same or all ones. This form is one operation.
    binade_BL = (near_BL ^ ((near_BL | bits_BL) & -0x7F800001)).to(tl.float32, bitcast=True)
    # Of the quotient's binade, or of 1's, below which steps stay the same; 2^22 times as large, fp32 has e2m1's steps.
    number_BL = tl.fma(binade_BL, 4194304.0, quotient_BL)
    value_BL = tl.fma(binade_BL, -4194304.0, number_BL)
    return _word(number_BL), squared_error(w_BL, value_BL, step_B * DROP)


@triton.jit
def block_codes(low_BL, high_BL, step_B, unit, all_plain, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """The words of codes of the blocks' first and second halves, and the blocks' squared errors."""
    if all_plain:
        low_word_B, low_error_B = _plain_half(low_BL, step_B, FMA)
        high_word_B, high_error_B = _plain_half(high_BL, step_B, FMA)
    else:
        low_word_B, low_error_B = exact_half(low_BL, step_B, unit, FMA)
        high_word_B, high_error_B = exact_half(high_BL, step_B, unit, FMA)
    return low_word_B, high_word_B, low_error_B + high_error_B
