"""Experts in e4m3 with one fp32 scale per 128 x 128 block.

Contract: the factor is applied here, after the runner, unless the router was told to or the runner itself does.
Live when: expert_quant is "fp8".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from engine import events
from engine.events import Phase
from engine.methods.activations import per_group_e4m3
from engine.methods.base import MoEMethod, Packed
from engine.runners import RUNNERS, MoeRunner
from engine.topk import Bypassed, TopKOutput
from kernels import fp8_block_ref
from kernels.fp8_block_ref import Fp8Experts

if TYPE_CHECKING:
    from engine.experts import FusedMoE


class Fp8MoEMethod(MoEMethod):
    name = "fp8"
    runners = ("reference", "triton", "marlin", "cutlass", "trtllm")
    weight_bits = activation_bits = 8
    block_rows = fp8_block_ref.BLOCK

    def encode(self, w_ENK: Tensor, amax_E: Tensor | None = None) -> Packed:
        values, scale = fp8_block_ref.encode(w_ENK)
        return Packed(values, scale)

    def decode(self, packed: Packed) -> Tensor:
        assert packed.block_scale is not None
        return fp8_block_ref.decode(packed.codes, packed.block_scale)

    def quantise_activations(self, x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
        assert input_scale is None
        return per_group_e4m3(x_ND)

    def fp8_experts(self, w13: Packed, w2: Packed) -> Fp8Experts:
        assert w13.block_scale is not None
        assert w2.block_scale is not None
        return Fp8Experts(w13=w13.codes, w13_scale=w13.block_scale, w2=w2.codes, w2_scale=w2.block_scale)

    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        runner = RUNNERS[layer.runner_name]
        return runner(layer.runner_config, self, layer.w13, layer.w2)

    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        events.route("moe_method", Fp8MoEMethod.apply, layer=layer.layer, phase=phase, reason="expert_quant is fp8")
        routed_TD = layer.runner.run(x_TD, topk_output, phase)
        if layer.runner.applies_routed_scaling_factor:
            return routed_TD
        factor = layer.runner_config.routed_scaling_factor
        if not layer.should_fuse_routed_scaling_factor_in_topk:
            routed_TD = routed_TD * factor
            layer.runner_config.say_factor("kernel", phase)
        return routed_TD
