"""The plain runner: weights unpacked once, at load, in the loader's [gate, up] order.

Contract: sums the experts with the weights as they come; the routed scaling factor is none of its business.
Live when: the runner is "reference", which "auto" takes on a machine without a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine import events
from engine.events import Phase
from engine.requested import PLAIN_FP32, without_kernel
from engine.runners.base import MoeRunner, MoeRunnerConfig
from engine.topk import Bypassed, TopKOutput
from kernels import dispatch

if TYPE_CHECKING:
    from engine.methods.base import MoEMethod, Packed


class ReferenceRunner(MoeRunner):
    name = "reference"
    applies_routed_scaling_factor = False
    layout = "plain weights, unpacked at load"
    scales = "none"

    def __init__(self, config: MoeRunnerConfig, method: MoEMethod, w13: Packed, w2: Packed) -> None:
        self.config, self.method = config, method
        self.w13, self.w2 = (method.unpacked(packed, config.dtype) for packed in (w13, w2))
        self.kernels = config.kernels
        if config.dtype == torch.float32:
            self.kernels = without_kernel(config.kernels, "experts", config.layer, PLAIN_FP32)

    def run(self, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        assert isinstance(topk_output, TopKOutput)
        self.say_routes(phase)
        return dispatch.experts(
            x_TD,
            self.w13,
            self.w2,
            topk_output.topk_ids_TK,
            topk_output.topk_weights_TK,
            self.config.swiglu_limit,
            requested=self.kernels,
            record=events.recorder(layer=self.config.layer, phase=phase),
        )
