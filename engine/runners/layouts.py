"""Orders of rows and scales that runners keep their weights in, each with its way back.

Contract: every function moves whole rows or whole scales and changes no byte; formats of one byte keep their dtype.
Scales that do not come one per row (128 x 128 blocks) stay where they are: the codes are put back before they meet.
"""

# E experts, N rows, C columns.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.nvfp4_ref import swizzle, unswizzle

if TYPE_CHECKING:
    from engine.methods.base import Packed


def with_rows(packed: Packed, move: Callable[[Tensor], Tensor]) -> Packed:
    """The packed weights with `move` done to the rows of the codes and of those scales that come one set per row."""
    scale = packed.block_scale
    if scale is not None and scale.shape[1] == packed.codes.shape[1]:
        scale = move(scale)
    return replace(packed, codes=move(packed.codes), block_scale=scale)


def swap_halves(rows_ENC: Tensor) -> Tensor:
    """[gate, up] to [up, gate] and back."""
    return _of_bytes(rows_ENC, lambda rows: torch.cat(rows.chunk(2, 1)[::-1], 1))


def interleave(rows_ENC: Tensor) -> Tensor:
    """[gate, up] to gate 0, up 0, gate 1, up 1, ..."""
    return _of_bytes(rows_ENC, lambda rows: torch.stack(rows.chunk(2, 1), 2).flatten(1, 2))


def deinterleave(rows_ENC: Tensor) -> Tensor:
    return _of_bytes(rows_ENC, lambda rows: torch.cat((rows[:, 0::2], rows[:, 1::2]), 1))


def swizzle_scales(scale_ENC: Tensor) -> Tensor:
    """Linear scales of one byte to one flat 128 x 4 order per expert."""
    return _of_bytes(scale_ENC, lambda scale: torch.stack([swizzle(one) for one in scale]))


def unswizzle_scales(flat: Tensor, rows: int, columns: int) -> Tensor:
    return _of_bytes(flat, lambda scale: torch.stack([unswizzle(one, rows, columns) for one in scale]))


def _of_bytes(tensor: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
    """Formats of one byte are moved as bytes: torch has few operations on them."""
    if tensor.element_size() > 1:
        return move(tensor).contiguous()
    return move(tensor.view(torch.uint8)).contiguous().view(tensor.dtype)
