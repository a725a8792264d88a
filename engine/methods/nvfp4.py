"""Experts in NVFP4: e2m1 codes, an e4m3 scale per 16 of them, an fp32 scale per projection of an expert.

Contract: gate and up share one global scale, as one GEMM computes both. The factor is not applied here: it comes in
with the router's weights, or the runner's reduction applies it.
Live when: expert_quant is "nvfp4".
"""

from __future__ import annotations

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


class NvFp4MoEMethod(MoEMethod):
    name = "nvfp4"
    runners = ("reference", "triton", "marlin", "cutlass", "trtllm")
    weight_bits = activation_bits = 4
    takes_input_scale = True

    def encode(self, w_ENK: Tensor, amax_E: Tensor | None = None) -> Packed:
        return Packed(*nvfp4_ref.encode(w_ENK, global_scale=None if amax_E is None else nvfp4_scale(amax_E)))

    def decode(self, packed: Packed) -> Tensor:
        assert packed.block_scale is not None
        assert packed.global_scale is not None
        return nvfp4_ref.decode(packed.codes, packed.block_scale, packed.global_scale)

    def quantise_activations(self, x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
        return per_block_nvfp4(x_ND, input_scale)

    def nvfp4_experts(self, w13: Packed, w2: Packed) -> Nvfp4Experts:
        return nvfp4_of(w13, w2)

    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        runner = RUNNERS[layer.runner_name]
        return runner(layer.runner_config, self, layer.w13, layer.w2)

    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        events.route("moe_method", NvFp4MoEMethod.apply, layer=layer.layer, phase=phase, reason="expert_quant is nvfp4")
        return layer.runner.run(x_TD, topk_output, phase)
