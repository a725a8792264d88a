"""Matrices that read the same rows, as one matrix: one GEMM, whose columns are cut into what each of them gives."""

# D width of the rows, R columns of the product.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


class Projections:
    def __init__(self, matrices: Sequence[Tensor]) -> None:
        self.joined_RD = torch.cat(tuple(matrices))
        self._sizes = [len(matrix) for matrix in matrices]

    def each(self) -> tuple[Tensor, ...]:
        """The matrices again, as views."""
        return self.joined_RD.split(self._sizes)

    def apply(self, x: Tensor) -> tuple[Tensor, ...]:
        """x . W^T of each matrix W, [..., its rows], as views of one product."""
        return F.linear(x, self.joined_RD).split_with_sizes(self._sizes, -1)
