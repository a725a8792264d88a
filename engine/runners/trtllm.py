"""The TensorRT-LLM-like runner: gate and up rows interleaved, low-precision activations, and a router of its own.

Contract: given picks, their weights are final and the kernel multiplies by nothing. Given a router instead, the kernel
picks, renormalises and applies the routed scaling factor itself; the router's own flag for the factor is then inert.
Live when: the runner is "trtllm", which "auto" takes for four-bit formats on 10.x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from engine import events
from engine.events import Phase
from engine.runners.base import MoeRunner, MoeRunnerConfig
from engine.runners.layouts import deinterleave, interleave, with_rows
from engine.topk import Bypassed, TopKOutput

if TYPE_CHECKING:
    from engine.methods.base import MoEMethod, Packed


class TrtllmRunner(MoeRunner):
    name = "trtllm"
    applies_routed_scaling_factor = False
    can_route_inside = True
    quantises_activations = True
    half_order = "gate and up interleaved"
    layout = "interleaved rows"
    scales = "linear, interleaved like the rows"

    def __init__(self, config: MoeRunnerConfig, method: MoEMethod, w13: Packed, w2: Packed) -> None:
        self.config, self.method = config, method
        self.w13, self.w2 = with_rows(w13, interleave), w2

    def run(self, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        self.say_routes(phase)
        if isinstance(topk_output, Bypassed):
            topk_output = self.route_inside(x_TD, topk_output, phase)
        return self.compute_rounded(x_TD, with_rows(self.w13, deinterleave), self.w2, topk_output, phase)

    def route_inside(self, x_TD: Tensor, bypassed: Bypassed, phase: Phase) -> TopKOutput:
        """Picks from the router's matrix and bias, weights multiplied by the factor of the runner's config."""
        config = self.config
        events.route(
            "topk",
            TrtllmRunner.route_inside,
            layer=config.layer,
            phase=phase,
            reason="moe layer, and the runner routes inside",
        )
        picked = bypassed.router.select(x_TD, events.recorder(layer=config.layer, phase=phase))
        weights_TK = picked.topk_weights_TK * config.routed_scaling_factor
        events.constant(config.routed_scaling_factor, site="kernel", layer=config.layer, phase=phase)
        return bypassed.localise(TopKOutput(picked.topk_ids_TK, weights_TK))
