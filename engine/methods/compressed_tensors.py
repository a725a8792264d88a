"""Experts in NVFP4 as compressed-tensors stores them: the global scale is a divisor, not a multiplier.

Contract: value = e2m1(code) * block_scale / global_scale. Read as a multiplier it is wrong by the square of the scale.
The factor is applied here, after the runner, unless the router was told to or the runner itself does.
Live when: expert_quant is "compressed_tensors_nvfp4".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from engine import events
from engine.events import Phase
from engine.methods.activations import per_block_nvfp4
from engine.methods.base import MoEMethod, Packed, nvfp4_of, nvfp4_scale
from engine.runners import RUNNERS, MoeRunner
from engine.topk import Bypassed, TopKOutput
from kernels import nvfp4_ref
from kernels.nvfp4_layout import Nvfp4Experts

if TYPE_CHECKING:
    from engine.experts import FusedMoE


class CompressedTensorsNvFp4MoEMethod(MoEMethod):
    name = "compressed_tensors_nvfp4"
    runners = ("reference", "triton", "marlin", "cutlass", "trtllm")
    weight_bits = activation_bits = 4
    takes_input_scale = True

    def encode(self, w_ENK: Tensor, amax_E: Tensor | None = None) -> Packed:
        given_E = None if amax_E is None else nvfp4_scale(amax_E)
        codes, block_scale, multiplier_E = nvfp4_ref.encode(w_ENK, global_scale=given_E)
        return Packed(codes, block_scale, 1 / multiplier_E)

    def decode(self, packed: Packed) -> Tensor:
        assert packed.block_scale is not None
        return nvfp4_ref.decode(packed.codes, packed.block_scale, _inverse(packed))

    def quantise_activations(self, x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
        return per_block_nvfp4(x_ND, input_scale)

    def nvfp4_experts(self, w13: Packed, w2: Packed) -> Nvfp4Experts:
        return nvfp4_of(*(replace(packed, global_scale=_inverse(packed)) for packed in (w13, w2)))

    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        return RUNNERS[layer.runner_name](layer.runner_config, self, layer.w13, layer.w2)

    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        events.route(
            "moe_method",
            CompressedTensorsNvFp4MoEMethod.apply,
            layer=layer.layer,
            phase=phase,
            reason="expert_quant is compressed_tensors_nvfp4",
        )
        routed_TD = layer.runner.run(x_TD, topk_output, phase)
        if not layer.runner.applies_routed_scaling_factor and not layer.should_fuse_routed_scaling_factor_in_topk:
            routed_TD = routed_TD * layer.runner_config.routed_scaling_factor
            layer.runner_config.say_factor("kernel", phase)
        return routed_TD


def _inverse(packed: Packed) -> Tensor:
    """The multiplier that the stored divisor stands for."""
    assert packed.global_scale is not None
    return 1 / packed.global_scale
