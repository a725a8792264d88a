"""The clamped SwiGLU between two matrix products, in one pass that reads [T, 2I] and writes [T, I].

Contract: as `experts_ref.swiglu_ref`: fp32, then one rounding to the input's dtype. Compiled, the operations are those
of torch's own kernels on a GPU, CUDA's exponential and a division to the nearest number, so the bits are too. On a CPU
torch has another exponential, a few 1e-7 of the value away; in bf16 that is at most one unit in the last place.
Live when: tensors lie on a GPU of sm_80 or newer. HAS_LIMIT: the clamps. COMPILED: CUDA's exponential, which the
interpreter does not have. OVERLAP: on sm_90 and newer.
Floor: three elements moved for each one written, at copy bandwidth.
"""

# T tokens, I hidden channels.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_wait

from kernels.checks import interpreting, overlapped, overlaps, require, require_device
from kernels.errors import DtypeError, NumericsError, ShapeError
from kernels.launch import launch

BLOCK_I = 1024


@triton.jit
def limited(gate, up, limit):  # type: ignore[no-untyped-def]
    """Gate held from above, up on both sides. Without being told so, a minimum of NaN and the limit is the limit."""
    gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
    return gate, tl.clamp(up, -limit, limit, propagate_nan=tl.PropagateNan.ALL)


def _metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What a profiler is told: an exponential, a sum, a quotient and a product for each number written."""
    tokens, hidden = grid[0], args["I"]
    size = tokens * hidden * (2 * args["x"].element_size() + args["out"].element_size())
    return {"name": f"swiglu {tokens} x {hidden}", "bytes": size, "flops": 4 * tokens * hidden}


@triton.jit(launch_metadata=_metadata)
def _swiglu(  # type: ignore[no-untyped-def]
    x,
    out,
    limit,
    row_stride,
    I,  # noqa: E741
    HAS_LIMIT: tl.constexpr,
    BLOCK_I: tl.constexpr,
    COMPILED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    t = tl.program_id(0).to(tl.int64)
    i_I = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    real_I = i_I < I
    gate_I = tl.load(x + t * row_stride + i_I, mask=real_I, other=0.0).to(tl.float32)
    up_I = tl.load(x + t * row_stride + I + i_I, mask=real_I, other=0.0).to(tl.float32)
    if HAS_LIMIT:
        gate_I, up_I = limited(gate_I, up_I, limit)
    if COMPILED:
        exp_I = libdevice.exp(-gate_I)
    else:
        exp_I = tl.exp(-gate_I)
    value_I = tl.div_rn(gate_I, 1.0 + exp_I) * up_I
    tl.store(out + t * I + i_I, value_I.to(out.dtype.element_ty), mask=real_I)


def swiglu(gate_up_T2I: Tensor, swiglu_limit: float | None) -> Tensor:
    """silu(gate) * up [T, I] of rows [gate, up], in their dtype (bf16 or fp32); `swiglu_limit` clamps, None does not.

    Raises:
        DtypeError: the rows are neither bf16 nor fp32.
        ShapeError: they are no matrix of an even width with stride 1 along it.
        NumericsError: the limit is below 0 or NaN.
        DeviceError: they do not lie on a GPU of sm_80 or newer.
    """
    require_device("swiglu", gate_up_T2I)
    dtype, shape = gate_up_T2I.dtype, tuple(gate_up_T2I.shape)
    require(dtype in (torch.bfloat16, torch.float32), DtypeError, "gate and up", dtype, "bf16 or fp32")
    require(len(shape) == 2 and shape[1] % 2 == 0, ShapeError, "gate and up", shape, "[T, 2I]")
    num_tokens, hidden = shape[0], shape[1] // 2
    strides = gate_up_T2I.stride()
    require(hidden == 0 or strides[1] == 1, ShapeError, "strides of gate and up", strides, "1 along the last axis")
    require(
        swiglu_limit is None or swiglu_limit >= 0, NumericsError, "swiglu_limit", swiglu_limit, "0 or more, or None"
    )
    # The interpreter's cast to bf16 truncates, so there torch casts.
    written = torch.float32 if interpreting() else dtype
    out_TI = torch.empty(num_tokens, hidden, dtype=written, device=gate_up_T2I.device)
    if out_TI.numel():
        block = min(BLOCK_I, triton.next_power_of_2(hidden))
        launch(_swiglu, (num_tokens, triton.cdiv(hidden, block)))(
            gate_up_T2I,
            out_TI,
            0.0 if swiglu_limit is None else swiglu_limit,
            strides[0],
            hidden,
            HAS_LIMIT=swiglu_limit is not None,
            BLOCK_I=block,
            COMPILED=not interpreting(),
            num_warps=4,
            **overlapped(overlaps(out_TI.device)),
        )
    return out_TI.to(dtype)
