"""Routers: which experts a token goes to and with what weight.

Contract: w = s[picks] / (sum s[picks] + 1e-20), times routed_scaling_factor only where
`apply_routed_scaling_factor_on_output` says that the experts want it in the weights; then nobody after the router may
multiply again. `HashTopK` takes the picks from a table of token ids, `StandardTopK` takes the best of s + correction
bias, out of the best groups of experts where there are groups.
Logits, scores and weights are fp32.
Live when: HashTopK in `hash_moe` layers, StandardTopK in `moe` layers.
"""

# T tokens, D model dim, E experts, K experts per token, V vocabulary.

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.events import Phase
from engine.settings import Kernels
from kernels import dispatch
from kernels.dispatch import Record
from kernels.norm_ref import rounded


class TopKOutput(NamedTuple):
    topk_ids_TK: Tensor
    topk_weights_TK: Tensor


class Bypassed(NamedTuple):
    """A router handed over instead of its picks; `localise` turns picks of all experts into those of this process."""

    router: StandardTopK
    localise: Callable[[TopKOutput], TopKOutput]


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
        kernels: Kernels = "auto",
    ) -> None:
        self.gate_ED, self.tid2eid_VK, self.layer, self.kernels = gate_ED, tid2eid_VK, layer, kernels
        self.scoring_func, self.renormalise = config.scoring_func, config.norm_topk_prob
        self.routed_scaling_factor = routed_scaling_factor
        self.apply_routed_scaling_factor_on_output = apply_routed_scaling_factor_on_output

    def forward(self, x_TD: Tensor, ids_T: Tensor, phase: Phase) -> TopKOutput:
        record = events.recorder(layer=self.layer, phase=phase)
        if record is not None:
            events.route("topk", HashTopK.forward, layer=self.layer, phase=phase, reason="hash_moe layer")
        weights_TK, topk_ids_TK = dispatch.table_route(
            F.linear(rounded(x_TD, torch.float32), self.gate_ED),
            ids_T,
            self.tid2eid_VK,
            scoring=self.scoring_func,
            renormalise=self.renormalise,
            requested=self.kernels,
            record=record,
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
        num_groups: int = 1,
        topk_groups: int = 1,
        kernels: Kernels = "auto",
    ) -> None:
        if len(gate_ED) % num_groups or not 0 < topk_groups <= num_groups:
            raise ConfigError(
                f"StandardTopK of layer {layer}: {topk_groups} of {num_groups} groups of {len(gate_ED)} experts, "
                "expected equal groups and at most all of them"
            )
        self.num_groups, self.topk_groups = num_groups, topk_groups
        self.gate_ED, self.correction_bias_E, self.layer, self.kernels = gate_ED, correction_bias_E, layer, kernels
        self.topk = config.num_experts_per_tok
        self.scoring_func, self.renormalise = config.scoring_func, config.norm_topk_prob
        self.routed_scaling_factor = routed_scaling_factor
        self.apply_routed_scaling_factor_on_output = apply_routed_scaling_factor_on_output

    def forward(self, x_TD: Tensor, ids_T: Tensor, phase: Phase) -> TopKOutput:
        record = events.recorder(layer=self.layer, phase=phase)
        if record is not None:
            events.route("topk", StandardTopK.forward, layer=self.layer, phase=phase, reason="moe layer")
        topk_ids_TK, weights_TK = self.select(x_TD, record)

        if self.apply_routed_scaling_factor_on_output:
            weights_TK = weights_TK * self.routed_scaling_factor
            events.constant(self.routed_scaling_factor, site="topk", layer=self.layer, phase=phase)
        return TopKOutput(topk_ids_TK, weights_TK)

    def select(self, x_TD: Tensor, record: Record | None = None) -> TopKOutput:
        """The picks and their weights before any factor."""
        weights_TK, topk_ids_TK = dispatch.route(
            F.linear(rounded(x_TD, torch.float32), self.gate_ED),
            self.topk,
            bias_E=self.correction_bias_E,
            scoring=self.scoring_func,
            renormalise=self.renormalise,
            num_groups=self.num_groups,
            topk_groups=self.topk_groups,
            requested=self.kernels,
            record=record,
        )
        return TopKOutput(topk_ids_TK, weights_TK)


def with_shared_expert(picked: TopKOutput, expert: int, weight: float) -> TopKOutput:
    """One more column: the shared expert, picked by every token with the same weight."""
    return TopKOutput(
        F.pad(picked.topk_ids_TK, (0, 1), value=expert), F.pad(picked.topk_weights_TK, (0, 1), value=weight)
    )
