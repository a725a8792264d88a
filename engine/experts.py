"""The routed experts of one layer: packed weights, the method that owns them, the runner, and who scales.

Contract: the routed scaling factor can be applied in the router's weights, in the runner's kernel (or right after
it), or in the block's epilogue. Exactly one of them must. `fuses_routed_scaling_factor_in_topk` is the only place
that tells the router to.
"""

# E experts, I expert hidden, D model dim, T tokens.

from __future__ import annotations

from torch import Tensor

from engine import events
from engine.events import Phase
from engine.loading.experts import StoredExperts
from engine.methods import METHODS, MoEMethod
from engine.runners import MoeRunnerConfig
from engine.runners.selection import select_runner
from engine.settings import EngineSettings
from engine.topk import Bypassed, TopKOutput


def fuses_routed_scaling_factor_in_topk(method: str, runner: str) -> bool:
    """Whether the router multiplies the factor into its weights, by expert method and RESOLVED runner."""
    if runner == "trtllm":
        # Its kernel takes weights as final; where it routes itself, the router is not run and this has no effect.
        return True

    return method == "nvfp4" and runner not in ("triton", "marlin")


class FusedMoE:
    def __init__(
        self,
        w13_E2ID: Tensor | StoredExperts,
        w2_EDI: Tensor | StoredExperts,
        settings: EngineSettings,
        *,
        layer: int,
        routed_scaling_factor: float,
        swiglu_limit: float,
        fused_shared_expert: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.layer = layer
        self.method: MoEMethod = METHODS[settings.expert_quant]()
        # One more expert behind the routed ones, in their format.
        more13, more2 = (shared[None] for shared in fused_shared_expert) if fused_shared_expert else (None, None)
        self.w13 = self.method.load(w13_E2ID, layer, more13)
        self.w2 = self.method.load(w2_EDI, layer, more2)
        selected = select_runner(self.method.name, self.method.runners, settings.runner, settings.device)
        self.runner_name = selected.runner
        self.should_fuse_routed_scaling_factor_in_topk = fuses_routed_scaling_factor_in_topk(
            self.method.name, self.runner_name
        )
        self.runner_config = MoeRunnerConfig(
            layer=layer,
            routed_scaling_factor=routed_scaling_factor,
            swiglu_limit=swiglu_limit,
            num_fused_shared_experts=int(fused_shared_expert is not None),
            reason=selected.reason,
            requested=selected.requested,
            dtype=settings.dtype,
            kernels=settings.kernels,
        )
        self.runner = self.method.create_moe_runner(self)
        kept = self.runner.kept
        # Repacked weights take the place of the packed ones: a layer is not held twice.
        self.repacked = kept if kept is not None and kept.hopper is not None else None
        if self.repacked is not None:
            self.w13, self.w2 = self.w13.shapes(), self.w2.shapes()
        if self.w13.input_scale is not None and not self.runner.quantises_activations:
            events.emit_once(
                ("input_scale", layer, self.runner_name),
                "ignored",
                setting="input_scale",
                where=f"engine/experts.py, layer {layer}",
                reason=f"the runner {self.runner_name} does not round activations",
            )

    @property
    def leaves_factor_to_epilogue(self) -> bool:
        """Whether nobody before the block's epilogue applies the factor."""
        return (
            self.method.leaves_factor_to_epilogue
            and not self.runner.applies_routed_scaling_factor
            and not self.should_fuse_routed_scaling_factor_in_topk
        )

    def forward(self, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        return self.method.apply(self, x_TD, topk_output, phase)

    def dequantised(self) -> tuple[Tensor, Tensor]:
        """fp32 w13 [E, 2I, D], gate rows first, and w2 [E, D, I], from the packed storage; a fused one comes last."""
        if self.repacked is not None:
            return self.repacked.numbers()
        return self.method.decode(self.w13), self.method.decode(self.w2)
