"""RMS norm in plain torch: x / sqrt(mean(x^2) + eps) over the last axis, in fp32.

Contract: one norm, one reciprocal root and one product; the sum of squares is fp32.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor


@cache
def constant(value: float, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """A number as a tensor without axes, made once: torch makes one out of a Python number at every use of it."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device=device)


ZERO = constant(0.0, torch.device("cpu"))


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in this type; where it is of it already, `to` would cost as much as a small product."""
    return x if x.dtype == dtype else x.to(dtype)


def divided(x: Tensor, by: float) -> Tensor:
    """x / by, rounded once on every device: by a Python number torch divides on a GPU with its rounded inverse."""
    return x / constant(by, x.device)


def rms_norm_ref(x: Tensor, eps: float, weight_D: Tensor | None = None) -> Tensor:
    """x [..., D] float32 divided by the root of its mean square over the last axis, times the weight where given.

    A single row on the CPU has its factor computed as a Python number: three calls instead of five.
    """
    width = x.shape[-1]
    if x.is_cpu and x.numel() == width and eps > 0:
        length = torch.linalg.vector_norm(x).item()
        factor = 1 / math.sqrt(length * length / width + eps)
        # With a Python number a product costs more than a sum does.
        return torch.add(ZERO, x, alpha=factor) if weight_D is None else torch.addcmul(ZERO, x, weight_D, value=factor)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    mean_square = torch.addcmul(constant(eps, x.device), norm, norm, value=1 / width)
    normed = x * mean_square.rsqrt_()
    return normed if weight_D is None else normed.mul_(weight_D)
