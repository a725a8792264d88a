"""RMS norm in fp32: weight * x / sqrt(mean(x^2) + eps), with or without a weight."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Normalises the last axis, whatever the leading axes."""
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight
