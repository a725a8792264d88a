"""RMS norm in plain torch: x / sqrt(mean(x^2) + eps) over the last axis, in fp32.

Contract: one norm, one reciprocal root and one product, whatever the leading axes; the sum of squares is fp32.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def constant(value: float, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """A number as a tensor without axes, made once: torch makes one out of a Python number at every use of it."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device=device)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in this type; where it is of it already, `to` would cost as much as a small product."""
    return x if x.dtype == dtype else x.to(dtype)


def rms_norm_ref(x: Tensor, eps: float) -> Tensor:
    """x [..., D] float32 divided by the root of its mean square over the last axis."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    mean_square = torch.addcmul(constant(eps, x.device), norm, norm, value=1 / x.shape[-1])
    return x * mean_square.rsqrt()
