"""FP8 block weights in plain torch: e4m3 values with one fp32 scale per 128 x 128 block; rows with one per 128 columns.

Contract: value = e4m3 * scale[n // 128, k // 128]. Sizes need not divide: the last block of a row or column is smaller.
The scale multiplies on decode (`weight_scale_inv` in checkpoints of this kind); a block of zeros gets scale 1.
Activations are rows: value = e4m3 * scale[n, k // 128], so no row's values depend on another row.
Source: the layout of DeepSeek-V3's released weights.
"""

# N rows, K columns; leading axes (experts) may come before N. E experts, D model dim, I expert hidden.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.errors import DtypeError, NumericsError, ShapeError
from kernels.norm_ref import divided

E4M3_MAX = 448.0
BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Experts:
    """FP8 block weights of all routed experts, gate rows before up rows.

    w13 e4m3 [E, 2I, D], w13_scale fp32 [E, ceil(2I/128), ceil(D/128)]; w2 e4m3 [E, D, I], w2_scale fp32
    [E, ceil(D/128), ceil(I/128)].
    """

    w13: Tensor
    w13_scale: Tensor
    w2: Tensor
    w2_scale: Tensor

    def __post_init__(self) -> None:
        num_experts, dim, hidden = self.w2.shape
        if tuple(self.w13.shape) != (num_experts, 2 * hidden, dim):
            raise ShapeError(
                f"w13 of shape {tuple(self.w13.shape)}: "
                f"expected {(num_experts, 2 * hidden, dim)} beside w2 {tuple(self.w2.shape)}"
            )
        for name, values, scale in (("w13", self.w13, self.w13_scale), ("w2", self.w2, self.w2_scale)):
            if scale.dtype != torch.float32:
                raise DtypeError(f"{name}_scale of {scale.dtype}: expected float32")
            _check(name, values, scale, BLOCK)

    @property
    def num_experts(self) -> int:
        return self.w2.shape[0]

    @property
    def dim(self) -> int:
        return self.w2.shape[1]

    @property
    def hidden(self) -> int:
        return self.w2.shape[2]


def encode(w_NK: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
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
    scale = divided(blocks.abs().amax((-3, -1)), E4M3_MAX)
    scale = torch.where(scale == 0, 1.0, scale)
    values = (w_NK / _spread(scale, rows, columns, block)).clamp(-E4M3_MAX, E4M3_MAX)
    return values.to(torch.float8_e4m3fn), scale


def decode(values: Tensor, scale: Tensor, block: int = BLOCK) -> Tensor:
    """The fp32 values [..., N, K] of what `encode` returned.

    Raises:
        DtypeError: the values are not float8_e4m3fn.
        ShapeError: the scales do not cover the values.
    """
    _check("FP8 weight", values, scale, block)
    rows, columns = values.shape[-2:]
    return values.float() * _spread(scale, rows, columns, block)


def encode_rows(x_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows to float8_e4m3fn [..., N, K] and float32 scales [..., N, ceil(K/128)].

    Rounds to nearest even; the largest element of each row's 128 columns becomes 448. Columns that hold NaN or infinity
    get scale NaN.
    """
    columns = x_NK.shape[-1]
    groups = F.pad(x_NK.float(), (0, -columns % BLOCK)).unflatten(-1, (-1, BLOCK))
    amax = groups.abs().amax(-1, keepdim=True)
    scale = torch.where(amax == 0, 1.0, divided(amax, E4M3_MAX))
    scale = torch.where(torch.isfinite(amax), scale, torch.nan)
    values = (groups / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return values.flatten(-2)[..., :columns].contiguous(), scale.squeeze(-1)


def decode_rows(values: Tensor, scale: Tensor) -> Tensor:
    """The fp32 values [..., N, K] of what `encode_rows` returned."""
    return values.float() * scale.repeat_interleave(BLOCK, -1)[..., : values.shape[-1]]


def _check(name: str, values: Tensor, scale: Tensor, block: int) -> None:
    if values.dtype != torch.float8_e4m3fn:
        raise DtypeError(f"{name} of {values.dtype}: expected float8_e4m3fn")
    rows, columns = values.shape[-2:]
    expected = (*values.shape[:-2], -(-rows // block), -(-columns // block))
    if tuple(scale.shape) != expected:
        raise ShapeError(f"{name}: scales of shape {tuple(scale.shape)} for {rows} x {columns}: expected {expected}")


def _spread(scale: Tensor, rows: int, columns: int, block: int) -> Tensor:
    """One scale per element."""
    return scale.repeat_interleave(block, -2).repeat_interleave(block, -1)[..., :rows, :columns]
