"""The tensors of the architecture: every name and shape that a config asks for.

Contract: names are those of Hugging Face's `state_dict`; the experts of a layer are two tensors, [E, 2I, D] with the
gate's rows first and [E, D, I].
"""

# E experts, I expert hidden, D model dim, H heads, S residual streams.

from __future__ import annotations

from engine.config import CSA, SLIDING, ModelConfig

Shapes = dict[str, tuple[int, ...]]
# Tables of ids; everything else is a number.
INTEGER_SUFFIX = ".tid2eid"


def expected_tensors(config: ModelConfig) -> Shapes:
    hidden, vocab, streams = config.hidden_size, config.vocab_size, config.hc_mult
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
        "model.hc_head.hc_fn": (streams, streams * hidden),
        "model.hc_head.hc_base": (streams,),
        "model.hc_head.hc_scale": (1,),
    }
    for layer in range(config.num_hidden_layers):
        inside = _around(config) | _attention(config, layer) | _experts(config, layer)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in inside.items()}
    return shapes


def _around(config: ModelConfig) -> Shapes:
    hidden, streams = config.hidden_size, config.hc_mult
    mixes = (2 + streams) * streams
    shapes: Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for site in ("attn_hc", "ffn_hc"):
        shapes |= {f"{site}.fn": (mixes, streams * hidden), f"{site}.base": (mixes,), f"{site}.scale": (3,)}
    return shapes


def _attention(config: ModelConfig, layer: int) -> Shapes:
    hidden, head_dim, heads = config.hidden_size, config.head_dim, config.num_attention_heads
    low_rank = config.o_groups * config.o_lora_rank
    shapes: Shapes = {
        "self_attn.q_a_proj.weight": (config.q_lora_rank, hidden),
        "self_attn.q_a_norm.weight": (config.q_lora_rank,),
        "self_attn.q_b_proj.weight": (heads * head_dim, config.q_lora_rank),
        "self_attn.kv_proj.weight": (head_dim, hidden),
        "self_attn.kv_norm.weight": (head_dim,),
        "self_attn.o_a_proj.weight": (low_rank, heads * head_dim // config.o_groups),
        "self_attn.o_b_proj.weight": (hidden, low_rank),
        "self_attn.sinks": (heads,),
    }
    kind, rate = config.layer_types[layer], config.compress_rate(layer)
    if kind != SLIDING:
        # Overlapping windows project twice as wide: one half for the entry of its own, one for the next.
        shapes |= _compressor("self_attn.compressor", rate, (2 if kind == CSA else 1) * head_dim, head_dim, hidden)
    if kind == CSA:
        indexer, width = "self_attn.compressor.indexer", config.index_head_dim
        shapes |= _compressor(indexer, rate, 2 * width, width, hidden)
        shapes[f"{indexer}.q_b_proj.weight"] = (config.index_n_heads * width, config.q_lora_rank)
        shapes[f"{indexer}.scorer.weights_proj.weight"] = (config.index_n_heads, hidden)
    return shapes


def _compressor(prefix: str, rate: int, projected: int, width: int, hidden: int) -> Shapes:
    return {
        f"{prefix}.kv_proj.weight": (projected, hidden),
        f"{prefix}.gate_proj.weight": (projected, hidden),
        f"{prefix}.position_bias": (rate, projected),
        f"{prefix}.kv_norm.weight": (width,),
    }


def _experts(config: ModelConfig, layer: int) -> Shapes:
    hidden, width, num_experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    router: Shapes = (
        {"mlp.gate.tid2eid": (config.vocab_size, config.num_experts_per_tok)}
        if config.mlp_layer_types[layer] == "hash_moe"
        else {"mlp.gate.e_score_correction_bias": (num_experts,)}
    )
    return router | {
        "mlp.gate.weight": (num_experts, hidden),
        "mlp.experts.gate_up_proj": (num_experts, 2 * width, hidden),
        "mlp.experts.down_proj": (num_experts, hidden, width),
        "mlp.shared_experts.gate_proj.weight": (width, hidden),
        "mlp.shared_experts.up_proj.weight": (width, hidden),
        "mlp.shared_experts.down_proj.weight": (hidden, width),
    }
