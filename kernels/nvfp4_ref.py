"""NVFP4 in plain torch: 4-bit codes, one e4m3 scale per 16 elements of a row, one fp32 scale per matrix.

Contract: value = e2m1(code) * block_scale * global_scale. Two codes a byte along K, element 2i in the low nibble. The
global scale multiplies on decode (amax / 2688); a checkpoint that stores the divisor must invert it first. Everything
is computed in fp32; codes round to nearest, ties to the even code, and saturate at 6.
Source: NVIDIA/Model-Optimizer modelopt/torch/quantization/qtensor/nvfp4_tensor.py (same bytes for finite weights); the
swizzled scale order is cuBLAS's 128x4 block layout.
"""

# N rows, K columns; leading axes (experts) may come before N.

from __future__ import annotations

import torch
from torch import Tensor

from kernels.errors import DtypeError, NumericsError, ShapeError

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_SMALLEST = 2.0**-9
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Midpoints between neighbouring magnitudes. A value on midpoint i lies between codes i and i + 1.
E2M1_EDGES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def encode(w_NK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise a matrix, or a stack of matrices each with its own global scale.

    Args:
        w_NK: [..., N, K] floating point, finite, K a multiple of 16.

    Returns:
        codes uint8 [..., N, K/2], block_scale float8_e4m3fn [..., N, K/16], global_scale float32 [...].

    Raises:
        ShapeError: K is not a multiple of 16.
        NumericsError: a weight is NaN or infinite.
    """
    if w_NK.ndim < 2 or w_NK.shape[-1] % BLOCK:
        raise ShapeError(
            f"NVFP4 weight of shape {tuple(w_NK.shape)}: expected [..., N, K] with K a multiple of {BLOCK}"
        )
    w_NK = w_NK.float()
    if not torch.isfinite(w_NK).all():
        raise NumericsError("NVFP4 weight holds NaN or infinite values: expected finite ones")
    global_scale = w_NK.abs().amax((-2, -1)) / (E2M1_MAX * E4M3_MAX)
    global_scale = torch.where(global_scale == 0, 1.0, global_scale)
    g_N = global_scale[..., None, None]
    blocks_NGB = w_NK.unflatten(-1, (-1, BLOCK))
    scale_NG = blocks_NGB.abs().amax(-1) / (E2M1_MAX * g_N)
    scale_NG = torch.where(scale_NG == 0, 1.0, scale_NG)
    # Clamped before the cast: above 464 a CUDA cast gives NaN where a CPU cast saturates.
    block_scale_NG = scale_NG.clamp(E4M3_SMALLEST, E4M3_MAX).to(torch.float8_e4m3fn)
    scaled_NGB = blocks_NGB / (block_scale_NG.float() * g_N)[..., None]
    return pack(e2m1_codes(scaled_NGB).flatten(-2)), block_scale_NG, global_scale


def e2m1_codes(x: Tensor) -> Tensor:
    """Round fp32 values onto the e2m1 grid: uint8 codes 0..15, nearest, ties to the even code, saturating at 6."""
    edges = torch.tensor(E2M1_EDGES, device=x.device)
    magnitude = x.abs()
    below = torch.bucketize(magnitude, edges)  # a value on edge i gets code i
    tie = torch.bucketize(magnitude, edges, right=True) != below
    code = below + (tie & (below % 2 == 1))
    return (code + 8 * (x < 0)).to(torch.uint8)


def pack(codes_NK: Tensor) -> Tensor:
    """Codes 0..15 [..., K] to bytes [..., K/2]; element 2i goes to the low nibble of byte i."""
    return codes_NK[..., 0::2] | (codes_NK[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """Bytes [..., K/2] to codes 0..15 [..., K]."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def decode(codes: Tensor, block_scale: Tensor, global_scale: Tensor) -> Tensor:
    """The fp32 values [..., N, K] of what `encode` returned.

    The two scales are multiplied first, then the code's value: the order matters in the last bit.

    Raises:
        DtypeError: codes are not uint8, or block scales are not float8_e4m3fn.
        ShapeError: the number of block scales does not fit the number of codes.
    """
    if codes.dtype != torch.uint8 or block_scale.dtype != torch.float8_e4m3fn:
        raise DtypeError(
            f"NVFP4 codes of {codes.dtype} and scales of {block_scale.dtype}: expected uint8 and float8_e4m3fn"
        )
    if codes.shape[:-1] != block_scale.shape[:-1] or codes.shape[-1] * 2 != block_scale.shape[-1] * BLOCK:
        raise ShapeError(
            f"NVFP4 scales of shape {tuple(block_scale.shape)} for codes of shape {tuple(codes.shape)}: "
            f"expected one scale per {BLOCK // 2} code bytes"
        )
    values = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), device=codes.device)
    scale = block_scale.float() * global_scale[..., None, None]
    return (values[unpack(codes).int()].unflatten(-1, (-1, BLOCK)) * scale[..., None]).flatten(-2)


def swizzle(scale_RC: Tensor) -> Tensor:
    """Linear block scales [R, C] to the flat 128x4 order, rows padded to 128 and columns to 4 with zero bytes."""
    rows, columns = scale_RC.shape
    padded_rows, padded_columns = -(-rows // 128) * 128, -(-columns // 4) * 4
    padded = torch.zeros(padded_rows, padded_columns, dtype=torch.uint8, device=scale_RC.device)
    padded[:rows, :columns] = scale_RC.view(torch.uint8)
    tiles = padded.view(padded_rows // 128, 4, 32, padded_columns // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).flatten().view(scale_RC.dtype)


def unswizzle(flat: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `swizzle`: linear scales [rows, columns]."""
    row_tiles, column_tiles = -(-rows // 128), -(-columns // 4)
    if flat.numel() != row_tiles * column_tiles * 512:
        raise ShapeError(
            f"{flat.numel()} swizzled scales for {rows} x {columns}: expected {row_tiles * column_tiles * 512}"
        )
    tiles = flat.view(torch.uint8).view(row_tiles, column_tiles, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(row_tiles * 128, column_tiles * 4)[:rows, :columns].contiguous().view(flat.dtype)
