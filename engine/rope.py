"""The turns of rotary position embedding: what the LAST r channels are multiplied by, as interleaved pairs, in fp32.

Contract: the pair (a, b) of channels (2i, 2i + 1) becomes (a + i b) (cos + i sin) with angle position * frequency_i
(`kernels.norm_ref`). The main rope uses theta as it is; the compress rope stretches its low frequencies with YaRN,
without touching amplitude or softmax scale.
"""

# T positions, R rotary channels, F = R / 2 frequencies.

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from engine.config import CSA, HCA, SLIDING, ModelConfig, Yarn
from kernels.sparse_attention_ref import Rotation


class StepTurns:
    """Turns of the positions (first, number): plain and with axes for batch and heads; what turns back once asked."""

    def __init__(self, asked: tuple[int, int], turns_TF: Tensor) -> None:
        self.asked, self.turns_TF, self.turns_1T1F = asked, turns_TF, turns_TF[None, :, None]
        self._rotation_2QF: Tensor | None = None

    @cached_property
    def back_1T1F(self) -> Tensor:
        return self.turns_1T1F.conj_physical()

    def rotation(self, batch: int) -> Rotation:
        """Cosines and sines float32 [B * T, F], contiguous: what a kernel turns the outputs of B sequences back by."""
        num_turns, num_pairs = self.turns_TF.shape
        if self._rotation_2QF is None or self._rotation_2QF.shape[1] != batch * num_turns:
            parts_2TF = torch.view_as_real(self.turns_TF).movedim(-1, 0)
            # One copy for both, and none in the layers.
            parts_2BTF = parts_2TF[:, None].expand(2, batch, num_turns, num_pairs).contiguous()
            self._rotation_2QF = parts_2BTF.flatten(1, 2)
        return self._rotation_2QF[0], self._rotation_2QF[1]


class Rope:
    """The turns of one kind of rope, kept from position 0 on in a table that doubles when a position is beyond it."""

    def __init__(self, theta: float, num_channels: int, yarn: Yarn | None = None, device: str = "cpu") -> None:
        exponent_F = torch.arange(0, num_channels, 2, dtype=torch.float32, device=device) / num_channels
        self.frequency_F = 1.0 / theta**exponent_F
        if yarn is not None:
            self.frequency_F = _stretch(self.frequency_F, theta, num_channels, yarn)
        self._table_TF = self._turns(0)
        self._step = StepTurns((0, 0), self._table_TF)

    def turns(self, start: int, num_positions: int, step: int = 1) -> Tensor:
        """cos + i sin, complex64 [T, F], of the positions start, start + step, and so on."""
        end = start + num_positions * step
        if end > self._table_TF.shape[0]:
            self._table_TF = self._turns(max(end, 2 * self._table_TF.shape[0]))
        return self._table_TF[start:end:step]

    def of_step(self, start: int, num_positions: int) -> StepTurns:
        """The turns of positions in a row; all layers of a step ask for the same ones, which are cut out once."""
        if self._step.asked != (start, num_positions):
            self._step = StepTurns((start, num_positions), self.turns(start, num_positions))
        return self._step

    def _turns(self, num_positions: int) -> Tensor:
        position_T = torch.arange(num_positions, dtype=torch.float32, device=self.frequency_F.device)
        angle_TF = position_T[:, None] * self.frequency_F
        if not angle_TF.is_cpu:
            return torch.complex(angle_TF.cos(), angle_TF.sin())
        # By numpy: the first cosines that two threads of torch compute in a process are at times wrong by 5e-4.
        exact_TF = angle_TF.numpy().astype(np.float64)
        return torch.from_numpy((np.cos(exact_TF) + 1j * np.sin(exact_TF)).astype(np.complex64))


def make_ropes(config: ModelConfig, device: str) -> dict[str, Rope]:
    """The rope of every kind of layer; layers that compress share one, and so do the others."""
    main = Rope(config.rope_theta, config.qk_rope_head_dim, device=device)
    compress = Rope(config.compress_rope_theta, config.qk_rope_head_dim, config.yarn, device)
    return {kind: main if kind == SLIDING else compress for kind in (SLIDING, CSA, HCA)}


def _stretch(frequency_F: Tensor, theta: float, num_channels: int, yarn: Yarn) -> Tensor:
    def channel(rotations: float) -> float:
        """The channel that turns this often over the original length."""
        length = yarn.original_max_position_embeddings
        return num_channels * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(theta))

    low = max(math.floor(channel(yarn.beta_fast)), 0)
    high: float = min(math.ceil(channel(yarn.beta_slow)), num_channels - 1)
    if low == high:
        high += 0.001
    index_F = torch.arange(len(frequency_F), dtype=torch.float32, device=frequency_F.device)
    ramp_F = ((index_F - low) / (high - low)).clamp(0, 1)
    return frequency_F * (1 - ramp_F) + frequency_F / yarn.factor * ramp_F
