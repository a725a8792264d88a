"""The expert block of one layer: router, routed experts, shared expert, epilogue.

Contract: output = routed_scaling_factor * sum_k w_k E_k(x) + Shared(x); the shared expert is clamped like the others
and not scaled.
"""

# T tokens, D model dim, I expert hidden.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.events import Phase
from engine.experts import FusedMoE
from engine.settings import EngineSettings
from engine.topk import HashTopK, StandardTopK
from kernels.experts_ref import swiglu_ref


class MoE:
    def __init__(
        self, tensors: Tensors, config: ModelConfig, settings: EngineSettings, layer: int, routed_scaling_factor: float
    ) -> None:
        hidden, width, num_experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
        self.layer, self.routed_scaling_factor, self.swiglu_limit = layer, routed_scaling_factor, config.swiglu_limit
        self.experts = FusedMoE(
            tensors.take("experts.gate_up_proj", num_experts, 2 * width, hidden),
            tensors.take("experts.down_proj", num_experts, hidden, width),
            settings,
            layer=layer,
            routed_scaling_factor=routed_scaling_factor,
            swiglu_limit=config.swiglu_limit,
        )
        self.topk = self._router(tensors.within("gate"), config)
        shared = tensors.within("shared_experts")
        self.shared_w13 = torch.cat(
            (shared.take("gate_proj.weight", width, hidden), shared.take("up_proj.weight", width, hidden))
        )
        self.shared_w2 = shared.take("down_proj.weight", hidden, width)

    def _router(self, gate: Tensors, config: ModelConfig) -> HashTopK | StandardTopK:
        weight_ED = gate.take("weight", config.n_routed_experts, config.hidden_size)
        fuse = self.experts.should_fuse_routed_scaling_factor_in_topk
        if config.mlp_layer_types[self.layer] == "hash_moe":
            table_VK = gate.take("tid2eid", config.vocab_size, config.num_experts_per_tok, dtype=torch.int64)
            return HashTopK(
                config,
                weight_ED,
                table_VK,
                layer=self.layer,
                routed_scaling_factor=self.routed_scaling_factor,
                apply_routed_scaling_factor_on_output=fuse,
            )
        return StandardTopK(
            config,
            weight_ED,
            gate.take("e_score_correction_bias", config.n_routed_experts),
            layer=self.layer,
            routed_scaling_factor=self.routed_scaling_factor,
            apply_routed_scaling_factor_on_output=fuse,
        )

    def forward(self, x_TD: Tensor, ids_T: Tensor, phase: Phase) -> Tensor:
        return self.routed(x_TD, ids_T, phase=phase) + self.shared(x_TD)

    def routed(self, x_TD: Tensor, ids_T: Tensor, *, phase: Phase) -> Tensor:
        """The scaled sum of the routed experts, before anything is added to it."""
        routed_TD = self.experts.forward(x_TD, self.topk.forward(x_TD, ids_T, phase), phase)
        if self.experts.method.leaves_factor_to_epilogue:
            routed_TD = routed_TD * self.routed_scaling_factor
            events.constant(self.routed_scaling_factor, site="epilogue", layer=self.layer, phase=phase)
        return routed_TD

    def shared(self, x_TD: Tensor) -> Tensor:
        return F.linear(swiglu_ref(F.linear(x_TD, self.shared_w13), self.swiglu_limit), self.shared_w2)
