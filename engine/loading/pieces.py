"""A few rows of a matrix at a time: what a step over weights needs on the way stays small beside the weights.

Contract: a piece is whole blocks of the format, whose height the caller names. Only a scale of the whole matrix looks
beyond a piece. On a GPU, where launches cost more than memory on the way, a matrix is one piece.
"""

# N rows, K columns; leading axes (experts) may come before N.

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Encoding takes some 45 bytes a weight on the way: 3 MB of them.
WEIGHTS = 1 << 16
# Of a large matrix a larger piece.
PIECES = 32


def row_pieces(rows: int, columns: int, block_rows: int, device: torch.device) -> Iterator[slice]:
    """All rows in their order: some 2^16 weights at a time or a 32nd of the matrix, but always whole blocks."""
    wanted = max(WEIGHTS // columns, rows // PIECES, 1) if device.type == "cpu" else rows
    step = -(-wanted // block_rows) * block_rows
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def scale_rows(scale: Tensor, rows: slice, block_rows: int) -> Tensor:
    """The block scales [..., N / block_rows, C] of these rows, which begin with a block."""
    return scale[..., rows.start // block_rows : -(-rows.stop // block_rows), :]
