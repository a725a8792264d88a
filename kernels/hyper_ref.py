"""Manifold-constrained hyper-connections without a kernel: pre-mix GEMM, Sinkhorn (numpy on the CPU), stream mix.

Contract: z = RMS(flatten(X)) . fn^T over n streams, stream 0's channels first; split into pre n, post n, comb n x n.
pre = sigmoid(scale0 z + base) + eps; post = 2 sigmoid(scale1 z + base); comb = Sinkhorn(scale2 z + base), made doubly
stochastic with columns last. fp32 throughout: the GEMM's K is n * D, and its few outputs steer every stream.
Source: Hugging Face transformers 5.24, models/deepseek_v4.
"""

# T tokens, S streams, D model dim, M = (2 + S) * S mixing numbers.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.errors import ShapeError
from kernels.norm_ref import rms_norm_ref


def premix_ref(streams_TSD: Tensor, fn_MK: Tensor, norm_eps: float) -> Tensor:
    """z float32 [T, M]: the weightless RMS norm of the flattened streams times fn^T, in fp32."""
    flat_TK = streams_TSD.flatten(-2).float()
    if fn_MK.shape[-1] != flat_TK.shape[-1]:
        raise ShapeError(f"hyper-connection matrix of width {fn_MK.shape[-1]}: expected {flat_TK.shape[-1]}")
    normed_TK = rms_norm_ref(flat_TK, norm_eps)
    return normed_TK @ fn_MK.float().T


def sinkhorn_ref(logits_TSS: Tensor, iters: int, eps: float) -> Tensor:
    """A doubly stochastic matrix per token: row softmax, then columns, then iters - 1 times rows and columns.

    On the CPU numpy does it: most of the time of so small an operation is the call, which costs numpy a third of what
    it costs torch, and numpy never waits for a second thread.
    """
    # Softmax of the turned matrix: along the first axis torch, too, takes no second thread for a single token.
    soft_TSS = logits_TSS.mT.softmax(-2).mT
    if soft_TSS.device.type != "cpu":
        return _balance(soft_TSS, iters, eps, torch.matmul, torch.reciprocal)
    soft = soft_TSS.numpy()
    if soft.size == soft.shape[-1] ** 2:
        comb = _balance(soft.reshape(soft.shape[-2:]), iters, eps, np.dot, np.reciprocal)
    else:
        comb = _balance(soft, iters, eps, np.matmul, np.reciprocal)
    return torch.from_numpy(comb).view(logits_TSS.shape)


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
    return (streams_TSD.float() * pre_TS.unsqueeze(-1)).sum(-2)


def postmix_ref(streams_TSD: Tensor, output_TD: Tensor, post_TS: Tensor, comb_TSS: Tensor) -> Tensor:
    """The new streams float32: post[k] * output + sum_j comb[j, k] * stream[j] (the FIRST index is summed)."""
    mixed_TSD = comb_TSS.mT @ streams_TSD.float()
    return torch.addcmul(mixed_TSD, post_TS.unsqueeze(-1), output_TD.float().unsqueeze(-2))
