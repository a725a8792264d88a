"""Activations rounded as low-precision GEMMs round their input, and given back in fp32.

Contract: every scale belongs to one row or to a part of one, or is the checkpoint's for all rows, so a token's result
never depends on who shares its batch.
"""

# N rows, D width.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels import nvfp4_ref
from kernels.norm_ref import divided

E4M3_MAX = 448.0
GROUP = 128


def per_row_e4m3(x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
    """e4m3 with one scale a row; or, where it is given, one for all rows, saturating at 448 of it."""
    return _e4m3(x_ND, _scale_of(x_ND.abs().amax(-1, keepdim=True)) if input_scale is None else input_scale)


def per_group_e4m3(x_ND: Tensor) -> Tensor:
    """e4m3 with one scale per 128 columns of a row; the last group may be narrower."""
    width = x_ND.shape[-1]
    groups = F.pad(x_ND, (0, -width % GROUP)).unflatten(-1, (-1, GROUP))
    return _e4m3(groups, _scale_of(groups.abs().amax(-1, keepdim=True))).flatten(-2)[..., :width]


def per_block_mxfp8(x_ND: Tensor) -> Tensor:
    """e4m3 with a power-of-two scale per 32 columns of a row."""
    blocks = x_ND.unflatten(-1, (-1, 32))
    amax = blocks.abs().amax(-1, keepdim=True)
    return _e4m3(blocks, torch.exp2(torch.ceil(torch.log2(divided(amax.clamp(min=2.0**-100), E4M3_MAX))))).flatten(-2)


def per_block_nvfp4(x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
    """e2m1 with an e4m3 scale per 16 columns and one fp32 scale a row; or, where it is given, one for all rows.

    Elements beyond 2688 of a given scale saturate.
    """
    return nvfp4_ref.decode(*nvfp4_ref.encode(x_ND[:, None], global_scale=input_scale)).squeeze(1)


def _scale_of(amax: Tensor) -> Tensor:
    return torch.where(amax == 0, 1.0, divided(amax, E4M3_MAX))


def _e4m3(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float() * scale
