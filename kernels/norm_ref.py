"""RMS norm and rotary embedding in plain torch: x / sqrt(mean(x^2) + eps) over the last axis, last channels rotated.

Contract: the norm is one norm, one reciprocal root and one product in fp32, rounded once to the type of x; the sum of
squares is fp32. A rotation takes interleaved pairs (2i, 2i + 1) to (a cos - b sin, b cos + a sin), the product of
a + i b and the turn cos + i sin, in fp32, and rounds once more.
"""

# D width, F rotated pairs.

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


def norm_ref(x: Tensor, eps: float, weight_D: Tensor | None = None, turns: Tensor | None = None) -> Tensor:
    """x [..., D], float32 or bfloat16, normalised and, where turns are given, rotated; see `rotate_ref` for those."""
    if x.dtype == torch.float32:
        normed = rms_norm_ref(x, eps, weight_D)
    else:
        normed = rms_norm_ref(x.float(), eps, weight_D).to(x.dtype)
    return normed if turns is None else rotate_ref(normed, turns)


def rotate_ref(x: Tensor, turns: Tensor) -> Tensor:
    """Rotates the last channels of x in place, in fp32, and returns it.

    Args:
        x: [..., D], float32 or bfloat16.
        turns: complex64 [..., F], broadcast over the axes of x before the last; conjugate, they rotate back.
    """
    num_pairs = turns.shape[-1]
    if x.dtype == torch.float32:
        x.view(torch.complex64)[..., -num_pairs:].mul_(turns)
    else:
        pairs = x[..., -2 * num_pairs :].view(*x.shape[:-1], num_pairs, 2)
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()) * turns))
    return x
