"""The Triton-like runner: weights as the loader packed them, undone per call where no kernel takes them as they are.

Contract: [gate, up] rows, linear block scales; on a GPU the form of `kept`. The combine multiplies by the routed
scaling factor it was handed, always, so a router that also applies it makes the factor count twice.
Live when: the runner is "triton", which "auto" takes on 8.x and 9.x for formats that Marlin does not serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from engine.events import Phase
from engine.runners.base import MoeRunner, MoeRunnerConfig
from engine.runners.kept import kept_for_kernels
from engine.topk import Bypassed, TopKOutput

if TYPE_CHECKING:
    from engine.methods.base import MoEMethod, Packed


class TritonRunner(MoeRunner):
    name = "triton"
    applies_routed_scaling_factor = True
    layout = "rows as loaded"
    scales = "linear"

    def __init__(self, config: MoeRunnerConfig, method: MoEMethod, w13: Packed, w2: Packed) -> None:
        self.config, self.method = config, method
        self.kept = kept_for_kernels(method, w13, w2, config.dtype, config.kernels)
        if self.kept is None:
            self.w13, self.w2 = w13, w2

    def run(self, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        assert isinstance(topk_output, TopKOutput)
        self.say_routes(phase)
        factor = self.config.routed_scaling_factor
        if self.kept is None:
            combined_TD = self.compute_packed(x_TD, self.w13, self.w2, topk_output, phase, factor=factor)
        else:
            combined_TD = self.compute_kept(x_TD, self.kept, topk_output, phase, factor=factor)
        self.config.say_factor("kernel", phase)
        return combined_TD
