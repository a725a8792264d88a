"""The arithmetic of a router inside a kernel: scores of logits, integer keys that order as scores do, the best groups.

Contract: scores are those of `route_ref.score_ref` to a few 1e-7 of their value; under a logit of -87 they are 0, where
torch still has a subnormal. All comparisons are of int32 keys: no NaN can spoil them, and one instruction takes the
largest of a warp.
Live when: a kernel of `route` runs. SCORING names the branch of `score_of`; "softmax": the first branch of `row_sum`.
MEMBERS > 1: a group's worth has a second term.
"""

# T tokens, E experts, G groups of M members.

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.44269502162933349609375)
_LOG2_E_REST = tl.constexpr(1.925963033500e-8)
_LN_2 = tl.constexpr(0.6931471805599453)
# Keys: below every number's, of minus infinity, of NaN.
LOWEST = tl.constexpr(-(2**31))
_MINUS_INFINITY = tl.constexpr(-(2**31) + 0x7FFFFF)
_NAN = tl.constexpr(2**31 - 1)


@triton.jit
def exp_of_negative(x):  # type: ignore[no-untyped-def]
    """e^x of x <= 0 or NaN; what rounding took from x * log2(e) is put back, else e^-20 would be off by 20 ulp."""
    x = tl.where(x < -110.0, -110.0, x)
    power = x * _LOG2_E
    rest = tl.fma(x, _LOG2_E_REST, tl.fma(x, _LOG2_E, -power))
    return tl.exp2(power) * (1.0 + rest * _LN_2)


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|) to a few ulp; from 20 up the second term is lost in rounding.

    log1p(e) = 2 atanh(e / (2 + e)) as a series: its argument is at most 1/3, the first term left out 1e-8 of the sum.
    """
    e = exp_of_negative(-tl.abs(x))
    s = e / (2.0 + e)
    q = s * s
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13))))))
    return tl.maximum(x, 0.0) + 2.0 * s * series


@triton.jit
def score_of(logit, peak, total, SCORING: tl.constexpr):  # type: ignore[no-untyped-def]
    """fp32 scores of logits; `peak` and `total` are those of the token's softmax and used by no other scoring."""
    if SCORING == "sqrtsoftplus":
        score = tl.sqrt(softplus(logit))
    elif SCORING == "sigmoid":
        e = exp_of_negative(-tl.abs(logit))
        score = tl.where(logit < 0.0, e, 1.0) / (1.0 + e)
        score = tl.where(logit == logit, score, logit)
    else:
        score = exp_of_negative(logit - peak) / total
    return score


@triton.jit
def row_sum(logit_TE, SCORING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Per token, the largest logit and the sum of e^(logit - largest)."""
    if SCORING == "softmax":
        peak_T = tl.max(logit_TE, axis=1)
        total_T = tl.sum(exp_of_negative(logit_TE - peak_T[:, None]), axis=1)
    else:
        peak_T = tl.zeros([logit_TE.shape[0]], tl.float32)
        total_T = peak_T
    return peak_T, total_T


@triton.jit
def key_of(value):  # type: ignore[no-untyped-def]
    """int32 keys in the order of the floats, NaN above all of them."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(value == value, bits ^ ((bits >> 31) & 0x7FFFFFFF), _NAN)


@triton.jit
def value_of(key):  # type: ignore[no-untyped-def]
    """The float of a key: the way there is its own way back."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def keep_best_groups(  # type: ignore[no-untyped-def]
    key_TE,
    GROUPS: tl.constexpr,
    TOPK_GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The keys with those outside a token's best groups at minus infinity."""
    key_TGM = tl.reshape(key_TE, [key_TE.shape[0], BLOCK_G, BLOCK_M])
    g_G = tl.arange(0, BLOCK_G)[None, :]
    m_M = tl.arange(0, BLOCK_M)[None, None, :]
    best_TG = tl.max(key_TGM, axis=2)
    worth_TG = value_of(best_TG)
    if MEMBERS > 1:
        place_TG = tl.min(tl.where(key_TGM == best_TG[:, :, None], m_M, BLOCK_M), axis=2)
        worth_TG += value_of(tl.max(tl.where(m_M == place_TG[:, :, None], LOWEST, key_TGM), axis=2))
    worth_TG = tl.where(g_G < GROUPS, key_of(worth_TG), LOWEST)
    kept_TG = worth_TG != worth_TG
    for _ in tl.static_range(TOPK_GROUPS):
        best_T = tl.max(worth_TG, axis=1)
        group_T = tl.min(tl.where(worth_TG == best_T[:, None], g_G, BLOCK_G), axis=1)
        kept_TG |= g_G == group_T[:, None]
        worth_TG = tl.where(g_G == group_T[:, None], LOWEST, worth_TG)
    return tl.reshape(tl.where(kept_TG[:, :, None], key_TGM, _MINUS_INFINITY), key_TE.shape)
