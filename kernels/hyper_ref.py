"""Manifold-constrained hyper-connections in plain torch: pre-mix GEMM, Sinkhorn, stream mix.

Contract: z = RMS(flatten(X)) . fn^T over n streams, stream 0's channels first; split into pre n, post n, comb n x n.
pre = sigmoid(scale0 z + base) + eps; post = 2 sigmoid(scale1 z + base); comb = Sinkhorn(scale2 z + base), made doubly
stochastic with columns last. fp32 throughout: the GEMM's K is n * D, and its few outputs steer every stream.
Source: Hugging Face transformers 5.24, models/deepseek_v4.
"""

# T tokens, S streams, D model dim, M = (2 + S) * S mixing numbers.

from __future__ import annotations

import torch
from torch import Tensor

from kernels.errors import ShapeError


def premix_ref(streams_TSD: Tensor, fn_MK: Tensor, norm_eps: float) -> Tensor:
    """z float32 [T, M]: the weightless RMS norm of the flattened streams times fn^T, in fp32."""
    flat_TK = streams_TSD.flatten(-2).float()
    if fn_MK.shape[-1] != flat_TK.shape[-1]:
        raise ShapeError(f"hyper-connection matrix of width {fn_MK.shape[-1]}: expected {flat_TK.shape[-1]}")
    normed_TK = flat_TK * torch.rsqrt(flat_TK.square().mean(-1, keepdim=True) + norm_eps)
    return normed_TK @ fn_MK.float().T


def sinkhorn_ref(logits_TSS: Tensor, iters: int, eps: float) -> Tensor:
    """A doubly stochastic matrix per token: row softmax, then columns, then iters - 1 times rows and columns."""
    comb = logits_TSS.softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


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
    return (streams_TSD.float() * pre_TS[..., None]).sum(-2)


def postmix_ref(streams_TSD: Tensor, output_TD: Tensor, post_TS: Tensor, comb_TSS: Tensor) -> Tensor:
    """The new streams float32: post[k] * output + sum_j comb[j, k] * stream[j] (the FIRST index is summed)."""
    mixed_TSD = torch.einsum("...jk,...jd->...kd", comb_TSS, streams_TSD.float())
    return mixed_TSD + post_TS[..., None] * output_TD.float()[..., None, :]
