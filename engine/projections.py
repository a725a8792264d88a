"""Matrices that read the same rows, as one matrix: one GEMM, whose columns are cut into what each of them gives."""

# D width of the rows, R columns of the product.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

# A larger matrix takes its time to read however it lies, and while it is turned it is held twice.
MAX_TURNED = 1 << 20


def by_column(matrix_RD: Tensor) -> Tensor:
    """The same numbers, on a CPU with a column after the other in memory, which multiplies a single row faster; a large
    matrix as it is."""
    return matrix_RD.t().contiguous().t() if matrix_RD.is_cpu and matrix_RD.numel() <= MAX_TURNED else matrix_RD


class Projections:
    def __init__(self, matrices: Sequence[Tensor]) -> None:
        self.joined_RD = by_column(torch.cat(tuple(matrices)))
        self._sizes = [len(matrix) for matrix in matrices]

    def each(self) -> tuple[Tensor, ...]:
        """The matrices again, as views."""
        return self.joined_RD.split(self._sizes)

    def apply(self, x: Tensor) -> tuple[Tensor, ...]:
        """x . W^T of each matrix W, [..., its rows], as views of one product."""
        return self.cut(F.linear(x, self.joined_RD))

    def cut(self, product: Tensor) -> tuple[Tensor, ...]:
        """What each matrix gives, of the product with all of them joined."""
        return product.split_with_sizes(self._sizes, -1)

    def apply_some(self, x: Tensor, first: int, end: int) -> tuple[Tensor, ...]:
        """The same of the matrices from `first` up to `end`."""
        sizes, start = self._sizes[first:end], sum(self._sizes[:first])
        return F.linear(x, self.joined_RD[start : start + sum(sizes)]).split_with_sizes(sizes, -1)
