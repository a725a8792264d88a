"""The whole model from token ids to logits, over a state dict.

Contract: every layer but the last runs at all positions; the last one only where logits are asked for, which is exact
because nothing reads its other outputs.
"""

# B batch, T tokens, Q positions asked for, D hidden size, S streams, V vocabulary

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.oracle.attention import KeyStore, Selection, attend
from engine.oracle.moe import Experts, routed_sum, shared_expert
from engine.oracle.parts import Params, mix_coefficients, read_head, read_streams, rms, write_streams


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleOutput:
    logits_BQV: Tensor
    selections: dict[int, Selection]  # by layer, of the layers that have an indexer


def forward(
    ids_BT: Tensor,
    params: Params,
    config: ModelConfig,
    *,
    at: Tensor | None = None,
    experts: Experts | None = None,
    routed_scaling_factor: float | None = None,
    dense: bool = False,
    key_store: KeyStore | None = None,
    sinkhorn_iters: int | None = None,
) -> OracleOutput:
    """Logits at the positions `at` (all of them where None), the same positions for every row of the batch.

    Args:
        ids_BT: token ids, int64; rows have equal length.
        params: a state dict with Hugging Face names, fp32.
        experts: expert weights to use instead of the state dict's, by layer.
        routed_scaling_factor: the configuration's where None.
        dense: attend to all visible entries instead of the indexer's choice; the indexer is scored all the same.
        key_store: what happens to index keys between writing and reading; identity where None.
        sinkhorn_iters: the configuration's where None; training uses fewer at first.
    """
    iters = config.hc_sinkhorn_iters if sinkhorn_iters is None else sinkhorn_iters
    eps = config.rms_norm_eps
    everywhere = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    at_Q = everywhere if at is None else at
    embedded = params["model.embed_tokens.weight"][ids_BT]
    streams = embedded.unsqueeze(-2).expand(-1, -1, config.hc_mult, -1)
    selections: dict[int, Selection] = {}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        queries = at_Q if layer == config.num_hidden_layers - 1 else everywhere
        pre, post, mix = mix_coefficients(streams, params, f"{prefix}.attn_hc", config, iters)
        x_BTD = rms(read_streams(streams, pre), eps, params[f"{prefix}.input_layernorm.weight"])
        out, selection = attend(x_BTD, queries, layer, params, config, dense=dense, key_store=key_store)
        if selection is not None:
            selections[layer] = selection
        streams = write_streams(streams[:, queries], post[:, queries], mix[:, queries], out)

        pre, post, mix = mix_coefficients(streams, params, f"{prefix}.ffn_hc", config, iters)
        x_BQD = rms(read_streams(streams, pre), eps, params[f"{prefix}.post_attention_layernorm.weight"])
        routed = routed_sum(
            x_BQD.flatten(0, 1),
            ids_BT[:, queries].flatten(),
            layer,
            params,
            config,
            experts=experts,
            routed_scaling_factor=routed_scaling_factor,
        ).view_as(x_BQD)
        streams = write_streams(streams, post, mix, routed + shared_expert(x_BQD, layer, params, config))
    hidden = rms(read_head(streams, params, config), eps, params["model.norm.weight"])
    return OracleOutput(logits_BQV=hidden @ params["lm_head.weight"].T, selections=selections)
