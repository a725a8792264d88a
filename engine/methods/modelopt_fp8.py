"""Experts in e4m3 with one fp32 scale per projection of an expert, as ModelOpt writes them.

Contract: gate and up share the larger of their scales, as one GEMM computes both. The factor is applied here, after the
runner, unless the router was told to or the runner itself does.
Live when: expert_quant is "modelopt_fp8".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine import events
from engine.events import Phase
from engine.methods.activations import E4M3_MAX, per_row_e4m3
from engine.methods.base import MoEMethod, Packed
from engine.runners import RUNNERS, MoeRunner
from engine.topk import Bypassed, TopKOutput
from kernels.errors import NumericsError
from kernels.norm_ref import divided

if TYPE_CHECKING:
    from engine.experts import FusedMoE


class ModelOptFp8MoEMethod(MoEMethod):
    name = "modelopt_fp8"
    runners = ("reference", "triton", "cutlass", "trtllm")
    weight_bits = activation_bits = 8
    takes_input_scale = True

    def encode(self, w_ENK: Tensor, amax_E: Tensor | None = None) -> Packed:
        if not torch.isfinite(w_ENK).all():
            raise NumericsError("FP8 weight holds NaN or infinite values: expected finite ones")
        if amax_E is None:
            amax_E = w_ENK.float().abs().amax((-2, -1))
        scale_E = torch.where(amax_E == 0, 1.0, divided(amax_E, E4M3_MAX))
        codes = (w_ENK.float() / scale_E[:, None, None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        return Packed(codes, None, scale_E)

    def decode(self, packed: Packed) -> Tensor:
        assert packed.global_scale is not None
        return packed.codes.float() * packed.global_scale[:, None, None]

    def quantise_activations(self, x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
        return per_row_e4m3(x_ND, input_scale)

    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        return RUNNERS[layer.runner_name](layer.runner_config, self, layer.w13, layer.w2)

    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        events.route(
            "moe_method",
            ModelOptFp8MoEMethod.apply,
            layer=layer.layer,
            phase=phase,
            reason="expert_quant is modelopt_fp8",
        )
        routed_TD = layer.runner.run(x_TD, topk_output, phase)
        if not layer.runner.applies_routed_scaling_factor and not layer.should_fuse_routed_scaling_factor_in_topk:
            routed_TD = routed_TD * layer.runner_config.routed_scaling_factor
            layer.runner_config.say_factor("kernel", phase)
        return routed_TD
