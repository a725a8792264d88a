"""The routed experts of a layer's projection, put together from one stored matrix per expert and half.

Contract: bytes are read when they are asked for, one expert after the other, so nothing of a layer is held twice. What
`kept_as` gives is packed as it was stored where all experts agree on a format that stacks: codes and block scales row
under row, gate before up, and one global scale for both halves. Halves with global scales of their own, and FP8 blocks
that do not end where the gate ends, have no such form; `numbers` gives those as the fp32 they stand for.
"""

# E experts, N rows, K columns.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine import events
from engine.loading.formats import FP8_BLOCK, Layout, Storage, StoredMatrix, is_same_number_format

# Refuses what is not finite, by the name of its tensor.
Check = Callable[[StoredMatrix, Layout], StoredMatrix]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExperts:
    """One projection: of each expert its matrices, gate and up, or one alone; `mine` of them are this process's."""

    name: str
    layouts: Sequence[Sequence[Layout]]
    check: Check
    mine: range
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.mine)

    @property
    def storages(self) -> list[Storage]:
        """What they are stored as: one format, in any checkpoint that a tool wrote."""
        return sorted({layout.storage for halves in self.layouts for layout in halves})

    def within(self, local: slice) -> StoredExperts:
        """Those of one process; the scale of the activations stays that of all."""
        return replace(self, mine=self.mine[local])

    def numbers(self) -> Iterator[Tensor]:
        """Expert by expert, the fp32 matrix [N, K] that is stored."""
        for halves in self._mine():
            yield self._decoded(halves)

    def kept_as(self, storage: Storage, room: int = 0) -> StoredMatrix | None:
        """All experts, [E, N, K], as they are stored where that is `storage`, rounding nothing anew; else None.

        Args:
            room: so many experts more find place behind them; what lies there is anything.
        """
        kinds = self.storages
        if kinds == ["none"]:
            return None
        reason = self._why_apart(kinds)
        if not reason and not is_same_number_format(kinds[0], storage):
            reason = f"expert_quant is {storage}: decoded and encoded anew"
        if reason:
            setting = f"stored form of the experts ({', '.join(kinds)})"
            events.emit_once(("packed", self.name), "ignored", setting=setting, where=self.name, reason=reason)
            return None
        return self._stacked(room).stored_as(storage)

    def input_scale(self) -> Tensor | None:
        """What codes of the activations are multiplied by, fp32: the largest over all experts and both halves.

        A GEMM over all experts takes one scale for its input. Experts that no calibration token reached may have none.
        """
        scales = [layout.read_input_scale() for halves in self.layouts for layout in halves]
        known = [scale for scale in scales if scale is not None]
        return torch.stack(known).amax().to(self.device) if known else None

    def input_scale_of(self, expert: int, half: int) -> Tensor | None:
        """The same of one matrix, where it is for NVFP4."""
        layout = self.layouts[self.mine[expert]][half if len(self.layouts[0]) > 1 else 0]
        return layout.read_input_scale() if is_same_number_format(layout.storage, "nvfp4") else None

    def _mine(self) -> Iterator[Sequence[Layout]]:
        return (self.layouts[expert] for expert in self.mine)

    def _decoded(self, halves: Sequence[Layout]) -> Tensor:
        rows, columns = halves[0].shape
        w_NK = torch.empty(len(halves) * rows, columns, device=self.device)
        for layout, own in zip(halves, w_NK.split(rows), strict=True):
            self.check(layout.read(), layout).decode_into(own)
        return w_NK

    def _why_apart(self, kinds: list[Storage]) -> str:
        """Why the experts cannot be kept as they are stored; empty if they can."""
        if len(kinds) > 1:
            return f"the experts are stored in several formats: {', '.join(kinds)}"
        halves = self.layouts[0]
        rows = halves[0].codes.shape[0]
        if kinds == ["fp8"] and len(halves) > 1 and rows % FP8_BLOCK:
            return f"gate and up have {rows} rows each, which is no multiple of {FP8_BLOCK}"
        if any(len({_global_value(layout) for layout in halves}) > 1 for halves in self.layouts):
            return "gate and up have global scales of their own"
        return ""

    def _stacked(self, room: int) -> StoredMatrix:
        codes: Tensor | None = None
        scales: Tensor | None = None
        factors: list[Tensor] = []
        num_experts = len(self) + room
        for expert, halves in enumerate(self._mine()):
            for half, layout in enumerate(halves):
                matrix = self.check(layout.read(), layout)
                codes = self._put(matrix.codes, codes, num_experts, expert, half, len(halves))
                if matrix.block_scale is not None:
                    scales = self._put(matrix.block_scale, scales, num_experts, expert, half, len(halves))
                if matrix.global_scale is not None and half == 0:
                    factors.append(matrix.global_scale)
        assert codes is not None
        factor_E = torch.stack(factors + factors[:1] * room).to(self.device) if factors else None
        return StoredMatrix(self.layouts[0][0].storage, codes, scales, factor_E)

    def _put(
        self, matrix: Tensor, stack: Tensor | None, num_experts: int, expert: int, half: int, count: int
    ) -> Tensor:
        """Writes one matrix into the stack of all, which the first one makes."""
        rows, columns = matrix.shape
        if stack is None:
            stack = torch.empty(num_experts, count * rows, columns, dtype=matrix.dtype, device=self.device)
        stack[expert, half * rows : (half + 1) * rows].copy_(matrix)
        return stack


def _global_value(layout: Layout) -> float | None:
    return None if layout.global_scale is None else float(layout.global_scale.read())
