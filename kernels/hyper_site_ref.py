"""What one hyper-connection site makes of its mixing numbers z, in plain torch: a layer's input, and the new streams.

Contract: read = sum_k pre[k] X[k], write = post[k] * output + sum_j comb[j, k] X[j], with pre, post and comb of z as in
`hyper_ref`; both in the streams' dtype, computed in fp32. The head, whose z is pre alone, only reads. Whoever calls
often hands over base and scale `Cut`; they then are not looked at.
"""

# T tokens, S streams, D model dim, M = (2 + S) * S mixing numbers, or S at the head.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.hyper_ref import collapse_ref, postmix_ref, sinkhorn_ref
from kernels.norm_ref import constant, rounded


class Cut(NamedTuple):
    """Base and scale of a site cut for pre, post and comb, once instead of at every call."""

    base_pre: Tensor
    base_post: Tensor
    base_comb: Tensor
    scale_pre: Tensor
    scale_post: Tensor
    scale_comb: Tensor


def cut_of(base_M: Tensor, scale_3: Tensor, num_streams: int) -> Cut:
    return Cut(*base_M.split((num_streams, num_streams, num_streams**2)), *scale_3)


def read_ref(
    streams_TSD: Tensor, z_TM: Tensor, base_M: Tensor, scale: Tensor, eps: float, cut: Cut | None = None
) -> Tensor:
    """The layer's input [T, D], by the first S numbers of z and base and the first of scale."""
    num = streams_TSD.shape[-2]
    base_pre, scale_pre = (base_M[:num], scale[0]) if cut is None else (cut.base_pre, cut.scale_pre)
    logits_TS = torch.addcmul(base_pre, scale_pre, z_TM[..., :num])
    return rounded(collapse_ref(streams_TSD, logits_TS.sigmoid() + constant(eps, z_TM.device)), streams_TSD.dtype)


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
    cut = cut_of(base_M, scale_3, num) if cut is None else cut
    post_TS = torch.addcmul(cut.base_post, cut.scale_post, z_TM[..., num : 2 * num]).sigmoid()
    logits_TM = torch.addcmul(cut.base_comb, cut.scale_comb, z_TM[..., 2 * num :])
    logits_TSS = logits_TM.view(*z_TM.shape[:-1], num, num)
    comb_TSS = sinkhorn_ref(logits_TSS, iters, eps)
    return rounded(postmix_ref(streams_TSD, output_TD, post_TS + post_TS, comb_TSS), streams_TSD.dtype)
