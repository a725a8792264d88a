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
from engine.methods.base import MoEMethod, Packed
from engine.runners import MarlinRunner, MoeRunner, ReferenceRunner
from engine.topk import TopKOutput
from kernels import nvfp4_ref

if TYPE_CHECKING:
    from engine.experts import FusedMoE


class NvFp4MoEMethod(MoEMethod):
    name = "nvfp4"
    runners = ("reference", "marlin")

    def encode(self, w_ENK: Tensor) -> Packed:
        return Packed(*nvfp4_ref.encode(w_ENK))

    def decode(self, packed: Packed) -> Tensor:
        assert packed.block_scale is not None
        assert packed.global_scale is not None
        return nvfp4_ref.decode(packed.codes, packed.block_scale, packed.global_scale)

    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        runner = MarlinRunner if layer.runner_name == "marlin" else ReferenceRunner
        return runner(layer.runner_config, self, layer.w13, layer.w2)

    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput, phase: Phase) -> Tensor:
        events.route("experts", NvFp4MoEMethod.apply, layer=layer.layer, phase=phase, reason="expert_quant is nvfp4")
        return layer.runner.run(x_TD, topk_output, phase)
