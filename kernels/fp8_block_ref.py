"""FP8 block weights in plain torch: e4m3 values with one fp32 scale per 128 x 128 block.

Contract: value = e4m3 * scale[n // 128, k // 128]. Sizes need not divide: the last block of a row or column is smaller.
The scale multiplies on decode (`weight_scale_inv` in checkpoints of this kind); a block of zeros gets scale 1.
Source: the layout of DeepSeek-V3's released weights.
"""

# N rows, K columns; leading axes (experts) may come before N.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.errors import DtypeError, NumericsError, ShapeError

E4M3_MAX = 448.0


def encode(w_NK: Tensor, block: int = 128) -> tuple[Tensor, Tensor]:
    """Quantise [..., N, K] to float8_e4m3fn [..., N, K] and float32 scales [..., ceil(N/block), ceil(K/block)].

    Rounds to nearest even; the largest element of each block becomes 448.

    Raises:
        NumericsError: a weight is NaN or infinite.
    """
    w_NK = w_NK.float()
    if not torch.isfinite(w_NK).all():
        raise NumericsError("FP8 weight holds NaN or infinite values: expected finite ones")
    rows, columns = w_NK.shape[-2:]
    padded = F.pad(w_NK, (0, -columns % block, 0, -rows % block))
    blocks = padded.unflatten(-1, (-1, block)).unflatten(-3, (-1, block))
    scale = blocks.abs().amax((-3, -1)) / E4M3_MAX
    scale = torch.where(scale == 0, 1.0, scale)
    values = (w_NK / _spread(scale, rows, columns, block)).clamp(-E4M3_MAX, E4M3_MAX)
    return values.to(torch.float8_e4m3fn), scale


def decode(values: Tensor, scale: Tensor, block: int = 128) -> Tensor:
    """The fp32 values [..., N, K] of what `encode` returned.

    Raises:
        DtypeError: the values are not float8_e4m3fn.
        ShapeError: the scales do not cover the values.
    """
    if values.dtype != torch.float8_e4m3fn:
        raise DtypeError(f"FP8 values of {values.dtype}: expected float8_e4m3fn")
    rows, columns = values.shape[-2:]
    expected = (-(-rows // block), -(-columns // block))
    if tuple(scale.shape[-2:]) != expected:
        raise ShapeError(f"FP8 scales of shape {tuple(scale.shape)} for {rows} x {columns}: expected {expected}")
    return values.float() * _spread(scale, rows, columns, block)


def _spread(scale: Tensor, rows: int, columns: int, block: int) -> Tensor:
    """One scale per element."""
    return scale.repeat_interleave(block, -2).repeat_interleave(block, -1)[..., :rows, :columns]
