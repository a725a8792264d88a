"""The exact arithmetic of NVFP4 encode in Triton: block scales, codes on the e2m1 grid, squared errors.

Contract: fp32 that rounds as `nvfp4_ref` does, on every GPU and in the interpreter: each step is one addition, product
or fused multiply-add, for neither Triton's `/` nor the interpreter's casts to small formats round to nearest. `unit` is
a power of two that brings weights and divisors to where no product is cut short by fp32's range.
Live when: `nvfp4_encode` runs: block scales always, codes and errors in the tiles that `nvfp4_codes` leaves to it. FMA:
a quotient is a product and its correction; otherwise, in the interpreter, which fuses nothing, a division.
"""

# B blocks of 16 elements, handled in halves of L = 8.

from __future__ import annotations

import triton
import triton.language as tl

from kernels.small_float import on_grid

# Times these, fp32's subnormals begin where e2m1's and e4m3's do.
TO_E2M1 = tl.constexpr(2.0**-126)
TO_E4M3 = tl.constexpr(2.0**-120)


@triton.jit
def _quotient(x, divisor, inverse, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """x / divisor as an IEEE division rounds it, where that decides a byte; inverse = 1 / divisor, rounded."""
    if FMA:
        # Three steps instead of some ten. They gave the quotient of a division for each of the 2^23 mantissas of a
        # divisor and the seven floats around each boundary between e2m1 or e4m3 values; further away a last bit does
        # not matter. Products that overflow end as infinity or NaN, and tl.minimum then gives the limit.
        rough = x * inverse
        return tl.fma(tl.fma(rough, -divisor, x), inverse, rough)
    else:
        return tl.div_rn(x, divisor)


@triton.jit
def _least(divisor):  # type: ignore[no-untyped-def]
    """What x must exceed for x / divisor not to round to zero, divisor * 2^-150."""
    return (divisor * 2.6469779601696886e-23) * 2.6469779601696886e-23


@triton.jit
def block_scale(scaled_amax_B, global_scale, unit, LARGEST: tl.constexpr, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """The scale that sends each block's largest element to LARGEST, and that times the global scale."""
    divisor = LARGEST * global_scale * unit
    scale_B = _quotient(scaled_amax_B, divisor, tl.div_rn(1.0, divisor), FMA)
    scale_B = tl.where(scaled_amax_B > _least(divisor), scale_B, 1.0)
    scale_B = on_grid(tl.maximum(tl.minimum(scale_B, 448.0), 0.001953125), 0.015625, 20)
    return scale_B, scale_B * global_scale


@triton.jit
def scale_byte(scale_B):  # type: ignore[no-untyped-def]
    """Block scales as e4m3."""
    return ((scale_B * TO_E4M3).to(tl.int32, bitcast=True) >> 20).to(tl.uint8)


@triton.jit
def _squared_error(w_BL, value_BL, step_B):  # type: ignore[no-untyped-def]
    """Sums of squares over half a block, in the reference's order: neighbours, then neighbouring pairs."""
    error_BL = w_BL - value_BL * step_B[:, None]
    error_BL = error_BL * error_BL
    # Two at a time, as a longer sum's order is the compiler's choice.
    error_BL = tl.sum(tl.reshape(error_BL, (error_BL.shape[0], 4, 2)), axis=2)
    error_BL = tl.sum(tl.reshape(error_BL, (error_BL.shape[0], 2, 2)), axis=2)
    return tl.sum(error_BL, axis=1)


@triton.jit
def _exact_half(w_BL, step_B, unit, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight codes as a word, the first in the lowest bits, and their squared error."""
    divisor_B = step_B * unit
    quotient_BL = _quotient(w_BL * unit, divisor_B[:, None], tl.div_rn(1.0, divisor_B)[:, None], FMA)
    value_BL = on_grid(tl.minimum(tl.abs(quotient_BL), 6.0), 1.0, 22)
    code_BL = (value_BL * TO_E2M1).to(tl.int32, bitcast=True) >> 22
    # An element whose quotient rounds to zero has no sign.
    code_BL = code_BL | tl.where(w_BL * unit < -_least(divisor_B)[:, None], 8, 0)
    word_B = tl.sum(code_BL << (tl.arange(0, 8) * 4)[None, :], axis=1)
    return word_B, _squared_error(tl.abs(w_BL), value_BL, step_B)


@triton.jit
def exact_codes(low_BL, high_BL, step_B, unit, FMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """The words of codes of the blocks' first and second halves, and the blocks' squared errors."""
    low_word_B, low_error_B = _exact_half(low_BL, step_B, unit, FMA)
    high_word_B, high_error_B = _exact_half(high_BL, step_B, unit, FMA)
    return low_word_B, high_word_B, low_error_B + high_error_B
