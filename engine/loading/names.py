"""Tensor names: Hugging Face's `state_dict` names are ours, DeepSeek's own names are understood.

Contract: `locate` says which tensor of the model a stored one belongs to and which part of it is: the weight, or one of
the scales beside it. The spelling that transformers' `save_pretrained` writes, half of each, is understood as well.
`original_name` goes the other way, for the exporter.
Source: deepseek-ai DeepSeek-V4 `inference/model.py` (parameter names); transformers `conversion_mapping.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

# Hugging Face name -> DeepSeek's, below `model.layers.N.` and `layers.N.`; `.weight` is left out where both have it.
_ATTENTION = {
    "self_attn.q_a_proj": "attn.wq_a",
    "self_attn.q_a_norm": "attn.q_norm",
    "self_attn.q_b_proj": "attn.wq_b",
    "self_attn.kv_proj": "attn.wkv",
    "self_attn.kv_norm": "attn.kv_norm",
    "self_attn.o_a_proj": "attn.wo_a",
    "self_attn.o_b_proj": "attn.wo_b",
    "self_attn.sinks": "attn.attn_sink",
    "self_attn.compressor.kv_proj": "attn.compressor.wkv",
    "self_attn.compressor.gate_proj": "attn.compressor.wgate",
    "self_attn.compressor.position_bias": "attn.compressor.ape",
    "self_attn.compressor.kv_norm": "attn.compressor.norm",
    "self_attn.compressor.indexer.q_b_proj": "attn.indexer.wq_b",
    "self_attn.compressor.indexer.scorer.weights_proj": "attn.indexer.weights_proj",
    "self_attn.compressor.indexer.kv_proj": "attn.indexer.compressor.wkv",
    "self_attn.compressor.indexer.gate_proj": "attn.indexer.compressor.wgate",
    "self_attn.compressor.indexer.position_bias": "attn.indexer.compressor.ape",
    "self_attn.compressor.indexer.kv_norm": "attn.indexer.compressor.norm",
}
_EXPERTS = {
    "mlp.gate": "ffn.gate",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
    "mlp.gate.tid2eid": "ffn.gate.tid2eid",
    "mlp.experts.gate_up_proj": "ffn.experts.gate_up_proj",
    "mlp.experts.down_proj": "ffn.experts.down_proj",
    "mlp.shared_experts.gate_proj": "ffn.shared_experts.w1",
    "mlp.shared_experts.up_proj": "ffn.shared_experts.w3",
    "mlp.shared_experts.down_proj": "ffn.shared_experts.w2",
}
_AROUND = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"{site}_hc.{name}": f"hc_{site}_{name}" for site in ("attn", "ffn") for name in ("fn", "base", "scale")},
}
_LAYER = _ATTENTION | _EXPERTS | _AROUND
_TOP = {
    "model.embed_tokens": "embed",
    "model.norm": "norm",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.hc_head.hc_scale": "hc_head_scale",
    "lm_head": "head",
}
# DeepSeek's w1 is the gate, w3 the up and w2 the down projection.
EXPERT_PROJECTIONS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}

_LAYER_OF = {theirs: ours for ours, theirs in _LAYER.items()} | {"attn.norm": "self_attn.kv_norm"}
_TOP_OF = {theirs: ours for ours, theirs in _TOP.items()}
_PROJECTION_OF = {theirs: ours for ours, theirs in EXPERT_PROJECTIONS.items()}

# What may stand beside a weight, longest first; a fused expert tensor joins them with an underscore.
PARTS = (
    "weight_global_scale",
    "input_global_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_packed",
    "weight_scale",
    "input_scale",
    "scale_inv",
    "weight",
    "scale",
)
_EXPERT = re.compile(r"(?:mlp|ffn)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.(\w+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stored tensor belongs: `name` in the model, `part` of it, and which `half` of which `expert`."""

    name: str
    part: str = "weight"
    expert: int | None = None
    half: int = 0


def locate(stored: str, expected: Collection[str]) -> Place | None:
    """The place of a stored tensor among the `expected` names, None if it has none there."""
    for name in _spellings(stored):
        if name in expected:
            return Place(name)
    inner = stored.removeprefix("model.")
    layer = re.match(r"layers\.(\d+)\.(.+)", inner)
    if layer and (expert := _EXPERT.fullmatch(layer[2])):
        projection = _PROJECTION_OF.get(expert[2], expert[2])
        fused = "down_proj" if projection == "down_proj" else "gate_up_proj"
        name = f"model.layers.{layer[1]}.mlp.experts.{fused}"
        if name not in expected or expert[3] not in PARTS:
            return None
        return Place(name, expert[3], int(expert[1]), int(projection == "up_proj"))
    for part in PARTS:
        for joint in (".", "_"):
            if stored.endswith(joint + part):
                weight = stored.removesuffix(joint + part) + (".weight" if joint == "." else "")
                for name in _spellings(weight):
                    if name in expected:
                        return Place(name, part)
    return None


def is_extra_block(stored: str, num_hidden_layers: int) -> bool:
    """Whether a tensor belongs to a multi-token-prediction block, which this engine does not build."""
    inner = stored.removeprefix("model.")
    layer = re.match(r"layers\.(\d+)\.", inner)
    return inner.startswith("mtp.") or bool(layer and int(layer[1]) >= num_hidden_layers)


def original_name(name: str) -> str:
    """DeepSeek's name of a tensor with a Hugging Face name."""
    stem, weight = (name.removesuffix(".weight"), ".weight") if name.endswith(".weight") else (name, "")
    layer = re.match(r"model\.(layers\.\d+\.)(.+)", stem)
    return layer[1] + _LAYER[layer[2]] + weight if layer else _TOP[stem] + weight


def _spellings(stored: str) -> list[str]:
    """The Hugging Face names a stored name can stand for: itself, and its translation."""
    inner = stored.removeprefix("model.")
    stem, weight = (inner.removesuffix(".weight"), ".weight") if inner.endswith(".weight") else (inner, "")
    layer = re.match(r"(layers\.\d+\.)(.+)", stem)
    names = [stored]
    if layer:
        names.append(f"model.{layer[1]}{_LAYER_OF.get(layer[2], layer[2])}{weight}")
    else:
        names += [f"model.{inner}", _TOP_OF.get(stem, stem) + weight]
    return names
