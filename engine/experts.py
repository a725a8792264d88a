"""The routed experts of one layer: packed weights, the method that owns them, the runner, and who scales.

Contract: the routed scaling factor can be applied in the router's weights, in the runner's kernel (or right after
it), or in the block's epilogue. Exactly one of them must. `fuses_routed_scaling_factor_in_topk` is the only place
that tells the router to.
"""

# E experts, I expert hidden, D model dim, T tokens.

from __future__ import annotations

from torch import Tensor

from engine.errors import ConfigError
from engine.events import Phase
from engine.methods import METHODS, MoEMethod
from engine.runners import MoeRunnerConfig
from engine.settings import EngineSettings
from engine.topk import TopKOutput


def fuses_routed_scaling_factor_in_topk(method: str, runner: str) -> bool:
    """Whether the router multiplies the factor into its weights, by expert method and RESOLVED runner."""
    return method == "nvfp4" and runner != "marlin"


def resolve_runner(method: MoEMethod, requested: str) -> str:
    """The runner's name; "auto" takes the method's first.

    Raises:
        ConfigError: the method's storage is not one that the runner reads.
    """
    if requested == "auto":
        return method.runners[0]
    if requested not in method.runners:
        raise ConfigError(
            f"settings: runner {requested!r} cannot read {method.name!r} experts, "
            f"expected one of auto, {', '.join(method.runners)}"
        )
    return requested


class FusedMoE:
    def __init__(
        self,
        w13_E2ID: Tensor,
        w2_EDI: Tensor,
        settings: EngineSettings,
        *,
        layer: int,
        routed_scaling_factor: float,
        swiglu_limit: float,
    ) -> None:
        self.layer = layer
        self.method = METHODS[settings.expert_quant]()
        self.w13, self.w2 = self.method.encode(w13_E2ID), self.method.encode(w2_EDI)
        self.runner_name = resolve_runner(self.method, settings.runner)
        self.should_fuse_routed_scaling_factor_in_topk = fuses_routed_scaling_factor_in_topk(
            self.method.name, self.runner_name
        )
        self.runner_config = MoeRunnerConfig(
            layer=layer, routed_scaling_factor=routed_scaling_factor, swiglu_limit=swiglu_limit
        )
        self.runner = self.method.create_moe_runner(self)

    def forward(self, x_TD: Tensor, topk_output: TopKOutput, phase: Phase) -> Tensor:
        return self.method.apply(self, x_TD, topk_output, phase)

    def dequantised(self) -> tuple[Tensor, Tensor]:
        """fp32 w13 [E, 2I, D], gate rows first, and w2 [E, D, I], from the packed storage."""
        return self.method.decode(self.w13), self.method.decode(self.w2)
