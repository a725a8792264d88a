"""A tiny architecture that exercises everything, and its weights from a seed.

The numbers come from `Generator.random()` alone, uniform and scaled to the wanted deviation, so a seed gives the same
weights on every numpy. Norms, sinks, biases and tables are random too: an implementation that drops one of them must
not pass.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUM_TOKENS = 160
SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"

CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 512,
    "hidden_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "swiglu_limit": 0.05,
    "sliding_window": 16,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 4,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "compress_rates": {CSA: 4, HCA: 16},
    "layer_types": [SLIDING, CSA, HCA, CSA, HCA, CSA],
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe", "moe"],
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 128,
    },
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}


class Draw:
    """Uniform numbers of a given mean and deviation, in the order they are asked for."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, std: float = 0.02, mean: float = 0.0) -> Tensor:
        values = mean + std * math.sqrt(12) * (self.rng.random(shape) - 0.5)
        return torch.from_numpy(values.astype(np.float32))

    def integers(self, *shape: int, below: int) -> Tensor:
        return torch.from_numpy(np.floor(self.rng.random(shape) * below).astype(np.int64))

    def distinct(self, rows: int, columns: int, below: int) -> Tensor:
        """Rows of distinct integers."""
        return torch.from_numpy(np.argsort(self.rng.random((rows, below)), axis=1)[:, :columns].astype(np.int64))


def prompts(seed: int, batch: int = 1) -> Tensor:
    return Draw(1000 + seed).integers(batch, NUM_TOKENS, below=CONFIG["vocab_size"])


def weights(seed: int, config: dict[str, Any] = CONFIG) -> dict[str, Tensor]:
    """All tensors of the model, under Hugging Face `state_dict` names."""
    draw, c = Draw(seed), config
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    tensors = {
        "model.embed_tokens.weight": draw(vocab, hidden),
        "model.norm.weight": draw(hidden, std=0.1, mean=1.0),
        "lm_head.weight": draw(vocab, hidden),
        "model.hc_head.hc_fn": draw(c["hc_mult"], c["hc_mult"] * hidden),
        "model.hc_head.hc_base": draw(c["hc_mult"], std=0.3),
        "model.hc_head.hc_scale": draw(1, std=0.1, mean=1.0),
    }
    for layer in range(c["num_hidden_layers"]):
        tensors |= {f"model.layers.{layer}.{name}": value for name, value in _layer(draw, c, layer).items()}
    return tensors


def _layer(draw: Draw, c: dict[str, Any], layer: int) -> dict[str, Tensor]:
    hidden, head_dim, heads, streams = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["hc_mult"]
    width, num_experts = c["moe_intermediate_size"], c["n_routed_experts"]
    tensors = {
        "input_layernorm.weight": draw(hidden, std=0.1, mean=1.0),
        "post_attention_layernorm.weight": draw(hidden, std=0.1, mean=1.0),
        "self_attn.q_a_proj.weight": draw(c["q_lora_rank"], hidden),
        "self_attn.q_a_norm.weight": draw(c["q_lora_rank"], std=0.1, mean=1.0),
        "self_attn.q_b_proj.weight": draw(heads * head_dim, c["q_lora_rank"]),
        "self_attn.kv_proj.weight": draw(head_dim, hidden),
        "self_attn.kv_norm.weight": draw(head_dim, std=0.1, mean=1.0),
        "self_attn.o_a_proj.weight": draw(c["o_groups"] * c["o_lora_rank"], heads * head_dim // c["o_groups"]),
        "self_attn.o_b_proj.weight": draw(hidden, c["o_groups"] * c["o_lora_rank"]),
        "self_attn.sinks": draw(heads, std=1.0),
        "mlp.gate.weight": draw(num_experts, hidden),
        "mlp.experts.gate_up_proj": draw(num_experts, 2 * width, hidden),
        "mlp.experts.down_proj": draw(num_experts, hidden, width),
        "mlp.shared_experts.gate_proj.weight": draw(width, hidden),
        "mlp.shared_experts.up_proj.weight": draw(width, hidden),
        "mlp.shared_experts.down_proj.weight": draw(hidden, width),
    }
    for site in ("attn_hc", "ffn_hc"):
        tensors |= {
            f"{site}.fn": draw((2 + streams) * streams, streams * hidden),
            f"{site}.base": draw((2 + streams) * streams, std=0.3),
            f"{site}.scale": draw(3, std=0.1, mean=1.0),
        }
    if c["mlp_layer_types"][layer] == "hash_moe":
        tensors["mlp.gate.tid2eid"] = draw.distinct(c["vocab_size"], c["num_experts_per_tok"], num_experts)
    else:
        tensors["mlp.gate.e_score_correction_bias"] = draw(num_experts, std=0.1)
    kind = c["layer_types"][layer]
    if kind != SLIDING:
        overlap = 2 if kind == CSA else 1
        tensors |= _compressor(
            draw, "self_attn.compressor", c["compress_rates"][kind], overlap * head_dim, head_dim, hidden
        )
    if kind == CSA:
        prefix, index_dim = "self_attn.compressor.indexer", c["index_head_dim"]
        tensors |= _compressor(draw, prefix, c["compress_rates"][kind], 2 * index_dim, index_dim, hidden)
        tensors[f"{prefix}.q_b_proj.weight"] = draw(c["index_n_heads"] * index_dim, c["q_lora_rank"])
        tensors[f"{prefix}.scorer.weights_proj.weight"] = draw(c["index_n_heads"], hidden)
    return tensors


def _compressor(draw: Draw, prefix: str, rate: int, projected: int, width: int, hidden: int) -> dict[str, Tensor]:
    return {
        f"{prefix}.kv_proj.weight": draw(projected, hidden),
        f"{prefix}.gate_proj.weight": draw(projected, hidden),
        f"{prefix}.position_bias": draw(rate, projected, std=0.5),
        f"{prefix}.kv_norm.weight": draw(width, std=0.1, mean=1.0),
    }
