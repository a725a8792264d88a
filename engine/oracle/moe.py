"""Mixture of experts by its definition: every expert runs on every token, the unpicked ones weigh nothing.

Contract: routed(x) = f * sum_k w_k E_k(x) with sum_k w_k = 1, plus Shared(x), which f never touches.
Source: equations of DeepSeek-V4 as in huggingface/transformers 5.24.0, models/deepseek_v4.
"""

# N tokens, D hidden size, E experts, K picks, I expert width

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import ModelConfig
from engine.oracle.parts import Params

Experts = Mapping[int, tuple[Tensor, Tensor]]  # layer -> (w13 [E,2I,D] gate rows first, w2 [E,D,I])


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def router_weights(x_ND: Tensor, ids_N: Tensor, layer: int, params: Params, config: ModelConfig) -> Tensor:
    """Returns the routing weights [N,E], zero where not picked, each row summing to one."""
    prefix = f"model.layers.{layer}.mlp.gate"
    logits_NE = x_ND @ params[f"{prefix}.weight"].T
    if config.scoring_func == "softmax":
        scores_NE = logits_NE.softmax(-1)
    elif config.scoring_func == "sigmoid":
        scores_NE = logits_NE.sigmoid()
    else:
        scores_NE = F.softplus(logits_NE).sqrt()
    if config.mlp_layer_types[layer] == "hash_moe":
        picks_NK = params[f"{prefix}.tid2eid"][ids_N].long()
    else:
        biased_NE = scores_NE + params[f"{prefix}.e_score_correction_bias"]
        picks_NK = biased_NE.topk(config.num_experts_per_tok, dim=-1).indices
    picked_NK = scores_NE.gather(-1, picks_NK)
    weights_NK = picked_NK / (picked_NK.sum(-1, keepdim=True) + 1e-20)
    return torch.zeros_like(scores_NE).scatter_add(-1, picks_NK, weights_NK)


def routed_sum(
    x_ND: Tensor,
    ids_N: Tensor,
    layer: int,
    params: Params,
    config: ModelConfig,
    *,
    experts: Experts | None = None,
    routed_scaling_factor: float | None = None,
) -> Tensor:
    """Returns f * sum_k w_k E_k(x) [N,D].

    Args:
        experts: weights to use instead of the state dict's, for instance an engine's own dequantised ones.
        routed_scaling_factor: f; the configuration's where None.
    """
    prefix = f"model.layers.{layer}.mlp.experts"
    if experts is None:
        w13, w2 = params[f"{prefix}.gate_up_proj"], params[f"{prefix}.down_proj"]
    else:
        w13, w2 = experts[layer]
    factor = config.routed_scaling_factor if routed_scaling_factor is None else routed_scaling_factor
    weights_NE = router_weights(x_ND, ids_N, layer, params, config)
    gate_ENI, up_ENI = (x_ND @ w13.transpose(-1, -2)).chunk(2, dim=-1)
    hidden_ENI = clamped_swiglu(gate_ENI, up_ENI, config.swiglu_limit) * weights_NE.T.unsqueeze(-1)
    return factor * (hidden_ENI @ w2.transpose(-1, -2)).sum(0)


def shared_expert(x: Tensor, layer: int, params: Params, config: ModelConfig) -> Tensor:
    prefix = f"model.layers.{layer}.mlp.shared_experts"
    gate, up = x @ params[f"{prefix}.gate_proj.weight"].T, x @ params[f"{prefix}.up_proj.weight"].T
    return clamped_swiglu(gate, up, config.swiglu_limit) @ params[f"{prefix}.down_proj.weight"].T
