"""Picks for RMS norm and rotary embedding."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels.choice import Record, Requested, pick, told
from kernels.norm_ref import norm_ref, rotate_ref


def norm(
    x: Tensor,
    eps: float,
    weight_D: Tensor | None = None,
    turns: Tensor | None = None,
    *,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """x [..., D] normalised, times the weight and rotated where those are given, in the type of x; see `norm_ref`."""
    if x.is_cpu and record is None and requested != "triton":
        return norm_ref(x, eps, weight_D, turns)
    implementation, reason = pick("norm", x, requested)
    run: Callable[..., Tensor] = norm_ref
    if implementation == "triton":
        from kernels.norm import norm as run
    if record is not None:
        run = told(record, "norm", implementation, requested, reason, run)
    return run(x, eps, weight_D, turns)


def rotate(x: Tensor, turns: Tensor, *, requested: Requested = "auto", record: Record | None = None) -> Tensor:
    """x [..., D] with its last channels rotated in place; see `norm_ref.rotate_ref`."""
    if x.is_cpu and record is None and requested != "triton":
        return rotate_ref(x, turns)
    implementation, reason = pick("rotate", x, requested)
    run: Callable[..., Tensor] = rotate_ref
    if implementation == "triton":
        from kernels.norm import rotate as run
    if record is not None:
        run = told(record, "rotate", implementation, requested, reason, run)
    return run(x, turns)
