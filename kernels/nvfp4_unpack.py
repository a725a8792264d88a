"""NVFP4 experts out of the words that `nvfp4_layout.repack` made, byte for byte: the layout holds all that went in.

Contract: `unpack(repack(experts))` equals `experts`. It is there for whoever wants the weights after a load that kept
only the words.
"""

# E experts, R rows, K columns.

from __future__ import annotations

import torch
from torch import Tensor

from kernels.nvfp4_layout import COLUMN_PAD, EXPONENT_OFFSET, HopperExperts, Nvfp4Experts, gate_up_rows, padded, stacked


def unpack(experts: HopperExperts) -> Nvfp4Experts:
    """The codes and scales of every expert, one at a time, on the device where the words lie."""
    hidden, hidden_pad = experts.hidden, padded(experts.hidden, COLUMN_PAD)
    gate_up = gate_up_rows(hidden_pad, experts.w13_words.device)
    real = torch.cat((torch.arange(hidden), torch.arange(hidden_pad, hidden_pad + hidden))).to(gate_up.device)
    place = torch.empty_like(gate_up)
    place[gate_up] = torch.arange(len(gate_up), device=gate_up.device)
    w13_codes, w13_scale = stacked(
        (
            _rows(_matrix(words, scales, experts.dim), place[real])
            for words, scales in zip(experts.w13_words, experts.w13_scales, strict=True)
        ),
        experts.num_experts,
    )
    w2_codes, w2_scale = stacked(
        (
            _rows(_matrix(words, scales, hidden), slice(experts.dim))
            for words, scales in zip(experts.w2_words, experts.w2_scales, strict=True)
        ),
        experts.num_experts,
    )
    return Nvfp4Experts(
        w13_codes=w13_codes,
        w13_scale=w13_scale.view(torch.float8_e4m3fn),
        w13_global=experts.w13_global,
        w2_codes=w2_codes,
        w2_scale=w2_scale.view(torch.float8_e4m3fn),
        w2_global=experts.w2_global,
    )


def _rows(matrix: tuple[Tensor, Tensor], rows: Tensor | slice) -> tuple[Tensor, Tensor]:
    return matrix[0][rows], matrix[1][rows]


def _matrix(words: Tensor, scales: Tensor, num_columns: int) -> tuple[Tensor, Tensor]:
    """Code bytes [R, K/2] and scale bytes [R, K/16] of one matrix with all its padded rows."""
    blocks, chunks = words.shape[:2]
    low, high = (_codes((words >> shift) & 0xFFFF) for shift in (0, 16))
    grid = (low | (high << 4)).to(torch.uint8).view(blocks, chunks, 4, 4, 8, 4, 4, 2, 2)
    # block chunk sub warp g t j h d, to rows (block, warp, h, g) and bytes (chunk, sub, t, j, d).
    codes = grid.permute(0, 3, 7, 4, 1, 2, 5, 6, 8).reshape(blocks * 64, chunks * 128)
    bytes_ = scales.view(torch.uint8).view(blocks, chunks, 4, 8, 4, 4, 2)
    # block chunk warp g t sub h, to groups (chunk, sub, t).
    bytes_ = bytes_.permute(0, 2, 6, 3, 1, 5, 4).reshape(blocks * 64, chunks * 16)
    return codes[:, : num_columns // 2], _e4m3_bytes(bytes_[:, : num_columns // 16])


def _codes(half: Tensor) -> Tensor:
    """The four codes [..., h, d] that share 16 bits; see `nvfp4_layout._place`."""

    def code(sign: int, magnitude: Tensor) -> Tensor:
        return (half >> sign & 1) << 3 | magnitude

    rows = (
        (code(15, half >> 6 & 7), code(9, half & 7)),
        (code(12, half >> 3 & 7), code(14, (half >> 10 & 3) << 1 | half >> 13 & 1)),
    )
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _e4m3_bytes(stored: Tensor) -> Tensor:
    """Bytes of 5 exponent and 3 mantissa bits to the e4m3 bytes they came from."""
    bits = (stored.to(torch.int32) + (EXPONENT_OFFSET << 3)) << 4
    value = bits.to(torch.int16).view(torch.bfloat16).float() * 2.0**-117
    return torch.where(stored == 0, 0, value.to(torch.float8_e4m3fn).view(torch.uint8))
