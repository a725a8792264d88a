"""The CUTLASS-like runner: up rows before gate rows, block scales in the 128 x 4 order of the tensor cores.

Contract: activations are rounded to the format's own precision before both GEMMs. The weighted sum takes the weights as
they come; the routed scaling factor is none of its business. Read in [gate, up] order, its rows give silu(up) * gate.
Live when: the runner is "cutlass", which "auto" takes for NVFP4 and MXFP4 on 12.x and for FP8 on 10.x.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from engine.events import Phase
from engine.runners.base import MoeRunner, MoeRunnerConfig
from engine.runners.layouts import swap_halves, swizzle_scales, unswizzle_scales, with_rows
from engine.topk import Bypassed, TopKOutput

if TYPE_CHECKING:
    from engine.methods.base import MoEMethod, Packed


class CutlassRunner(MoeRunner):
    name = "cutlass"
    applies_routed_scaling_factor = False
    quantises_activations = True
    half_order = "up, gate"
    layout = "rows as loaded"
    scales = "128 x 4 tiles"

    def __init__(self, config: MoeRunnerConfig, method: MoEMethod, w13: Packed, w2: Packed) -> None:
        self.config, self.method = config, method
        self.w13, self.w13_scales = _tiled(with_rows(w13, swap_halves))
        self.w2, self.w2_scales = _tiled(w2)

    def run(self, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        assert isinstance(topk_output, TopKOutput)
        self.say_routes(phase)
        w13, w2 = with_rows(_linear(self.w13, self.w13_scales), swap_halves), _linear(self.w2, self.w2_scales)
        return self.compute_rounded(x_TD, w13, w2, topk_output, phase)


def _tiled(packed: Packed) -> tuple[Packed, tuple[int, int] | None]:
    """Block scales of one byte in tiles, and the rows and columns they had; other scales stay as they are."""
    scale = packed.block_scale
    if scale is None or scale.element_size() > 1:
        return packed, None
    return replace(packed, block_scale=swizzle_scales(scale)), (scale.shape[1], scale.shape[2])


def _linear(packed: Packed, shape: tuple[int, int] | None) -> Packed:
    if shape is None or packed.block_scale is None:
        return packed
    return replace(packed, block_scale=unswizzle_scales(packed.block_scale, *shape))
