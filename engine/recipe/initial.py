"""Untrained weights that the recipe starts from.

Contract: Hugging Face names, fp32. The hyper-connection biases are drawn wide and without symmetry on purpose: with
biases near zero all streams stay alike, and a model trained from there cannot tell the mixing from its transpose.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.config import CSA, SLIDING, ModelConfig

EMBEDDING_STD = 0.5
DOWN_PROJECTION_GAIN = 0.3
SINK_STD = 0.5
POSITION_BIAS_STD = 0.3
HYPER_FN_STD = 0.02
STREAM_BIAS_STD = 1.5
MIX_BIAS_STD = 1.5
CORRECTION_BIAS_STD = 0.05

BUFFERS = ("tid2eid", "e_score_correction_bias")  # drawn once, never trained


def initial_params(config: ModelConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """Draws a whole state dict on the CPU; the same generator state gives the same weights."""

    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * std

    def linear(num_out: int, num_in: int, gain: float = 1.0) -> Tensor:
        return normal(num_out, num_in, std=gain / math.sqrt(num_in))

    hidden, streams = config.hidden_size, config.hc_mult
    params: dict[str, Tensor] = {"model.embed_tokens.weight": normal(config.vocab_size, hidden, std=EMBEDDING_STD)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for site in ("attn_hc", "ffn_hc"):
            num_rows = 2 * streams + streams**2
            biases = (normal(2 * streams, std=STREAM_BIAS_STD), normal(streams**2, std=MIX_BIAS_STD))
            params[f"{prefix}.{site}.fn"] = normal(num_rows, streams * hidden, std=HYPER_FN_STD)
            params[f"{prefix}.{site}.base"] = torch.cat(biases)
            params[f"{prefix}.{site}.scale"] = torch.ones(3)
        params[f"{prefix}.input_layernorm.weight"] = torch.ones(hidden)
        params[f"{prefix}.post_attention_layernorm.weight"] = torch.ones(hidden)
        attention = f"{prefix}.self_attn"
        heads, head_dim = config.num_attention_heads, config.head_dim
        params[f"{attention}.q_a_proj.weight"] = linear(config.q_lora_rank, hidden)
        params[f"{attention}.q_a_norm.weight"] = torch.ones(config.q_lora_rank)
        params[f"{attention}.q_b_proj.weight"] = linear(heads * head_dim, config.q_lora_rank)
        params[f"{attention}.kv_proj.weight"] = linear(head_dim, hidden)
        params[f"{attention}.kv_norm.weight"] = torch.ones(head_dim)
        group_rank = config.o_groups * config.o_lora_rank
        params[f"{attention}.o_a_proj.weight"] = linear(group_rank, heads * head_dim // config.o_groups)
        params[f"{attention}.o_b_proj.weight"] = linear(hidden, group_rank)
        params[f"{attention}.sinks"] = normal(heads, std=SINK_STD)
        if config.layer_types[layer] != SLIDING:
            params |= _compressor(config, layer, f"{attention}.compressor", head_dim, generator)
        if config.layer_types[layer] == CSA:
            indexer = f"{attention}.compressor.indexer"
            params |= _compressor(config, layer, indexer, config.index_head_dim, generator)
            num_index_channels = config.index_n_heads * config.index_head_dim
            params[f"{indexer}.q_b_proj.weight"] = linear(num_index_channels, config.q_lora_rank)
            params[f"{indexer}.scorer.weights_proj.weight"] = linear(config.index_n_heads, hidden)
        mlp, width, experts = f"{prefix}.mlp", config.moe_intermediate_size, config.n_routed_experts
        params[f"{mlp}.gate.weight"] = linear(experts, hidden)
        if config.mlp_layer_types[layer] == "hash_moe":
            order = torch.rand(config.vocab_size, experts, generator=generator).argsort(dim=-1)
            params[f"{mlp}.gate.tid2eid"] = order[:, : config.num_experts_per_tok].contiguous()
        else:
            params[f"{mlp}.gate.e_score_correction_bias"] = normal(experts, std=CORRECTION_BIAS_STD)
        down_std = DOWN_PROJECTION_GAIN / math.sqrt(width)
        params[f"{mlp}.experts.gate_up_proj"] = normal(experts, 2 * width, hidden, std=hidden**-0.5)
        params[f"{mlp}.experts.down_proj"] = normal(experts, hidden, width, std=down_std)
        params[f"{mlp}.shared_experts.gate_proj.weight"] = linear(width, hidden)
        params[f"{mlp}.shared_experts.up_proj.weight"] = linear(width, hidden)
        params[f"{mlp}.shared_experts.down_proj.weight"] = linear(hidden, width, DOWN_PROJECTION_GAIN)
    params["model.hc_head.hc_fn"] = normal(streams, streams * hidden, std=HYPER_FN_STD)
    params["model.hc_head.hc_base"] = normal(streams, std=STREAM_BIAS_STD)
    params["model.hc_head.hc_scale"] = torch.ones(1)
    params["model.norm.weight"] = torch.ones(hidden)
    params["lm_head.weight"] = linear(config.vocab_size, hidden)
    return params


def _compressor(
    config: ModelConfig, layer: int, prefix: str, head_dim: int, generator: torch.Generator
) -> dict[str, Tensor]:
    # A compressor with overlap projects to two series: one for the next entry, one for its own.
    channels = 2 * head_dim if config.layer_types[layer] == CSA else head_dim
    std = config.hidden_size**-0.5
    bias = torch.randn(config.compress_rate(layer), channels, generator=generator) * POSITION_BIAS_STD
    return {
        f"{prefix}.kv_proj.weight": torch.randn(channels, config.hidden_size, generator=generator) * std,
        f"{prefix}.gate_proj.weight": torch.randn(channels, config.hidden_size, generator=generator) * std,
        f"{prefix}.position_bias": bias,
        f"{prefix}.kv_norm.weight": torch.ones(head_dim),
    }


def is_decayed(name: str, value: Tensor) -> bool:
    """Weight decay is for matrices: never for norms, biases, sinks or scales."""
    return value.dim() > 1 and not name.endswith("position_bias")
