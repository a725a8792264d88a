"""What one hyper-connection site makes of its mixing numbers z, in plain torch: a layer's input, and the new streams.

Contract: read = sum_k pre[k] X[k], write = post[k] * output + sum_j comb[j, k] X[j], with pre, post and comb of z as in
`hyper_ref`; both in the streams' dtype, computed in fp32. The head, whose z is pre alone, only reads. Whoever calls
often hands over base and scale `Cut`.
Live when: post and comb are computed in Python's floats for one token of four streams that comes with a `Cut`, on the
CPU, where so small an operation costs its calls. They differ from torch's by fp32 rounding.
"""

# T tokens, S streams, D model dim, M = (2 + S) * S mixing numbers, or S at the head.

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.hyper_ref import collapse_ref, postmix_ref, sinkhorn_of_four, sinkhorn_ref
from kernels.norm_ref import constant, rounded


class Cut(NamedTuple):
    """Base and scale of a site, once instead of at every call: tensors for pre, numbers for post and comb."""

    base_pre_S: Tensor
    scale_pre: Tensor
    base_rest: tuple[float, ...]
    scale_rest: tuple[float, ...]


def cut_of(base_M: Tensor, scale_3: Tensor, num_streams: int) -> Cut:
    _, scale_post, scale_comb = scale_3.tolist()
    scale_rest = (scale_post,) * num_streams + (scale_comb,) * num_streams**2
    return Cut(base_M[:num_streams], scale_3[0], tuple(base_M[num_streams:].tolist()), scale_rest)


def read_ref(
    streams_TSD: Tensor, z_TM: Tensor, base_M: Tensor, scale: Tensor, eps: float, cut: Cut | None = None
) -> Tensor:
    """The layer's input [T, D], by the first S numbers of z and base and the first of scale."""
    num = streams_TSD.shape[-2]
    base_S, scale_pre = (base_M[:num], scale[0]) if cut is None else (cut.base_pre_S, cut.scale_pre)
    logits_TS = torch.addcmul(base_S, scale_pre, z_TM[..., :num])
    return rounded(collapse_ref(streams_TSD, logits_TS.sigmoid_().add_(constant(eps, z_TM.device))), streams_TSD.dtype)


def write_ref(
    streams_TSD: Tensor,
    output_TD: Tensor,
    z_TM: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    iters: int,
    eps: float,
    cut: Cut | None = None,
) -> Tensor:
    """The new streams [T, S, D], by all numbers of z and base after the first S and the last two of scale."""
    num = streams_TSD.shape[-2]
    if cut is not None and z_TM.is_cpu and z_TM.numel() == z_TM.shape[-1] and num == 4 and eps > 0:
        post_TS, comb_TSS = _gates_of_four(z_TM, cut, iters, eps)
    else:
        _, base_post, base_comb = base_M.split((num, num, num * num))
        post_TS = 2 * torch.addcmul(base_post, scale_3[1], z_TM[..., num : 2 * num]).sigmoid()
        logits_TM = torch.addcmul(base_comb, scale_3[2], z_TM[..., 2 * num :])
        comb_TSS = sinkhorn_ref(logits_TM.unflatten(-1, (num, num)), iters, eps)
    return rounded(postmix_ref(streams_TSD, output_TD, post_TS, comb_TSS), streams_TSD.dtype)


def _gates_of_four(z_TM: Tensor, cut: Cut, iters: int, eps: float) -> tuple[Tensor, Tensor]:
    """post [T, 4] and comb [T, 4, 4] of the one token that z is of."""
    z_rest = z_TM.flatten().tolist()[4:]
    logits = [base + scale * z for base, scale, z in zip(cut.base_rest, cut.scale_rest, z_rest, strict=True)]
    # 2 * sigmoid(x), without an exponential that can overflow.
    post = [1 + math.tanh(0.5 * logit) for logit in logits[:4]]
    gates = np.array(post + sinkhorn_of_four(logits[4:], iters, eps), dtype=np.float32)
    gates_T5S = torch.from_numpy(gates).view(*z_TM.shape[:-1], 5, 4)
    return gates_T5S[..., 0, :], gates_T5S[..., 1:, :]
