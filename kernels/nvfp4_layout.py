"""NVFP4 expert weights: the holder every path takes, and the offline repack for Hopper's register operands.

Contract of the repack, for a matrix of R rows and K columns, both padded with zero codes (R to 256, K to 256): the tile
of 64 rows x 64 columns that one warpgroup feeds to wgmma is 128 threads x 4 words. Thread (warp, g, t) owns rows
16 warp + g and 16 warp + g + 8 and the columns of scale group t, so it needs ONE scale a row. Column order in a tile:
the matrix instruction's column 16 j + 8 d + 2 t + c stands for column 16 t + 4 j + 2 d + c (`permuted_columns`), which
the activations must follow. A word is two halves c = 0, 1 of 16 bits with four codes (d, row half h) each, placed so
that one shift and one mask give a bf16 pair: sign to bit 15, magnitude to bits 8..6.
Scales are bytes with 5 exponent and 3 mantissa bits: (byte << 4) + 0x7000 is the bf16 number block_scale * 2^117, whose
product with the pair is exactly e2m1 * block_scale * 2^-9.
"""

# E experts, R rows, K columns, D model dim, I expert hidden.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from kernels.errors import ShapeError

TILE = 64
ROW_PAD = 256
COLUMN_PAD = 256
# bf16 exponent field of block_scale * 2^117 less what five bits hold: block_scale 2^0 has field 244, stored as 20.
EXPONENT_OFFSET = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvfp4Experts:
    """NVFP4 weights of all routed experts as a checkpoint stores them, gate rows before up rows.

    w13_codes uint8 [E, 2I, D/2], w13_scale e4m3 [E, 2I, D/16], w13_global fp32 [E]; w2_codes uint8 [E, D, I/2],
    w2_scale e4m3 [E, D, I/16], w2_global fp32 [E]. Global scales multiply.
    """

    w13_codes: Tensor
    w13_scale: Tensor
    w13_global: Tensor
    w2_codes: Tensor
    w2_scale: Tensor
    w2_global: Tensor

    def __post_init__(self) -> None:
        num_experts, dim, half_hidden = self.w2_codes.shape
        expected = {
            "w13_codes": (num_experts, 4 * half_hidden, dim // 2),
            "w13_scale": (num_experts, 4 * half_hidden, dim // 16),
            "w13_global": (num_experts,),
            "w2_scale": (num_experts, dim, half_hidden // 8),
            "w2_global": (num_experts,),
        }
        for name, shape in expected.items():
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise ShapeError(f"{name} of shape {found}: expected {shape} beside w2_codes {(num_experts, dim)}")

    @property
    def num_experts(self) -> int:
        return self.w2_codes.shape[0]

    @property
    def dim(self) -> int:
        return self.w2_codes.shape[1]

    @property
    def hidden(self) -> int:
        return self.w2_codes.shape[2] * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperExperts:
    """The same weights repacked; `dim` and `hidden` are the real sizes, the words cover the padded ones."""

    w13_words: Tensor  # int32 [E, R/64, K/256, 4, 128, 4]
    w13_scales: Tensor  # int32 [E, R/64, K/256, 128, 2]
    w13_global: Tensor
    w2_words: Tensor
    w2_scales: Tensor
    w2_global: Tensor
    num_experts: int
    dim: int
    hidden: int


Experts = TypeVar("Experts", bound=Nvfp4Experts | HopperExperts)


def round_global_scales(experts: Experts, dtype: torch.dtype) -> Experts:
    """The same experts with global scales that went through `dtype` on their way.

    A peer casts them to the type of its parameters at load: in bf16 that scales a whole expert by up to 1 +- 2^-8, and
    nothing else tells the two apart.
    Source: sglang python/sglang/srt/layers/quantization/marlin_utils_fp4.py.
    """
    return replace(
        experts,
        w13_global=experts.w13_global.to(dtype).float(),
        w2_global=experts.w2_global.to(dtype).float(),
    )


def permuted_columns(num_columns: int, device: torch.device | str = "cpu") -> Tensor:
    """For every position of a permuted row, the column it holds: int64 [num_columns], a multiple of 64."""
    position = torch.arange(num_columns, device=device)
    j, d, t, c = position % 64 // 16, position % 16 // 8, position % 8 // 2, position % 2
    return position // 64 * 64 + 16 * t + 4 * j + 2 * d + c


def gate_up_rows(hidden_pad: int, device: torch.device | str = "cpu") -> Tensor:
    """For every row of a repacked w13, the row it is of [gate, up], each padded to `hidden_pad` rows.

    Block b of 64 rows holds gate rows (row half 0) and up rows (row half 1) of the 32 hidden channels whose outputs go
    to positions 32 b .. 32 b + 31 of the down projection's permuted input.
    """
    channel = permuted_columns(hidden_pad, device).view(-1, 4, 8)
    return torch.stack((channel, channel + hidden_pad), 2).flatten()


def repack(experts: Nvfp4Experts) -> HopperExperts:
    """Repack every expert, one at a time, on the device where the weights lie."""
    device = experts.w2_codes.device
    hidden_pad = padded(experts.hidden, COLUMN_PAD)
    gate_up = gate_up_rows(hidden_pad, device)
    w13_words, w13_scales = stacked(
        (
            _repack_matrix(
                _pad_halves(experts.w13_codes[e], hidden_pad)[gate_up], _pad_halves(scale_bytes, hidden_pad)[gate_up]
            )
            for e, scale_bytes in enumerate(experts.w13_scale.view(torch.uint8))
        ),
        experts.num_experts,
    )
    w2_words, w2_scales = stacked(
        (
            _repack_matrix(experts.w2_codes[e], scale_bytes)
            for e, scale_bytes in enumerate(experts.w2_scale.view(torch.uint8))
        ),
        experts.num_experts,
    )
    return HopperExperts(
        w13_words=w13_words,
        w13_scales=w13_scales,
        w13_global=experts.w13_global,
        w2_words=w2_words,
        w2_scales=w2_scales,
        w2_global=experts.w2_global,
        num_experts=experts.num_experts,
        dim=experts.dim,
        hidden=experts.hidden,
    )


def stacked(pairs: Iterator[tuple[Tensor, Tensor]], count: int) -> tuple[Tensor, Tensor]:
    """Both parts of all experts, put one by one into stacks that the first one makes: nothing is held twice."""
    stacks: tuple[Tensor, Tensor] | None = None
    for place, (words, scales) in enumerate(pairs):
        if stacks is None:
            stacks = words.new_empty(count, *words.shape), scales.new_empty(count, *scales.shape)
        stacks[0][place], stacks[1][place] = words, scales
    if stacks is None:
        raise ShapeError("no experts to repack: expected at least 1")
    return stacks


def padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _pad_halves(rows: Tensor, half: int) -> Tensor:
    """Pad the gate rows and the up rows each to `half` rows of zeros."""
    gate, up = rows.chunk(2)
    out = rows.new_zeros(2 * half, rows.shape[1])
    out[: gate.shape[0]], out[half : half + up.shape[0]] = gate, up
    return out


def _repack_matrix(codes: Tensor, scale_bytes: Tensor) -> tuple[Tensor, Tensor]:
    """Words int32 [R/64, K/256, 4, 128, 4] and scales int32 [R/64, K/256, 128, 2] of one matrix."""
    num_rows, num_columns = codes.shape[0], codes.shape[1] * 2
    rows, columns = padded(num_rows, ROW_PAD), padded(num_columns, COLUMN_PAD)
    padded_codes = codes.new_zeros(rows, columns // 2)
    padded_codes[:num_rows, : num_columns // 2] = codes
    padded_scales = scale_bytes.new_zeros(rows, columns // 16)
    padded_scales[:num_rows, : num_columns // 16] = scale_bytes

    # Rows are (block, warp, h, g); bytes are (chunk, sub, t, j, d), low nibble c = 0.
    grid = padded_codes.view(rows // 64, 4, 2, 8, columns // 256, 4, 4, 4, 2)
    grid = grid.permute(0, 4, 5, 1, 3, 6, 7, 2, 8).to(torch.int32)  # block chunk sub warp g t j h d
    halves = [_place(grid & 15), _place(grid >> 4)]
    words = halves[0] | (halves[1] << 16)

    # Groups are (chunk, sub, t).
    scales = _five_bit_exponent(padded_scales).view(rows // 64, 4, 2, 8, columns // 256, 4, 4)
    scales = scales.permute(0, 4, 1, 3, 6, 5, 2).contiguous()  # block chunk warp g t sub h
    return (
        words.reshape(rows // 64, columns // 256, 4, 128, 4).contiguous(),
        scales.view(rows // 64, columns // 256, 128, 8).view(torch.int32),
    )


def _place(codes: Tensor) -> Tensor:
    """Four codes [..., h, d] to the 16 bits they share; the last placement is split over what the others leave."""
    sign, magnitude = codes >> 3, codes & 7
    s = {(h, d): sign[..., h, d] for h in range(2) for d in range(2)}
    m = {(h, d): magnitude[..., h, d] for h in range(2) for d in range(2)}
    return (
        (s[0, 0] << 15 | m[0, 0] << 6)
        | (s[1, 0] << 12 | m[1, 0] << 3)
        | (s[0, 1] << 9 | m[0, 1])
        | (s[1, 1] << 14 | (m[1, 1] >> 1) << 10 | (m[1, 1] & 1) << 13)
    )


def _five_bit_exponent(scale_bytes: Tensor) -> Tensor:
    """Non-negative e4m3 bytes to bytes of 5 exponent and 3 mantissa bits without subnormals; 0 stays 0 (2^-20)."""
    value = scale_bytes.view(torch.float8_e4m3fn).float() * 2.0**117
    bf16_bits = value.to(torch.bfloat16).view(torch.int16).to(torch.int32)
    stored = (bf16_bits >> 4) - (EXPONENT_OFFSET << 3)
    return torch.where(scale_bytes == 0, 0, stored).to(torch.uint8)
