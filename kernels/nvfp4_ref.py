"""NVFP4 in plain torch: 4-bit codes, one e4m3 scale per 16 elements of a row, one fp32 scale per matrix.

Contract: value = e2m1(code) * block_scale * global_scale. Two codes a byte along K, element 2i in the low nibble. The
global scale multiplies on decode (amax / 2688); a checkpoint that stores the divisor must invert it first. Everything
is computed in fp32; codes round to nearest, ties to the even code, and saturate at 6.
Source: NVIDIA/Model-Optimizer modelopt/torch/quantization/qtensor/nvfp4_tensor.py (same bytes for finite weights); four
over six is arXiv 2512.02010 (mit-han-lab/fouroversix); the swizzled scale order is cuBLAS's 128x4 block layout.
"""

# N rows, K columns; leading axes (experts) may come before N.

from __future__ import annotations

import torch
from torch import Tensor

from kernels.errors import DtypeError, NumericsError, ShapeError
from kernels.norm_ref import divided

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
# What four over six leaves below 448: 1.5 times 256 is a scale that still fits.
E4M3_MAX_FOUR_OVER_SIX = 256.0
E4M3_SMALLEST = 2.0**-9
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Midpoints between neighbouring magnitudes. A value on midpoint i lies between codes i and i + 1.
E2M1_EDGES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def encode(
    w_NK: Tensor,
    *,
    four_over_six: bool = False,
    global_scale: Tensor | None = None,
    swizzled: bool = False,
    check: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise a matrix, or a stack of matrices each with its own global scale.

    Args:
        w_NK: [..., N, K] floating point, finite, K a multiple of 16.
        four_over_six: a block whose squared error falls by it has 4 instead of 6 as the code of its largest element.
            Such a scale is 1.5 times as large and must still fit e4m3, so the global scale becomes amax / 1536 (256
            for e4m3's 448). Decoders need nothing new, as they multiply by the scale they are given; one that worked
            it out again as amax / 2688 would be wrong by 448 / 256 = 1.75 on every element.
        global_scale: fp32 that broadcasts to [...], positive, in place of the one from amax; elements beyond 2688 of
            it saturate.
        swizzled: block scales in the order of `swizzle`.
        check: refuse NaN and infinite weights. Without it the bytes of a matrix that holds one mean nothing.

    Returns:
        codes uint8 [..., N, K/2], block_scale float8_e4m3fn [..., N, K/16] (or [..., flat] when swizzled),
        global_scale float32 [...].

    Raises:
        DtypeError: the global scale is not fp32.
        ShapeError: a matrix is empty, K is not a multiple of 16, or the global scale does not broadcast.
        NumericsError: a weight is NaN or infinite, or the global scale is not a positive number.
    """
    blocks_NGB = in_blocks(w_NK, BLOCK, "NVFP4", check=check)
    if global_scale is None:
        amax = blocks_NGB.abs().amax((-3, -2, -1))
        global_scale = divided(amax, E2M1_MAX * (E4M3_MAX_FOUR_OVER_SIX if four_over_six else E4M3_MAX))
        global_scale = torch.where(global_scale == 0, 1.0, global_scale)
    global_scale = expand_global_scale(global_scale, w_NK.shape, check=check)
    g_N = global_scale[..., None, None]
    codes_NGB, block_scale_NG = _quantise(blocks_NGB, g_N, E2M1_MAX)
    if four_over_six:
        four_codes_NGB, four_scale_NG = _quantise(blocks_NGB, g_N, 4.0)
        error_NG = _squared_error(blocks_NGB, codes_NGB, block_scale_NG.float() * g_N)
        four_NG = _squared_error(blocks_NGB, four_codes_NGB, four_scale_NG.float() * g_N) < error_NG
        codes_NGB = torch.where(four_NG[..., None], four_codes_NGB, codes_NGB)
        block_scale_NG = torch.where(four_NG, four_scale_NG.float(), block_scale_NG.float()).to(torch.float8_e4m3fn)
    return pack(codes_NGB.flatten(-2)), swizzle(block_scale_NG) if swizzled else block_scale_NG, global_scale


def in_blocks(w_NK: Tensor, block: int, name: str, *, check: bool = True) -> Tensor:
    """Weights of a block format in fp32, [..., N, K / block, block].

    Raises:
        ShapeError: a matrix is empty, or K is not a multiple of `block`.
        NumericsError: a weight is NaN or infinite, and `check` says to look.
    """
    if w_NK.ndim < 2 or 0 in w_NK.shape[-2:] or w_NK.shape[-1] % block:
        raise ShapeError(
            f"{name} weight of shape {tuple(w_NK.shape)}: expected [..., N, K] with K a multiple of {block}"
        )
    if check and not torch.isfinite(w_NK).all():
        raise NumericsError(f"{name} weight holds NaN or infinite values: expected finite ones")
    return w_NK.float().unflatten(-1, (-1, block))


def expand_global_scale(global_scale: Tensor, shape: torch.Size, *, check: bool = True) -> Tensor:
    """One fp32 scale per matrix of weights of `shape`.

    Raises:
        DtypeError: the scale is not fp32.
        ShapeError: it does not broadcast.
        NumericsError: it is not a positive number, and `check` says to look.
    """
    if global_scale.dtype != torch.float32:
        raise DtypeError(f"NVFP4 global scale of {global_scale.dtype}: expected float32")
    if check and not ((global_scale > 0) & torch.isfinite(global_scale * (E2M1_MAX * E4M3_MAX))).all():
        raise NumericsError(
            f"NVFP4 global scales from {global_scale.min():g} to {global_scale.max():g}: "
            "expected positive numbers of which 2688 times is finite"
        )
    try:
        return global_scale.expand(shape[:-2])
    except RuntimeError:
        raise ShapeError(
            f"NVFP4 global scale of shape {tuple(global_scale.shape)}: expected one that broadcasts to "
            f"{tuple(shape[:-2])}"
        ) from None


def _quantise(blocks_NGB: Tensor, g_N: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Codes [..., N, G, 16] and e4m3 scales [..., N, G] that send each block's largest element to `largest`."""
    scale_NG = blocks_NGB.abs().amax(-1) / (largest * g_N)
    scale_NG = torch.where(scale_NG == 0, 1.0, scale_NG)
    # Clamped before the cast: above 464 a CUDA cast gives NaN where a CPU cast saturates.
    block_scale_NG = scale_NG.clamp(E4M3_SMALLEST, E4M3_MAX).to(torch.float8_e4m3fn)
    return e2m1_codes(blocks_NGB / (block_scale_NG.float() * g_N)[..., None]), block_scale_NG


def _squared_error(blocks_NGB: Tensor, codes_NGB: Tensor, scale_NG: Tensor) -> Tensor:
    """Sum of squares of weight minus decoded weight, fp32 [..., N, G]."""
    error = (blocks_NGB - e2m1_values(codes_NGB) * scale_NG[..., None]).square()
    # Neighbours first, then neighbouring pairs: an order that a kernel can follow, as near ties decide bytes.
    while error.shape[-1] > 1:
        error = error[..., 0::2] + error[..., 1::2]
    return error.squeeze(-1)


def e2m1_codes(x: Tensor) -> Tensor:
    """Round fp32 values onto the e2m1 grid: uint8 codes 0..15, nearest, ties to the even code, saturating at 6."""
    edges = torch.tensor(E2M1_EDGES, device=x.device)
    magnitude = x.abs()
    below = torch.bucketize(magnitude, edges)  # a value on edge i gets code i
    tie = torch.bucketize(magnitude, edges, right=True) != below
    code = below + (tie & (below % 2 == 1))
    return (code + 8 * (x < 0)).to(torch.uint8)


def e2m1_values(codes: Tensor) -> Tensor:
    """The fp32 numbers that codes 0..15 stand for; code 8 is -0."""
    values = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), device=codes.device)
    return values[codes.int()]


def pack(codes_NK: Tensor) -> Tensor:
    """Codes 0..15 [..., K] to bytes [..., K/2]; element 2i goes to the low nibble of byte i."""
    return codes_NK[..., 0::2] | (codes_NK[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """Bytes [..., K/2] to codes 0..15 [..., K]."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def decode(
    codes: Tensor,
    block_scale: Tensor,
    global_scale: Tensor,
    *,
    swizzled: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The values [..., N, K] of what `encode` returned, fp32 or rounded once to `dtype`.

    The two scales are multiplied first, then the code's value: the order matters in the last bit.

    Raises:
        DtypeError: codes are not uint8, or block scales are not float8_e4m3fn.
        ShapeError: the number of block scales does not fit the number of codes.
    """
    if codes.dtype != torch.uint8 or block_scale.dtype != torch.float8_e4m3fn:
        raise DtypeError(
            f"NVFP4 codes of {codes.dtype} and scales of {block_scale.dtype}: expected uint8 and float8_e4m3fn"
        )
    if swizzled:
        block_scale = unswizzle(block_scale, codes.shape[-2], codes.shape[-1] * 2 // BLOCK)
    if codes.shape[:-1] != block_scale.shape[:-1] or codes.shape[-1] * 2 != block_scale.shape[-1] * BLOCK:
        raise ShapeError(
            f"NVFP4 scales of shape {tuple(block_scale.shape)} for codes of shape {tuple(codes.shape)}: "
            f"expected one scale per {BLOCK // 2} code bytes"
        )
    scale = block_scale.float() * global_scale[..., None, None]
    return (e2m1_values(unpack(codes)).unflatten(-1, (-1, BLOCK)) * scale[..., None]).flatten(-2).to(dtype)


def swizzle(scale_RC: Tensor) -> Tensor:
    """Linear block scales [..., R, C] to the flat 128x4 order, rows padded to 128 and columns to 4 with zero bytes."""
    rows, columns = scale_RC.shape[-2:]
    row_tiles, column_tiles = _tiles(rows, columns)
    padded = torch.zeros(
        *scale_RC.shape[:-2], row_tiles * 128, column_tiles * 4, dtype=torch.uint8, device=scale_RC.device
    )
    padded[..., :rows, :columns] = scale_RC.view(torch.uint8)
    tiles = padded.unflatten(-1, (-1, 4)).unflatten(-3, (-1, 4, 32))  # row tile, 32 rows, row, column tile, column
    return tiles.transpose(-4, -2).flatten(-5).view(scale_RC.dtype)


def unswizzle(flat: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `swizzle`: linear scales [..., rows, columns]."""
    row_tiles, column_tiles = _tiles(rows, columns)
    if flat.shape[-1] != swizzled_length(rows, columns):
        raise ShapeError(
            f"{flat.shape[-1]} swizzled scales for {rows} x {columns}: expected {swizzled_length(rows, columns)}"
        )
    tiles = flat.view(torch.uint8).unflatten(-1, (row_tiles, column_tiles, 32, 4, 4))
    padded = tiles.transpose(-4, -2).flatten(-2).flatten(-4, -2)
    return padded[..., :rows, :columns].contiguous().view(flat.dtype)


def swizzled_length(rows: int, columns: int) -> int:
    """How many scales the 128x4 order of [rows, columns] holds, padding counted."""
    row_tiles, column_tiles = _tiles(rows, columns)
    return row_tiles * column_tiles * 512


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // 128), -(-columns // 4)
