"""Hyper-connections: a layer reads a weighed mix of the residual streams and writes back into a remixed set of them.

Contract: per site, z = RMS(flatten(X)) . fn^T gives pre [S], post [S] and comb [S, S]; the layer reads sum_k pre[k]
X[k] and X'[k] = post[k] * output + sum_j comb[j, k] * X[j] (the FIRST index of comb is summed). All of it in fp32; what
is read and written is rounded to the streams' type.
"""

# B sequences, T tokens, P query positions, S streams, D model dim, M = (2 + S) * S mixing numbers.
# K = S * D; fn_MK and fn_SK have a first axis of three parts where a kernel takes them so.

from __future__ import annotations

from torch import Tensor

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.settings import Kernels
from kernels import dispatch
from kernels.dispatch import Record
from kernels.dispatch_hyper import hyper_matrix
from kernels.hyper_site_ref import cut_of


class HyperConnection:
    """One site (before attention, or before the experts) of one layer; `record` hears what the dispatcher picked."""

    def __init__(self, tensors: Tensors, config: ModelConfig, kernels: Kernels) -> None:
        num_mixes = (2 + config.hc_mult) * config.hc_mult
        fn_MK = tensors.take("fn", num_mixes, config.hc_mult * config.hidden_size)
        self.fn_MK = hyper_matrix(fn_MK, tensors.dtype, kernels)
        self.base_M = tensors.take("base", num_mixes)
        self.scale_3 = tensors.take("scale", 3)
        self.cut = cut_of(self.base_M, self.scale_3, config.hc_mult)
        self.sinkhorn_iters = config.hc_sinkhorn_iters
        self.eps, self.norm_eps, self.kernels = config.hc_eps, config.rms_norm_eps, kernels

    def premix(self, streams_BTSD: Tensor, record: Record | None) -> Tensor:
        """The mixing numbers z float32 [B, T, M]."""
        return dispatch.hyper_premix(streams_BTSD, self.fn_MK, self.norm_eps, requested=self.kernels, record=record)

    def read(self, streams_BTSD: Tensor, z_BTM: Tensor, record: Record | None) -> Tensor:
        """The layer's input [B, T, D]."""
        return dispatch.hyper_read(
            streams_BTSD,
            z_BTM,
            self.base_M,
            self.scale_3,
            self.eps,
            cut=self.cut,
            requested=self.kernels,
            record=record,
        )

    def write(self, streams_BPSD: Tensor, output_BPD: Tensor, z_BPM: Tensor, record: Record | None) -> Tensor:
        """The new streams [B, P, S, D], at the positions that go on."""
        return dispatch.hyper_write(
            streams_BPSD,
            output_BPD,
            z_BPM,
            self.base_M,
            self.scale_3,
            self.sinkhorn_iters,
            self.eps,
            cut=self.cut,
            requested=self.kernels,
            record=record,
        )


class HyperHead:
    """The last mix: streams to one vector, without post and comb."""

    def __init__(self, tensors: Tensors, config: ModelConfig, kernels: Kernels) -> None:
        fn_SK = tensors.take("hc_fn", config.hc_mult, config.hc_mult * config.hidden_size)
        self.fn_SK = hyper_matrix(fn_SK, tensors.dtype, kernels)
        self.base_S = tensors.take("hc_base", config.hc_mult)
        self.scale_1 = tensors.take("hc_scale", 1)
        self.eps, self.norm_eps, self.kernels = config.hc_eps, config.rms_norm_eps, kernels

    def read(self, streams_BPSD: Tensor, record: Record | None) -> Tensor:
        z_BPS = dispatch.hyper_premix(streams_BPSD, self.fn_SK, self.norm_eps, requested=self.kernels, record=record)
        return dispatch.hyper_read(
            streams_BPSD, z_BPS, self.base_S, self.scale_1, self.eps, requested=self.kernels, record=record
        )
