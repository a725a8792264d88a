"""What one hyper-connection site makes of its mixing numbers z, in plain torch: a layer's input, and the new streams.

Contract: read = sum_k pre[k] X[k], write = post[k] * output + sum_j comb[j, k] X[j], with pre, post and comb of z as in
`hyper_ref`; both in the streams' dtype, computed in fp32. The head, whose z is pre alone, only reads. Whoever calls
often hands over base and scale `Cut`.
Live when: `read_ref` and `write_ref` take one token of four streams that comes with a `Cut`, on the CPU, as a matrix of
streams, and compute pre, post and comb in Python's floats: so small an operation costs its calls. The results differ by
fp32 rounding.
"""

# T tokens, S streams, D model dim, M = (2 + S) * S mixing numbers, or S at the head.

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.hyper_ref import collapse_ref, postmix_of_one_ref, postmix_ref, sinkhorn_of_four, sinkhorn_ref
from kernels.norm_ref import constant, rounded


class Cut(NamedTuple):
    """Base and scale of each mixing number of a site, as numbers, once instead of at every call."""

    base: tuple[float, ...]
    scale: tuple[float, ...]


def cut_of(base_M: Tensor, scale_3: Tensor, num_streams: int) -> Cut:
    scale_pre, scale_post, scale_comb = scale_3.tolist()
    scale = (scale_pre,) * num_streams + (scale_post,) * num_streams + (scale_comb,) * num_streams**2
    return Cut(tuple(base_M.tolist()), scale)


def read_ref(
    streams_TSD: Tensor, z_TM: Tensor, base_M: Tensor, scale: Tensor, eps: float, cut: Cut | None = None
) -> Tensor:
    """The layer's input [T, D], by the first S numbers of z and base and the first of scale."""
    num = streams_TSD.shape[-2]
    if cut is not None and _is_one_of_four(z_TM, num, eps):
        pre_1S = torch.from_numpy(np.array([_pre_of_four(z_TM, cut, eps)], dtype=np.float32))
        read_1D = torch.mm(pre_1S, rounded(streams_TSD.view(num, -1), torch.float32))
        return rounded(read_1D.view(*z_TM.shape[:-1], -1), streams_TSD.dtype)
    logits_TS = torch.addcmul(base_M[:num], scale[0], z_TM[..., :num])
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
    if cut is not None and _is_one_of_four(z_TM, num, eps):
        gates_5S = _gates_of_four(z_TM, cut, iters, eps)
        mixed_SD = postmix_of_one_ref(streams_TSD.view(num, -1), output_TD.view(1, -1), gates_5S)
        return rounded(mixed_SD.view_as(streams_TSD), streams_TSD.dtype)
    _, base_post, base_comb = base_M.split((num, num, num * num))
    post_TS = 2 * torch.addcmul(base_post, scale_3[1], z_TM[..., num : 2 * num]).sigmoid()
    logits_TM = torch.addcmul(base_comb, scale_3[2], z_TM[..., 2 * num :])
    comb_TSS = sinkhorn_ref(logits_TM.unflatten(-1, (num, num)), iters, eps)
    return rounded(postmix_ref(streams_TSD, output_TD, post_TS, comb_TSS), streams_TSD.dtype)


def _is_one_of_four(z_TM: Tensor, num_streams: int, eps: float) -> bool:
    """Whether z is of one token of four streams on the CPU."""
    return num_streams == 4 and z_TM.is_cpu and z_TM.numel() == z_TM.shape[-1] and eps > 0


def _pre_of_four(z_TM: Tensor, cut: Cut, eps: float) -> list[float]:
    """pre of the one token that z is of."""
    z_pre = z_TM.view(-1).tolist()[:4]
    return [
        0.5 + 0.5 * math.tanh(0.5 * (base + scale * z)) + eps
        for base, scale, z in zip(cut.base, cut.scale, z_pre, strict=False)
    ]


def _gates_of_four(z_TM: Tensor, cut: Cut, iters: int, eps: float) -> Tensor:
    """post [1, 4] above comb [4, 4] of the one token that z is of."""
    logits = [base + scale * z for base, scale, z in zip(cut.base, cut.scale, z_TM.view(-1).tolist(), strict=True)]
    # 2 * sigmoid(x), without an exponential that can overflow.
    post = [1 + math.tanh(0.5 * logit) for logit in logits[4:8]]
    gates_5S = np.array(post + sinkhorn_of_four(logits[8:], iters, eps), dtype=np.float32).reshape(5, 4)
    return torch.from_numpy(gates_5S)
