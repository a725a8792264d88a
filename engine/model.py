"""The model: embedding into equal residual streams, layers, the last mix, norm, vocabulary head.

Contract: a layer reads and writes the streams at two sites, attention and experts. The last layer works only at the
positions whose logits are wanted; its keys, entries and index keys are made for every token, so nothing that is
consumed changes.
"""

# B sequences, T new tokens, P query positions, S streams, D model dim, V vocabulary.

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.attention import Asked, Attention
from engine.cache import Cache, LayerCache
from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.events import Phase
from engine.hyper import HyperConnection, HyperHead
from engine.moe import MoE
from engine.projections import by_column
from engine.rope import Rope, make_ropes
from engine.settings import EngineSettings
from kernels import dispatch
from kernels.dispatch import Record

INDEX_DTYPES = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16, "fp32": torch.float32}


class Layer:
    def __init__(
        self,
        tensors: Tensors,
        config: ModelConfig,
        settings: EngineSettings,
        layer: int,
        routed_scaling_factor: float,
        ropes: Mapping[str, Rope],
    ) -> None:
        self.layer = layer
        self.attn_hc = HyperConnection(tensors.within("attn_hc"), config, settings.kernels)
        self.ffn_hc = HyperConnection(tensors.within("ffn_hc"), config, settings.kernels)
        self.input_norm = tensors.take("input_layernorm.weight", config.hidden_size)
        self.post_attention_norm = tensors.take("post_attention_layernorm.weight", config.hidden_size)
        index_dtype = INDEX_DTYPES[settings.index_keys]
        self.self_attn = Attention(tensors.within("self_attn"), config, layer, index_dtype, ropes, settings.kernels)
        self.mlp = MoE(tensors.within("mlp"), config, settings, layer, routed_scaling_factor)
        self.norm_eps, self.kernels = config.rms_norm_eps, settings.kernels

    def forward(
        self,
        streams_BTSD: Tensor,
        ids_BT: Tensor,
        cache: LayerCache,
        start: int,
        phase: Phase,
        queries_BP: Tensor | None,
    ) -> Tensor:
        """The streams after this layer, at the query positions only."""
        record = events.recorder(layer=self.layer, phase=phase)
        z_BTM, x_BTD = self._read(self.attn_hc, streams_BTSD, self.input_norm, record)
        output = self.self_attn.forward(x_BTD, cache, start, phase, queries_BP)
        if queries_BP is not None:
            streams_BTSD, z_BTM, ids_BT = (_at(t, queries_BP) for t in (streams_BTSD, z_BTM, ids_BT))
        return self._from_attention(output, streams_BTSD, z_BTM, ids_BT, phase, record)

    def until_attention(self, streams_B1SD: Tensor, phase: Phase) -> tuple[Tensor, Tensor, Asked]:
        """Of one token a sequence, all that comes before attention looks at the cache; the streams are passed on."""
        record = events.recorder(layer=self.layer, phase=phase)
        z_B1M, x_B1D = self._read(self.attn_hc, streams_B1SD, self.input_norm, record)
        return streams_B1SD, z_B1M, self.self_attn.ask(x_B1D, phase)

    def from_attention(
        self, out_B1HE: Tensor, streams_B1SD: Tensor, z_B1M: Tensor, ids_B1: Tensor, phase: Phase
    ) -> Tensor:
        """The streams after this layer, of what `attend_newest` gave."""
        record = events.recorder(layer=self.layer, phase=phase)
        return self._from_attention(self.self_attn.project(out_B1HE), streams_B1SD, z_B1M, ids_B1, phase, record)

    def _from_attention(
        self,
        output_BPD: Tensor,
        streams_BPSD: Tensor,
        z_BPM: Tensor,
        ids_BP: Tensor,
        phase: Phase,
        record: Record | None,
    ) -> Tensor:
        streams_BPSD = self.attn_hc.write(streams_BPSD, output_BPD, z_BPM, record)
        z_BPM, x_BPD = self._read(self.ffn_hc, streams_BPSD, self.post_attention_norm, record)
        output_BPD = self.mlp.forward(x_BPD.flatten(0, 1), ids_BP.flatten(), phase).view_as(x_BPD)
        return self.ffn_hc.write(streams_BPSD, output_BPD, z_BPM, record)

    def _read(
        self, site: HyperConnection, streams_BTSD: Tensor, weight_D: Tensor, record: Record | None
    ) -> tuple[Tensor, Tensor]:
        """The mixing numbers of a site and what it reads, as attention or the experts take it."""
        z_BTM = site.premix(streams_BTSD, record)
        return z_BTM, self.normed(site.read(streams_BTSD, z_BTM, record), weight_D, record)

    def normed(self, read_BTD: Tensor, weight_D: Tensor, record: Record | None) -> Tensor:
        """What a site read, as attention or the experts take it."""
        return dispatch.norm(read_BTD, self.norm_eps, weight_D, requested=self.kernels, record=record)


class Model:
    def __init__(
        self, tensors: Tensors, config: ModelConfig, settings: EngineSettings, routed_scaling_factor: float
    ) -> None:
        inner = tensors.within("model")
        self.config, self.kernels = config, settings.kernels
        self.embedding_VD = inner.matrix("embed_tokens.weight", config.vocab_size, config.hidden_size)
        ropes = make_ropes(config, tensors.device)
        self.layers = [
            Layer(inner.within(f"layers.{layer}"), config, settings, layer, routed_scaling_factor, ropes)
            for layer in range(config.num_hidden_layers)
        ]
        self.hc_head = HyperHead(inner.within("hc_head"), config, settings.kernels)
        self.norm = inner.take("norm.weight", config.hidden_size)
        self.head_VD = by_column(tensors.matrix("lm_head.weight", config.vocab_size, config.hidden_size))

    def new_cache(self, batch: int) -> Cache:
        return Cache(batch, [layer.self_attn.new_cache(batch) for layer in self.layers])

    def forward(self, ids_BT: Tensor, cache: Cache, phase: Phase, queries_BP: Tensor | None) -> Tensor:
        """Takes in T tokens of every sequence; logits float32 [B, P, V] at the asked ones of them, None for all."""
        with events.path_read_once():
            return self._forward(ids_BT, cache, phase, queries_BP)

    def _forward(self, ids_BT: Tensor, cache: Cache, phase: Phase, queries_BP: Tensor | None) -> Tensor:
        streams_BTSD = self.streams_of(ids_BT)
        for layer, layer_cache in zip(self.layers[:-1], cache.layers[:-1], strict=True):
            streams_BTSD = layer.forward(streams_BTSD, ids_BT, layer_cache, cache.length, phase, None)
        streams_BPSD = self.layers[-1].forward(streams_BTSD, ids_BT, cache.layers[-1], cache.length, phase, queries_BP)
        cache.length += ids_BT.shape[1]
        return self.logits_of(streams_BPSD, phase)

    def streams_of(self, ids_BT: Tensor) -> Tensor:
        """The streams [B, T, S, D] that the first layer reads: equal ones."""
        return F.embedding(ids_BT, self.embedding_VD)[:, :, None].expand(-1, -1, self.config.hc_mult, -1).contiguous()

    def logits_of(self, streams_BPSD: Tensor, phase: Phase) -> Tensor:
        """Logits float32 [B, P, V] of what the last layer wrote; routes call the last mix and norm one more layer."""
        record = events.recorder(layer=len(self.layers), phase=phase)
        hidden_BPD = self.hc_head.read(streams_BPSD, record)
        eps = self.config.rms_norm_eps
        normed_BPD = dispatch.norm(hidden_BPD, eps, self.norm, requested=self.kernels, record=record)
        return F.linear(normed_BPD, self.head_VD).float()


def _at(rows: Tensor, queries_BP: Tensor) -> Tensor:
    """The rows [B, T, ...] of the asked positions, [B, P, ...]."""
    index = queries_BP.view(*queries_BP.shape, *(1,) * (rows.ndim - 2)).expand(-1, -1, *rows.shape[2:])
    return rows.gather(1, index)
