"""Hyper-connections: a layer reads a weighed mix of the residual streams and writes back into a remixed set of them.

Contract: per site, z = RMS(flatten(X)) . fn^T gives pre [S], post [S] and comb [S, S]; the layer reads sum_k pre[k]
X[k] and X'[k] = post[k] * output + sum_j comb[j, k] * X[j] (the FIRST index of comb is summed). All of it in fp32.
"""

# B sequences, T tokens, P query positions, S streams, D model dim, M = (2 + S) * S mixing numbers.

from __future__ import annotations

import torch
from torch import Tensor

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from kernels.hyper_ref import collapse_ref, postmix_ref, premix_ref, sinkhorn_ref


class HyperConnection:
    """One site (before attention, or before the experts) of one layer."""

    def __init__(self, tensors: Tensors, config: ModelConfig) -> None:
        self.num_streams = config.hc_mult
        num_mixes = (2 + config.hc_mult) * config.hc_mult
        self.fn_MK = tensors.take("fn", num_mixes, config.hc_mult * config.hidden_size)
        self.base_M = tensors.take("base", num_mixes)
        self.scale_3 = tensors.take("scale", 3)
        self.sinkhorn_iters = config.hc_sinkhorn_iters
        self.eps = config.hc_eps
        self.norm_eps = config.rms_norm_eps

    def premix(self, streams_BTSD: Tensor) -> Tensor:
        """The mixing numbers z float32 [B, T, M]."""
        return premix_ref(streams_BTSD, self.fn_MK, self.norm_eps)

    def read(self, streams_BTSD: Tensor, z_BTM: Tensor) -> Tensor:
        """The layer's input [B, T, D]."""
        num = self.num_streams
        pre_BTS = torch.sigmoid(self.scale_3[0] * z_BTM[..., :num] + self.base_M[:num]) + self.eps
        return collapse_ref(streams_BTSD, pre_BTS)

    def write(self, streams_BPSD: Tensor, output_BPD: Tensor, z_BPM: Tensor) -> Tensor:
        """The new streams [B, P, S, D], at the positions that go on."""
        num = self.num_streams
        post_BPS = 2 * torch.sigmoid(self.scale_3[1] * z_BPM[..., num : 2 * num] + self.base_M[num : 2 * num])
        logits_BPSS = (self.scale_3[2] * z_BPM[..., 2 * num :] + self.base_M[2 * num :]).unflatten(-1, (num, num))
        comb_BPSS = sinkhorn_ref(logits_BPSS, self.sinkhorn_iters, self.eps)
        return postmix_ref(streams_BPSD, output_BPD, post_BPS, comb_BPSS)


class HyperHead:
    """The last mix: streams to one vector, without post and comb."""

    def __init__(self, tensors: Tensors, config: ModelConfig) -> None:
        self.fn_SK = tensors.take("hc_fn", config.hc_mult, config.hc_mult * config.hidden_size)
        self.base_S = tensors.take("hc_base", config.hc_mult)
        self.scale_1 = tensors.take("hc_scale", 1)
        self.eps = config.hc_eps
        self.norm_eps = config.rms_norm_eps

    def read(self, streams_BPSD: Tensor) -> Tensor:
        z_BPS = premix_ref(streams_BPSD, self.fn_SK, self.norm_eps)
        return collapse_ref(streams_BPSD, torch.sigmoid(self.scale_1 * z_BPS + self.base_S) + self.eps)
