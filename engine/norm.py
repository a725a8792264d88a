"""RMS norm: weight * x / sqrt(mean(x^2) + eps), with or without a weight, in fp32 and rounded once to the type of x."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.norm_ref import rms_norm_ref


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Normalises the last axis, whatever the leading axes."""
    if x.dtype != torch.float32:
        return rms_norm(x.float(), weight, eps).to(x.dtype)
    return rms_norm_ref(x, eps, weight)
