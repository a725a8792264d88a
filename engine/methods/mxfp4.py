"""Experts in MXFP4: e2m1 codes with a power-of-two scale per 32 of them.

Contract: the method never applies the factor; where neither router nor runner does, the block's epilogue must.
Live when: expert_quant is "mxfp4".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from engine import events
from engine.events import Phase
from engine.methods.activations import per_block_mxfp8
from engine.methods.base import MoEMethod, Packed
from engine.runners import RUNNERS, MoeRunner
from engine.topk import Bypassed, TopKOutput
from kernels import mxfp4_ref

if TYPE_CHECKING:
    from engine.experts import FusedMoE


class Mxfp4MoEMethod(MoEMethod):
    name = "mxfp4"
    runners = ("reference", "triton", "marlin", "cutlass", "trtllm")
    leaves_factor_to_epilogue = True
    weight_bits, activation_bits = 4, 8

    def encode(self, w_ENK: Tensor, amax_E: Tensor | None = None) -> Packed:
        return Packed(*mxfp4_ref.encode(w_ENK))

    def decode(self, packed: Packed) -> Tensor:
        assert packed.block_scale is not None
        return mxfp4_ref.decode(packed.codes, packed.block_scale)

    def quantise_activations(self, x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
        assert input_scale is None
        return per_block_mxfp8(x_ND)

    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        return RUNNERS[layer.runner_name](layer.runner_config, self, layer.w13, layer.w2)

    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        events.route("moe_method", Mxfp4MoEMethod.apply, layer=layer.layer, phase=phase, reason="expert_quant is mxfp4")
        return layer.runner.run(x_TD, topk_output, phase)
