"""One pass over stretches of several sequences, each with its own cache, position and phase.

Contract: everything that works token by token (mixes, norms, experts, head) runs once for all of them, the experts once
per phase; attention runs per sequence. A sequence's numbers are those it would have alone, up to the order in which a
matrix product of other height adds up.
"""

# N tokens of all segments, R of one phase, T of one segment, S streams, D model dim, V vocabulary.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine import events
from engine.cache import Cache
from engine.events import Phase
from engine.model import Layer, Model
from engine.moe import MoE
from kernels.dispatch import Record


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
    rows_of = _rows_by_phase(segments, ids_N.device)
    # What runs once for all tokens is named after the phase of the heavier ones.
    phase: Phase = "prefill" if "prefill" in rows_of else "decode"
    streams_1NSD = model.streams_of(ids_N[None])
    for layer in model.layers:
        record = events.recorder(layer=layer.layer, phase=phase)
        streams_1NSD = _attend(layer, streams_1NSD, segments, sizes, record)
        z_1NM = layer.ffn_hc.premix(streams_1NSD, record)
        x_1ND = layer.normed(layer.ffn_hc.read(streams_1NSD, z_1NM, record), layer.post_attention_norm, record)
        output_1ND = _experts(layer.mlp, x_1ND[0], ids_N, rows_of)[None]
        streams_1NSD = layer.ffn_hc.write(streams_1NSD, output_1ND, z_1NM, record)
    for segment in segments:
        segment.cache.length += len(segment.ids_T)
    last = torch.tensor(sizes, device=ids_N.device).cumsum(0) - 1
    return model.logits_of(streams_1NSD[:, last], phase)[0]


def _attend(
    layer: Layer, streams_1NSD: Tensor, segments: list[Segment], sizes: list[int], record: Record | None
) -> Tensor:
    z_1NM = layer.attn_hc.premix(streams_1NSD, record)
    x_1ND = layer.normed(layer.attn_hc.read(streams_1NSD, z_1NM, record), layer.input_norm, record)
    outputs = [
        layer.self_attn.forward(x_1TD, segment.cache.layers[layer.layer], segment.cache.length, segment.phase, None)
        for x_1TD, segment in zip(x_1ND.split(sizes, 1), segments, strict=True)
    ]
    return layer.attn_hc.write(streams_1NSD, torch.cat(outputs, 1), z_1NM, record)


def _rows_by_phase(segments: list[Segment], device: torch.device) -> dict[Phase, Tensor]:
    """Which of all tokens belong to segments of a phase, for the phases that there are."""
    rows: dict[Phase, list[int]] = {}
    first = 0
    for segment in segments:
        rows.setdefault(segment.phase, []).extend(range(first, first + len(segment.ids_T)))
        first += len(segment.ids_T)
    return {phase: torch.tensor(numbers, device=device) for phase, numbers in sorted(rows.items(), reverse=True)}


def _experts(mlp: MoE, x_ND: Tensor, ids_N: Tensor, rows_of: dict[Phase, Tensor]) -> Tensor:
    output_ND = torch.empty_like(x_ND)
    for phase, rows_R in rows_of.items():
        output_ND[rows_R] = mlp.forward(x_ND[rows_R], ids_N[rows_R], phase).to(x_ND.dtype)
    return output_ND
