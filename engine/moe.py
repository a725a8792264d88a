"""The expert block of one layer: router, routed experts, shared expert, epilogue.

Contract: output = routed_scaling_factor * sum_k w_k E_k(x) + Shared(x); the shared expert is clamped like the others
and not scaled. Fused, it is one more routed expert, whose weight undoes whatever will multiply the sum later: the
factor where the router does not apply it, and the number of processes that compute it alike.
"""

# T tokens, D model dim, I expert hidden.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.events import Phase
from engine.experts import FusedMoE
from engine.loading.experts import StoredExperts
from engine.parallel.experts import ExpertShard
from engine.settings import EngineSettings
from engine.topk import Bypassed, HashTopK, StandardTopK, TopKOutput, with_shared_expert
from kernels import dispatch
from kernels.norm_ref import constant


class MoE:
    def __init__(
        self, tensors: Tensors, config: ModelConfig, settings: EngineSettings, layer: int, routed_scaling_factor: float
    ) -> None:
        hidden, width, num_experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
        self.layer, self.routed_scaling_factor, self.swiglu_limit = layer, routed_scaling_factor, config.swiglu_limit
        self.kernels = settings.kernels
        self.shard = ExpertShard(
            rank=settings.expert_parallel_rank, size=settings.expert_parallel_size, num_experts=num_experts
        )
        shared = tensors.within("shared_experts")
        self.shared_w13 = torch.cat(
            (shared.matrix("gate_proj.weight", width, hidden), shared.matrix("up_proj.weight", width, hidden))
        )
        self.shared_w2 = shared.matrix("down_proj.weight", hidden, width)
        w13 = self.shard.take(tensors.take_experts("experts.gate_up_proj", num_experts, 2 * width, hidden))
        w2 = self.shard.take(tensors.take_experts("experts.down_proj", num_experts, hidden, width))
        self.fuses_shared_expert = settings.fuse_shared_expert
        self.experts = self._experts(w13, w2, settings)
        if self.fuses_shared_expert and self.experts.runner.can_route_inside:
            self._ignored("fuse_shared_expert", f"the runner {self.experts.runner_name} has no place for it")
            self.fuses_shared_expert = False
            self.experts = self._experts(w13, w2, settings)
        self.topk = self._router(tensors.within("gate"), config)
        self.bypasses_topk = self._bypasses_topk(settings)

    def _experts(self, w13: Tensor | StoredExperts, w2: Tensor | StoredExperts, settings: EngineSettings) -> FusedMoE:
        if self.fuses_shared_expert and self.routed_scaling_factor == 0:
            raise ConfigError("settings: fuse_shared_expert with routed_scaling_factor 0, which cannot be undone")
        return FusedMoE(
            w13,
            w2,
            settings,
            layer=self.layer,
            routed_scaling_factor=self.routed_scaling_factor,
            swiglu_limit=self.swiglu_limit,
            fused_shared_expert=(self.shared_w13, self.shared_w2) if self.fuses_shared_expert else None,
        )

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
                kernels=self.kernels,
            )
        return StandardTopK(
            config,
            weight_ED,
            gate.take("e_score_correction_bias", config.n_routed_experts),
            layer=self.layer,
            routed_scaling_factor=self.routed_scaling_factor,
            apply_routed_scaling_factor_on_output=fuse,
            num_groups=config.n_group,
            topk_groups=config.topk_group,
            kernels=self.kernels,
        )

    def _bypasses_topk(self, settings: EngineSettings) -> bool:
        """Whether the runner gets the router instead of its picks; picks from a table no runner can make itself."""
        runner = self.experts.runner_name
        if not self.experts.runner.can_route_inside:
            if settings.route_in_kernel is not None:
                self._ignored("route_in_kernel", f"the runner {runner} takes picks only")
            return False
        if settings.route_in_kernel and isinstance(self.topk, HashTopK):
            self._ignored("route_in_kernel", f"layer {self.layer} picks from a table of token ids")
        return settings.route_in_kernel is not False and isinstance(self.topk, StandardTopK)

    def _ignored(self, setting: str, reason: str) -> None:
        events.emit_once((setting, reason), "ignored", setting=setting, where="engine/moe.py", reason=reason)

    def forward(self, x_TD: Tensor, ids_T: Tensor, phase: Phase) -> Tensor:
        output_TD = self.routed(x_TD, ids_T, phase=phase)
        return output_TD if self.fuses_shared_expert else output_TD + self.shared(x_TD, phase=phase)

    def routed(self, x_TD: Tensor, ids_T: Tensor, *, phase: Phase) -> Tensor:
        """The scaled sum of the routed experts, of a fused shared one too, before anything is added to it."""
        return self.shard.sum_over_processes(self.partial(x_TD, ids_T, phase=phase))

    def partial(self, x_TD: Tensor, ids_T: Tensor, *, phase: Phase) -> Tensor:
        """What the experts of this process contribute to `routed`."""
        routed_TD = self.experts.forward(x_TD, self._picked(x_TD, ids_T, phase), phase)
        if self.experts.leaves_factor_to_epilogue:
            routed_TD = routed_TD * constant(self.routed_scaling_factor, routed_TD.device)
            self.experts.runner_config.say_factor("epilogue", phase)
        return routed_TD

    def _picked(self, x_TD: Tensor, ids_T: Tensor, phase: Phase) -> TopKOutput | Bypassed:
        if self.bypasses_topk and isinstance(self.topk, StandardTopK):
            return Bypassed(self.topk, self.shard.localise)
        picked = self.shard.localise(self.topk.forward(x_TD, ids_T, phase))
        if not self.fuses_shared_expert:
            return picked
        weight = 1 / self.shard.size
        if not self.experts.should_fuse_routed_scaling_factor_in_topk:
            # Whoever multiplies the sum by the factor later multiplies this column too.
            weight /= self.routed_scaling_factor
            events.constant(1 / self.routed_scaling_factor, site="topk", layer=self.layer, phase=phase, branch="shared")
        return with_shared_expert(picked, self.shard.num_local, weight)

    def shared(self, x_TD: Tensor, *, phase: Phase) -> Tensor:
        """What the shared expert adds, where it is not fused."""
        hidden_TI = dispatch.swiglu(
            F.linear(x_TD, self.shared_w13),
            self.swiglu_limit,
            requested=self.kernels,
            record=events.recorder(layer=self.layer, phase=phase),
        )
        return F.linear(hidden_TI, self.shared_w2)
