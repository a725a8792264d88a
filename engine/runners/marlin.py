"""The Marlin-like runner: codes kept in tiles of 16 rows x 8 bytes, undone just before the arithmetic.

Contract: models the backend's layout and its scaling contract; the arithmetic is the engine's own. On a GPU the weights
are kept in the layout of its Triton kernels (`kept`), as undoing tiles would copy a layer per call. The final reduction
multiplies by the routed scaling factor it was handed, always, so a router that also applies it makes the factor count
twice.
Live when: the runner is "marlin", which "auto" takes for four-bit formats on 8.x and 9.x.
"""

# E experts, N rows, Y code bytes of a row, T tokens, D model dim.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.events import Phase
from engine.runners.base import MoeRunner, MoeRunnerConfig
from engine.runners.kept import kept_for_kernels
from engine.topk import Bypassed, TopKOutput

if TYPE_CHECKING:
    from engine.methods.base import MoEMethod, Packed

TILE_ROWS = 16
TILE_BYTES = 8


class MarlinRunner(MoeRunner):
    name = "marlin"
    applies_routed_scaling_factor = True
    layout = "tiles of 16 rows x 8 bytes"
    scales = "linear"

    def __init__(self, config: MoeRunnerConfig, method: MoEMethod, w13: Packed, w2: Packed) -> None:
        self.config, self.method = config, method
        self.w13_shape, self.w2_shape = w13.codes.shape, w2.codes.shape
        self.kept = kept_for_kernels(method, w13, w2, config.dtype, config.kernels)
        if self.kept is None:
            self.w13, self.w2 = (replace(packed, codes=repack(packed.codes)) for packed in (w13, w2))

    def run(self, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        assert isinstance(topk_output, TopKOutput)
        self.say_routes(phase)
        factor = self.config.routed_scaling_factor
        if self.kept is None:
            w13, w2 = (
                replace(packed, codes=unpack(packed.codes, shape))
                for packed, shape in ((self.w13, self.w13_shape), (self.w2, self.w2_shape))
            )
            summed_TD = self.compute_packed(x_TD, w13, w2, topk_output, phase, factor=factor)
        else:
            summed_TD = self.compute_kept(x_TD, self.kept, topk_output, phase, factor=factor)
        self.config.say_factor("kernel", phase)
        return summed_TD


def repack(codes_ENY: Tensor) -> Tensor:
    """One-byte codes [E, N, Y] to tiles [E, N/16, Y/8, 8, 16], column first inside; padded to whole tiles."""
    rows, columns = codes_ENY.shape[1:]
    padded = F.pad(codes_ENY.view(torch.uint8), (0, -columns % TILE_BYTES, 0, -rows % TILE_ROWS))
    tiles = padded.unflatten(2, (-1, TILE_BYTES)).unflatten(1, (-1, TILE_ROWS)).permute(0, 1, 3, 4, 2)
    return tiles.contiguous().view(codes_ENY.dtype)


def unpack(tiles: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `repack`, for codes of this shape."""
    codes = tiles.view(torch.uint8).permute(0, 1, 4, 2, 3).flatten(3, 4).flatten(1, 2)
    return codes[:, : shape[1], : shape[2]].contiguous().view(tiles.dtype)
