"""One pass over stretches of several sequences, each with its own cache, position and phase.

Contract: everything that works token by token (mixes, norms, experts, head) runs once for all of them, the experts once
per phase; attention runs per sequence. A sequence's numbers are those it would have alone, up to the order in which a
matrix product of other height adds up.
"""

# N tokens of all segments, T tokens of one, S streams, D model dim, V vocabulary.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.cache import Cache
from engine.events import Phase
from engine.model import Layer, Model
from engine.moe import MoE
from engine.norm import rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """New tokens of one sequence; its cache has batch 1 and grows by them."""

    cache: Cache
    ids_T: Tensor
    phase: Phase


@torch.inference_mode()
def forward_ragged(model: Model, segments: list[Segment]) -> Tensor:
    """Takes the tokens of every segment in; the logits [number of segments, V] that follow each one's last token."""
    ids_N = torch.cat([segment.ids_T for segment in segments])
    sizes = [len(segment.ids_T) for segment in segments]
    decode_N = torch.cat([torch.full((len(s.ids_T),), s.phase == "decode", device=ids_N.device) for s in segments])
    streams_1NSD = model.embedding_VD[ids_N][None, :, None].expand(-1, -1, model.config.hc_mult, -1)
    for number, layer in enumerate(model.layers):
        streams_1NSD = _attend(layer, number, streams_1NSD, segments, sizes)
        z_1NM = layer.ffn_hc.premix(streams_1NSD)
        x_1ND = rms_norm(layer.ffn_hc.read(streams_1NSD, z_1NM), layer.post_attention_norm, layer.norm_eps)
        output_1ND = _experts(layer.mlp, x_1ND[0], ids_N, decode_N)[None]
        streams_1NSD = layer.ffn_hc.write(streams_1NSD, output_1ND, z_1NM)
    for segment in segments:
        segment.cache.length += len(segment.ids_T)
    last = torch.tensor(sizes, device=ids_N.device).cumsum(0) - 1
    hidden = rms_norm(model.hc_head.read(streams_1NSD[:, last]), model.norm, model.config.rms_norm_eps)
    return F.linear(hidden[0], model.head_VD)


def _attend(layer: Layer, number: int, streams_1NSD: Tensor, segments: list[Segment], sizes: list[int]) -> Tensor:
    z_1NM = layer.attn_hc.premix(streams_1NSD)
    x_1ND = rms_norm(layer.attn_hc.read(streams_1NSD, z_1NM), layer.input_norm, layer.norm_eps)
    outputs = [
        layer.self_attn.forward(x_1TD, segment.cache.layers[number], segment.cache.length, segment.phase, None)
        for x_1TD, segment in zip(x_1ND.split(sizes, 1), segments, strict=True)
    ]
    return layer.attn_hc.write(streams_1NSD, torch.cat(outputs, 1), z_1NM)


def _experts(mlp: MoE, x_ND: Tensor, ids_N: Tensor, decode_N: Tensor) -> Tensor:
    output_ND = torch.empty_like(x_ND)
    phases: tuple[tuple[Phase, Tensor], ...] = (("prefill", ~decode_N), ("decode", decode_N))
    for phase, mine_N in phases:
        if mine_N.any():
            output_ND[mine_N] = mlp.forward(x_ND[mine_N], ids_N[mine_N], phase)
    return output_ND
