"""Pick for the activation of an expert that is computed by two plain matrix products."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels.choice import Record, Requested, pick, told
from kernels.experts_ref import swiglu_ref


def swiglu(
    gate_up_T2I: Tensor,
    swiglu_limit: float | None,
    *,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """The clamped SwiGLU [T, I] of gate and up numbers, in their dtype; see `experts_ref.swiglu_ref`."""
    if gate_up_T2I.is_cpu and record is None and requested != "triton":
        return swiglu_ref(gate_up_T2I, swiglu_limit)
    implementation, reason = pick("swiglu", gate_up_T2I, requested)
    run: Callable[..., Tensor] = swiglu_ref
    if implementation == "triton":
        from kernels.swiglu import swiglu as run
    if record is not None:
        run = told(record, "swiglu", implementation, requested, reason, run)
    return run(gate_up_T2I, swiglu_limit)
