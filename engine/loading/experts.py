"""The routed experts of a layer, put together from one stored matrix per expert and projection.

Contract: what comes out is packed as it was stored where all experts agree on a format that stacks: codes and block
scales row under row, gate before up, and one global scale for both halves. Halves with global scales of their own, and
FP8 blocks that do not end where the gate ends, have no such form; those come out as the numbers they stand for.
"""

# E experts, N rows, I expert hidden, K columns.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from engine.loading.formats import FP8_BLOCK, Layout, StoredMatrix

# Refuses what is not finite, by the name of its tensor.
Check = Callable[[StoredMatrix, Layout], StoredMatrix]


def why_not_packed(experts: Sequence[Sequence[Layout]], rows: int) -> str:
    """Why the experts cannot be kept as they are stored; empty if they can.

    Args:
        experts: for each expert its matrices: gate and up, or down alone.
        rows: of one matrix.
    """
    layouts = [layout for halves in experts for layout in halves]
    kinds = sorted({layout.storage for layout in layouts})
    if kinds == ["none"]:
        return "the experts are stored unquantised"
    if len(kinds) > 1:
        return f"the experts are stored in several formats: {', '.join(kinds)}"
    if kinds == ["fp8"] and len(experts[0]) > 1 and rows % FP8_BLOCK:
        return f"gate and up have {rows} rows each, which is no multiple of {FP8_BLOCK}"
    if any(len({_global_value(layout) for layout in halves}) > 1 for halves in experts):
        return "gate and up have global scales of their own"
    return ""


def read_packed(experts: Sequence[Sequence[Layout]], check: Check) -> StoredMatrix:
    """All experts of one projection, stacked as they are stored."""
    codes: Tensor | None = None
    scales: Tensor | None = None
    factors: list[Tensor] = []
    for expert, half, count, matrix in _matrices(experts, check):
        codes = _put(matrix.codes, codes, len(experts), expert, half, count)
        if matrix.block_scale is not None:
            scales = _put(matrix.block_scale, scales, len(experts), expert, half, count)
        if matrix.global_scale is not None and half == 0:
            factors.append(matrix.global_scale)
    assert codes is not None
    return StoredMatrix(experts[0][0].storage, codes, scales, torch.stack(factors) if factors else None)


def read_dense(experts: Sequence[Sequence[Layout]], check: Check) -> Tensor:
    """All experts of one projection, as the fp32 numbers [E, N, K] they stand for."""
    numbers: Tensor | None = None
    for expert, half, count, matrix in _matrices(experts, check):
        numbers = _put(matrix.decode(), numbers, len(experts), expert, half, count)
    assert numbers is not None
    return numbers


def _matrices(experts: Sequence[Sequence[Layout]], check: Check) -> Iterator[tuple[int, int, int, StoredMatrix]]:
    for expert, halves in enumerate(experts):
        for half, layout in enumerate(halves):
            yield expert, half, len(halves), check(layout.read(), layout)


def _put(matrix: Tensor, stack: Tensor | None, num_experts: int, expert: int, half: int, count: int) -> Tensor:
    """Writes one matrix into the stack of all, which the first one makes."""
    rows, columns = matrix.shape
    if stack is None:
        stack = matrix.new_empty(num_experts, count * rows, columns)
    stack[expert, half * rows : (half + 1) * rows].copy_(matrix)
    return stack


def _global_value(layout: Layout) -> float | None:
    return None if layout.global_scale is None else float(layout.global_scale.read())
