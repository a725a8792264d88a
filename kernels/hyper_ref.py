"""Manifold-constrained hyper-connections without a kernel: pre-mix GEMM, Sinkhorn, stream mix.

Contract: z = RMS(flatten(X)) . fn^T over n streams, stream 0's channels first; split into pre n, post n, comb n x n.
pre = sigmoid(scale0 z + base) + eps; post = 2 sigmoid(scale1 z + base); comb = Sinkhorn(scale2 z + base), made doubly
stochastic with columns last. fp32 throughout: the GEMM's K is n * D, and its few outputs steer every stream.
Source: Hugging Face transformers 5.24, models/deepseek_v4.
"""

# T tokens, S streams, D model dim, M = (2 + S) * S mixing numbers.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.errors import ShapeError
from kernels.norm_ref import rms_norm_ref, rounded

# Columns that one iteration moves by less than this part of them stay as they are: what 20 more iterations could still
# move them by is of the size of fp32's rounding.
SETTLED = 1e-8


def premix_ref(streams_TSD: Tensor, fn_MK: Tensor, norm_eps: float) -> Tensor:
    """z float32 [T, M]: the weightless RMS norm of the flattened streams times fn^T, in fp32."""
    flat_TK = rounded(streams_TSD.flatten(-2), torch.float32)
    if fn_MK.shape[-1] != flat_TK.shape[-1]:
        raise ShapeError(f"hyper-connection matrix of width {fn_MK.shape[-1]}: expected {flat_TK.shape[-1]}")
    normed_TK = rms_norm_ref(flat_TK, norm_eps)
    return F.linear(normed_TK, rounded(fn_MK, torch.float32))


def sinkhorn_ref(logits_TSS: Tensor, iters: int, eps: float) -> Tensor:
    """A doubly stochastic matrix per token: row softmax, then columns, then iters - 1 times rows and columns.

    On the CPU numpy does it: most of the time of so small an operation is the call, which costs numpy a third of what
    it costs torch, and numpy never waits for a second thread.
    """
    # Softmax of the turned matrix: along the first axis torch, too, takes no second thread for a few tokens.
    soft_TSS = logits_TSS.mT.softmax(-2).mT
    if soft_TSS.device.type != "cpu":
        return _balance(soft_TSS, iters, eps, torch.matmul, torch.reciprocal)
    return torch.from_numpy(_balance(soft_TSS.numpy(), iters, eps, np.matmul, np.reciprocal))


def sinkhorn_of_four(logits: list[float], iters: int, eps: float) -> list[float]:
    """The same for one token of four streams: 16 numbers in, 16 out, row by row, in Python's floats and without a call.

    Entries are named by row and column; r0 to r3 scale the rows and c0 to c3 the columns, as in `_balance`. eps must be
    above 0: then no divisor is 0. Once rows and columns no longer move each other, further iterations are left out.
    """
    k00, k01, k02, k03 = _softmax_of_four(logits[0:4], eps)
    k10, k11, k12, k13 = _softmax_of_four(logits[4:8], eps)
    k20, k21, k22, k23 = _softmax_of_four(logits[8:12], eps)
    k30, k31, k32, k33 = _softmax_of_four(logits[12:16], eps)
    r0 = r1 = r2 = r3 = 1.0
    c0, c1 = 1 / (k00 + k10 + k20 + k30 + eps), 1 / (k01 + k11 + k21 + k31 + eps)
    c2, c3 = 1 / (k02 + k12 + k22 + k32 + eps), 1 / (k03 + k13 + k23 + k33 + eps)
    for _ in range(iters - 1):
        b0, b1, b2, b3 = c0, c1, c2, c3
        r0 = 1 / (k00 * c0 + k01 * c1 + k02 * c2 + k03 * c3)
        r1 = 1 / (k10 * c0 + k11 * c1 + k12 * c2 + k13 * c3)
        r2 = 1 / (k20 * c0 + k21 * c1 + k22 * c2 + k23 * c3)
        r3 = 1 / (k30 * c0 + k31 * c1 + k32 * c2 + k33 * c3)
        c0 = 1 / (k00 * r0 + k10 * r1 + k20 * r2 + k30 * r3)
        c1 = 1 / (k01 * r0 + k11 * r1 + k21 * r2 + k31 * r3)
        c2 = 1 / (k02 * r0 + k12 * r1 + k22 * r2 + k32 * r3)
        c3 = 1 / (k03 * r0 + k13 * r1 + k23 * r2 + k33 * r3)
        if (
            abs(c0 - b0) < SETTLED * c0
            and abs(c1 - b1) < SETTLED * c1
            and abs(c2 - b2) < SETTLED * c2
            and abs(c3 - b3) < SETTLED * c3
        ):
            break
    if iters > 1:
        # The last division has its eps: b / (b * sum + eps), where b are the columns before it and c = 1 / sum.
        c0, c1 = c0 / (1 + eps * c0 / b0), c1 / (1 + eps * c1 / b1)
        c2, c3 = c2 / (1 + eps * c2 / b2), c3 / (1 + eps * c3 / b3)
    return [
        *(k00 * r0 * c0, k01 * r0 * c1, k02 * r0 * c2, k03 * r0 * c3),
        *(k10 * r1 * c0, k11 * r1 * c1, k12 * r1 * c2, k13 * r1 * c3),
        *(k20 * r2 * c0, k21 * r2 * c1, k22 * r2 * c2, k23 * r2 * c3),
        *(k30 * r3 * c0, k31 * r3 * c1, k32 * r3 * c2, k33 * r3 * c3),
    ]


def _softmax_of_four(logits: list[float], eps: float) -> tuple[float, float, float, float]:
    """Softmax of four numbers, plus eps."""
    a, b, c, d = logits
    peak = max(logits)
    a, b, c, d = math.exp(a - peak), math.exp(b - peak), math.exp(c - peak), math.exp(d - peak)
    factor = 1 / (a + b + c + d)
    return a * factor + eps, b * factor + eps, c * factor + eps, d * factor + eps


def _balance(soft_TSS: Any, iters: int, eps: float, product: Callable[..., Any], reciprocal: Callable[..., Any]) -> Any:
    """Columns, then iters - 1 times rows and columns, divided by their sums; in numpy or torch, by the functions given.

    The divisions only scale rows and columns, so two vectors are iterated and not the matrix: comb = r * soft * c, with
    r = 1 / (soft c) after the rows and c = 1 / (soft^T r) after the columns. Each sum has eps added before it divides.
    In all but the first and the last division that moves the result by less than 1e-6, and is left out.
    """
    soft_TSS = soft_TSS + eps
    turned_TSS = soft_TSS.mT
    columns_TS1 = 1 / (soft_TSS.sum(-2)[..., None] + eps)
    if iters == 1:
        return soft_TSS * columns_TS1.mT
    rows_TS1 = columns_TS1 + 0
    for _ in range(iters - 2):
        reciprocal(product(soft_TSS, columns_TS1, out=rows_TS1), out=rows_TS1)
        reciprocal(product(turned_TSS, rows_TS1, out=columns_TS1), out=columns_TS1)
    reciprocal(product(soft_TSS, columns_TS1, out=rows_TS1), out=rows_TS1)
    # c / (c * sum + eps), where c are the columns so far.
    columns_TS1 = 1 / (product(turned_TSS, rows_TS1) + eps / columns_TS1)
    return soft_TSS * rows_TS1 * columns_TS1.mT


def split_ref(
    z_TM: Tensor, base_M: Tensor, scale_3: Tensor, num_streams: int, iters: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """pre [T, S], post [T, S] and comb [T, S, S], float32, of the mixing numbers z."""
    s = num_streams
    sizes = (s, s, s * s)
    z_pre, z_post, z_comb = z_TM.split(sizes, dim=-1)
    base_pre, base_post, base_comb = base_M.float().split(sizes)
    pre_TS = torch.sigmoid(scale_3[0] * z_pre + base_pre) + eps
    post_TS = 2 * torch.sigmoid(scale_3[1] * z_post + base_post)
    comb_TSS = sinkhorn_ref((scale_3[2] * z_comb + base_comb).unflatten(-1, (s, s)), iters, eps)
    return pre_TS, post_TS, comb_TSS


def collapse_ref(streams_TSD: Tensor, pre_TS: Tensor) -> Tensor:
    """The layer's input float32 [T, D]: the streams weighed by pre."""
    return (rounded(streams_TSD, torch.float32) * pre_TS.unsqueeze(-1)).sum(-2)


def postmix_ref(streams_TSD: Tensor, output_TD: Tensor, post_TS: Tensor, comb_TSS: Tensor) -> Tensor:
    """The new streams float32: post[k] * output + sum_j comb[j, k] * stream[j] (the FIRST index is summed)."""
    mixed_TSD = comb_TSS.mT @ rounded(streams_TSD, torch.float32)
    return torch.addcmul(mixed_TSD, post_TS.unsqueeze(-1), rounded(output_TD, torch.float32).unsqueeze(-2))


def postmix_of_one_ref(streams_SD: Tensor, output_1D: Tensor, gates_5S: Tensor) -> Tensor:
    """The same for one token of four streams, whose gates are post [1, S] above comb [S, S]: one product."""
    rows_5D = torch.cat((rounded(output_1D, torch.float32), rounded(streams_SD, torch.float32)))
    return torch.mm(gates_5S.mT, rows_5D)
