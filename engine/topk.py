"""Routers: which experts a token goes to and with what weight.

Contract: w = s[picks] / (sum s[picks] + 1e-20), times routed_scaling_factor only where
`apply_routed_scaling_factor_on_output` says that the experts want it in the weights; then nobody after the router may
multiply again. `HashTopK` takes the picks from a table of token ids, `StandardTopK` takes the best of s + correction
bias.
Live when: HashTopK in `hash_moe` layers, StandardTopK in `moe` layers.
"""

# T tokens, D model dim, E experts, K experts per token, V vocabulary.

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.config import ModelConfig
from engine.events import Phase
from kernels.route_ref import hash_route_ref, route_ref


class TopKOutput(NamedTuple):
    topk_ids_TK: Tensor
    topk_weights_TK: Tensor


class HashTopK:
    def __init__(
        self,
        config: ModelConfig,
        gate_ED: Tensor,
        tid2eid_VK: Tensor,
        *,
        layer: int,
        routed_scaling_factor: float,
        apply_routed_scaling_factor_on_output: bool,
    ) -> None:
        self.gate_ED, self.tid2eid_VK, self.layer = gate_ED, tid2eid_VK, layer
        self.scoring_func, self.renormalise = config.scoring_func, config.norm_topk_prob
        self.routed_scaling_factor = routed_scaling_factor
        self.apply_routed_scaling_factor_on_output = apply_routed_scaling_factor_on_output

    def forward(self, x_TD: Tensor, ids_T: Tensor, phase: Phase) -> TopKOutput:
        events.route("topk", HashTopK.forward, layer=self.layer, phase=phase, reason="hash_moe layer")
        topk_ids_TK = self.tid2eid_VK[ids_T]
        weights_TK = hash_route_ref(
            F.linear(x_TD, self.gate_ED), topk_ids_TK, scoring=self.scoring_func, renormalise=self.renormalise
        )
        if self.apply_routed_scaling_factor_on_output:
            weights_TK = weights_TK * self.routed_scaling_factor
            events.constant(self.routed_scaling_factor, site="topk", layer=self.layer, phase=phase)
        return TopKOutput(topk_ids_TK, weights_TK)


class StandardTopK:
    def __init__(
        self,
        config: ModelConfig,
        gate_ED: Tensor,
        correction_bias_E: Tensor | None,
        *,
        layer: int,
        routed_scaling_factor: float,
        apply_routed_scaling_factor_on_output: bool,
    ) -> None:
        self.gate_ED, self.correction_bias_E, self.layer = gate_ED, correction_bias_E, layer
        self.topk = config.num_experts_per_tok
        self.scoring_func, self.renormalise = config.scoring_func, config.norm_topk_prob
        self.routed_scaling_factor = routed_scaling_factor
        self.apply_routed_scaling_factor_on_output = apply_routed_scaling_factor_on_output

    def forward(self, x_TD: Tensor, ids_T: Tensor, phase: Phase) -> TopKOutput:
        events.route("topk", StandardTopK.forward, layer=self.layer, phase=phase, reason="moe layer")
        weights_TK, topk_ids_TK = route_ref(
            F.linear(x_TD, self.gate_ED),
            self.topk,
            bias_E=self.correction_bias_E,
            scoring=self.scoring_func,
            renormalise=self.renormalise,
        )
        if self.apply_routed_scaling_factor_on_output:
            weights_TK = weights_TK * self.routed_scaling_factor
            events.constant(self.routed_scaling_factor, site="topk", layer=self.layer, phase=phase)
        return TopKOutput(topk_ids_TK, weights_TK)
