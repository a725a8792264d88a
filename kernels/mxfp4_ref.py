"""MXFP4 in plain torch: 4-bit codes and one power-of-two scale per 32 elements of a row.

Contract: value = e2m1(code) * 2^(byte - 127). Codes and their packing are those of NVFP4; there is no global scale. The
scale is the smallest power of two that brings the block's largest element to at most 6, so nothing saturates.
Source: OCP Microscaling Formats 1.0; DeepSeek-V4's released experts (`weight` and an e8m0 `scale`).
"""

# N rows, K columns, G blocks of a row; leading axes (experts) may come before N.

from __future__ import annotations

import torch
from torch import Tensor

from kernels.errors import DtypeError, ShapeError
from kernels.norm_ref import divided
from kernels.nvfp4_ref import E2M1_MAX, e2m1_codes, e2m1_values, in_blocks, pack, unpack

BLOCK = 32
# Exponents of the scale bytes 0 and 254; byte 255 is NaN.
EXPONENT_MIN, EXPONENT_MAX = -127, 127


def encode(w_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., N, K], K a multiple of 32, to codes uint8 [..., N, K/2] and scales float8_e8m0fnu [..., N, K/32].

    Raises:
        ShapeError: K is not a multiple of 32.
        NumericsError: a weight is NaN or infinite.
    """
    blocks_NGB = in_blocks(w_NK, BLOCK, "MXFP4")
    mantissa_NG, exponent_NG = torch.frexp(divided(blocks_NGB.abs().amax(-1), E2M1_MAX))
    # frexp gives mantissas in [0.5, 1): an exact 0.5 is a power of two already.
    exponent_NG = (exponent_NG - (mantissa_NG == 0.5).int()).clamp(EXPONENT_MIN, EXPONENT_MAX)
    exponent_NG = torch.where(mantissa_NG == 0, 0, exponent_NG)
    codes_NK = e2m1_codes(torch.ldexp(blocks_NGB, -exponent_NG[..., None])).flatten(-2)
    return pack(codes_NK), (exponent_NG + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def decode(codes: Tensor, block_scale: Tensor) -> Tensor:
    """The fp32 values [..., N, K] of what `encode` returned.

    Raises:
        DtypeError: codes are not uint8, or scales are not float8_e8m0fnu.
        ShapeError: the number of scales does not fit the number of codes.
    """
    if codes.dtype != torch.uint8 or block_scale.dtype != torch.float8_e8m0fnu:
        raise DtypeError(
            f"MXFP4 codes of {codes.dtype} and scales of {block_scale.dtype}: expected uint8 and float8_e8m0fnu"
        )
    if codes.shape[:-1] != block_scale.shape[:-1] or codes.shape[-1] * 2 != block_scale.shape[-1] * BLOCK:
        raise ShapeError(
            f"MXFP4 scales of shape {tuple(block_scale.shape)} for codes of shape {tuple(codes.shape)}: "
            f"expected one scale per {BLOCK // 2} code bytes"
        )
    return (e2m1_values(unpack(codes)).unflatten(-1, (-1, BLOCK)) * block_scale.float()[..., None]).flatten(-2)
