"""Rotary position embedding on the LAST r channels, in interleaved pairs (2i, 2i + 1), in fp32.

Contract: (a, b) -> (a cos - b sin, b cos + a sin) with angle position * frequency_i. The main rope uses theta as it
is; the compress rope stretches its low frequencies with YaRN, without touching amplitude or softmax scale.
"""

# B sequences, T tokens, R rotary channels, F = R / 2 frequencies.

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.config import Yarn


class Rope:
    def __init__(self, theta: float, num_channels: int, yarn: Yarn | None = None, device: str = "cpu") -> None:
        exponent_F = torch.arange(0, num_channels, 2, dtype=torch.float32, device=device) / num_channels
        self.frequency_F = 1.0 / theta**exponent_F
        if yarn is not None:
            self.frequency_F = _stretch(self.frequency_F, theta, num_channels, yarn)

    def rotate(self, x: Tensor, positions: Tensor, *, inverse: bool = False) -> Tensor:
        """Rotates the last channels of x by its positions.

        Args:
            x: [..., channels]; `positions` is broadcast over the axes of x before the last, and may lack heads.
            positions: integers; its axes are the leading axes of x. Remaining axes (heads) share the position.
            inverse: rotates back.
        """
        num_channels = 2 * self.frequency_F.shape[0]
        angle = positions[..., None].float() * self.frequency_F
        angle = angle.view(*positions.shape, *(1,) * (x.ndim - positions.ndim - 1), -1)
        cos, sin = angle.cos(), angle.sin()
        if inverse:
            sin = -sin
        even, odd = x[..., -num_channels::2], x[..., 1 - num_channels :: 2]
        rotated = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
        return torch.cat((x[..., :-num_channels], rotated), -1)


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
