"""Experts in the checkpoint's own numbers.

Contract: the method never applies the factor; where neither router nor runner does, the block's epilogue must.
Live when: expert_quant is "none".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine import events
from engine.events import Phase
from engine.methods.base import MoEMethod, Packed
from engine.runners import RUNNERS, MoeRunner
from engine.topk import Bypassed, TopKOutput

if TYPE_CHECKING:
    from engine.experts import FusedMoE


class UnquantizedMoEMethod(MoEMethod):
    name = "none"
    runners = ("reference", "triton", "trtllm")
    leaves_factor_to_epilogue = True
    weight_bits = activation_bits = 16

    def encode(self, w_ENK: Tensor, amax_E: Tensor | None = None) -> Packed:
        return Packed(w_ENK.float())

    def decode(self, packed: Packed) -> Tensor:
        return packed.codes

    def unpacked(self, packed: Packed, dtype: torch.dtype) -> Tensor:
        return packed.codes.to(dtype)

    def quantise_activations(self, x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
        assert input_scale is None
        return x_ND

    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        return RUNNERS[layer.runner_name](layer.runner_config, self, layer.w13, layer.w2)

    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        events.route(
            "moe_method", UnquantizedMoEMethod.apply, layer=layer.layer, phase=phase, reason="expert_quant is none"
        )
        return layer.runner.run(x_TD, topk_output, phase)
