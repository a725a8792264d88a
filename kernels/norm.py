"""RMS norm over the last axis on a GPU, rotary embedding of the last channels behind it or alone, in one launch.

Contract: as `norm_ref.norm_ref` and `norm_ref.rotate_ref`, with the same roundings: fp32 inside, rounded to the type of
x behind the norm and again behind the rotation. Only the order of the sum of squares differs. A program takes whole
rows, without atomics, and its tile follows from the width alone: a row has the same bits in every call and in any batch
whose rows are aligned alike (base and distance at multiples of 16 bytes, or not).
Live when: tensors lie on a GPU of sm_80 or newer. NORM: the first half of `_norm` and the three lines that normalise
the channels to rotate; without it x is rotated in place. HAS_WEIGHT: the weight is loaded and multiplied in. F > 0: the
second half, which reads the last 2 * F channels again (they lie in L1). OVERLAP: from sm_90 on a launch starts before
the one ahead of it has ended and waits inside.
Cost: bytes alone: rows in and out, weight and turns once. At 4.3 TB/s 4096 tokens of 4096 in bf16 are 16 us, 4096 of 64
heads of 512 are 125 us.
"""

# R rows of a program, D width, C rotated channels, F = C / 2 pairs, N rows of turns.

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from kernels.checks import overlapped, overlaps, require, require_device
from kernels.errors import DtypeError, ShapeError
from kernels.launch import launch

MAX_WIDTH = 8192
# What one warp takes of a wide row. Rows that are no wider share a program of one warp, 2048 numbers of them.
WARP_NUMBERS, SHARED_NUMBERS = 512, 2048


def _metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    rows, width, pairs = args["num_rows"], args["D"], args["F"]
    touched = width if args["NORM"] else 2 * pairs
    size = 2 * rows * touched * args["x"].element_size() + 4 * width * args["HAS_WEIGHT"]
    name = f"{'norm' if args['NORM'] else 'rotate'} {rows} x {width}"
    if pairs:
        size += 8 * args["num_turns"] * pairs
        name += f", {2 * pairs} rotated"
    flops = rows * ((3 + args["HAS_WEIGHT"]) * width * args["NORM"] + 6 * pairs)
    return {"name": name, "bytes": size, "flops": flops}


@triton.jit(launch_metadata=_metadata, do_not_specialize=["num_rows", "num_turns", "rows_each"])
def _norm(  # type: ignore[no-untyped-def]
    x,
    weight,
    turns,
    out,
    eps,
    num_rows,
    row_stride,
    num_turns,
    rows_each,
    turn_stride,
    D: tl.constexpr,
    F: tl.constexpr,
    NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real_R1 = (row_R < num_rows)[:, None]
    from_R1 = x + (row_R.to(tl.int64) * row_stride)[:, None]
    to_R1 = out + (row_R.to(tl.int64) * D)[:, None]
    if NORM:
        d_1D = tl.arange(0, BLOCK_D)[None, :]
        x_RD = tl.load(from_R1 + d_1D, mask=real_R1 & (d_1D < D), other=0.0).to(tl.float32)
        factor_R1 = tl.rsqrt(tl.sum(x_RD * x_RD, axis=1) * (1.0 / D) + eps)[:, None]
        normed_RD = x_RD * factor_R1
        if HAS_WEIGHT:
            normed_RD *= tl.load(weight + d_1D, mask=d_1D < D, other=0.0)
        tl.store(to_R1 + d_1D, normed_RD.to(out.dtype.element_ty), mask=real_R1 & (d_1D < D - 2 * F))
    if F > 0:
        c_1C = tl.arange(0, BLOCK_C)[None, :]
        d_1C = D - 2 * F + c_1C
        real_RC = real_R1 & (c_1C < 2 * F)
        x_RC = tl.load(from_R1 + d_1C, mask=real_RC, other=0.0).to(tl.float32)
        if NORM:
            x_RC *= factor_R1
            if HAS_WEIGHT:
                x_RC *= tl.load(weight + d_1C, mask=c_1C < 2 * F, other=0.0)
            x_RC = x_RC.to(out.dtype.element_ty).to(tl.float32)
        turn_R = (row_R // rows_each) % num_turns
        turn_RC = tl.load(turns + (turn_R.to(tl.int64) * turn_stride)[:, None] + c_1C, mask=real_RC, other=0.0)
        a_RF, b_RF = tl.split(tl.reshape(x_RC, (ROWS, BLOCK_C // 2, 2)))
        cos_RF, sin_RF = tl.split(tl.reshape(turn_RC, (ROWS, BLOCK_C // 2, 2)))
        pair_RF2 = tl.join(a_RF * cos_RF - b_RF * sin_RF, b_RF * cos_RF + a_RF * sin_RF)
        tl.store(to_R1 + d_1C, tl.reshape(pair_RF2, (ROWS, BLOCK_C)).to(out.dtype.element_ty), mask=real_RC)


def norm(x: Tensor, eps: float, weight_D: Tensor | None = None, turns: Tensor | None = None) -> Tensor:
    """x [..., D] normalised and, where turns are given, its last 2 * F channels rotated; in the type of x, contiguous.

    Args:
        x: bf16 or fp32; rows that are equally far apart are read where they lie.
        weight_D: fp32.
        turns: complex64 [..., F], broadcast over the axes of x before the last: whole sequences of rows may share them,
            and rows one after another may.

    Raises:
        DtypeError: x is not bf16 or fp32, the weight not fp32 or the turns not complex64.
        ShapeError: a size or a stride does not fit.
        DeviceError: the tensors are not all on one GPU.
    """
    require_device("norm", *(tensor for tensor in (x, weight_D, turns) if tensor is not None))
    _check_rows(x)
    if weight_D is not None:
        require(weight_D.dtype == torch.float32, DtypeError, "weight of a norm", weight_D.dtype, "fp32")
        require(weight_D.shape == x.shape[-1:], ShapeError, "weight of a norm", tuple(weight_D.shape),
                tuple(x.shape[-1:]))  # fmt: skip
        require(weight_D.stride(0) == 1, ShapeError, "stride of a norm's weight", weight_D.stride(0), 1)
    out = torch.empty(*x.shape, dtype=x.dtype, device=x.device)
    _launch(x, out, eps, weight_D, turns, normalise=True)
    return out


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotates the last 2 * F channels of x [..., D], contiguous bf16 or fp32, in place and returns it; turns as above.

    Raises:
        DtypeError: x is not bf16 or fp32, or the turns are not complex64.
        ShapeError: a size or a stride does not fit.
        DeviceError: the tensors are not all on one GPU.
    """
    require_device("rotate", x, turns)
    _check_rows(x)
    require(x.is_contiguous(), ShapeError, "strides of rows to rotate in place", x.stride(), "contiguous")
    _launch(x, x, 0.0, None, turns, normalise=False)
    return x


def _launch(
    x: Tensor, out: Tensor, eps: float, weight_D: Tensor | None, turns: Tensor | None, *, normalise: bool
) -> None:
    width, pairs, num_turns, rows_each, turn_stride = x.shape[-1], 0, 1, 1, 0
    if turns is not None:
        rows_each = _rows_each(turns, x)
        turns = torch.view_as_real(turns.resolve_conj().reshape(-1, turns.shape[-1]))
        num_turns, pairs, _ = turns.shape
        turn_stride = turns.stride(0)
    if not x.numel():
        return
    x_RD = x.reshape(-1, width)
    block = triton.next_power_of_2(width if normalise else 2 * pairs)
    rows = SHARED_NUMBERS // block if block <= WARP_NUMBERS else 1
    launch(_norm, (triton.cdiv(len(x_RD), rows),))(
        x_RD,
        weight_D,
        turns,
        out,
        eps,
        len(x_RD),
        x_RD.stride(0),
        num_turns,
        rows_each,
        turn_stride,
        D=width,
        F=pairs,
        NORM=normalise,
        HAS_WEIGHT=weight_D is not None,
        ROWS=rows,
        BLOCK_D=triton.next_power_of_2(width),
        BLOCK_C=triton.next_power_of_2(2 * pairs),
        num_warps=max(1, block // WARP_NUMBERS),
        **overlapped(overlaps(x.device)),
    )


def _check_rows(x: Tensor) -> None:
    require(x.dtype in (torch.bfloat16, torch.float32), DtypeError, "rows of a norm", x.dtype, "bf16 or fp32")
    require(x.ndim > 0 and 0 < x.shape[-1] <= MAX_WIDTH, ShapeError, "width of a norm", tuple(x.shape),
            f"1 to {MAX_WIDTH} along the last axis")  # fmt: skip
    require(x.stride(-1) == 1, ShapeError, "strides of a norm's rows", x.stride(), "1 along the last axis")


def _rows_each(turns: Tensor, x: Tensor) -> int:
    """How many rows of x one after another share a row of turns; after the last of these the first comes again."""
    require(turns.dtype == torch.complex64, DtypeError, "turns", turns.dtype, "complex64")
    lead, width = tuple(x.shape[:-1]), x.shape[-1]
    sizes = (1,) * (x.ndim - turns.ndim) + tuple(turns.shape[:-1])
    own = [axis for axis, size in enumerate(sizes) if size != 1]
    first, end = (own[0], own[-1] + 1) if own else (0, 0)
    fits = 0 < turns.ndim <= x.ndim and sizes[first:end] == lead[first:end]
    require(fits and 0 < 2 * turns.shape[-1] <= width, ShapeError, "turns", tuple(turns.shape),
            f"F of 1 to {width // 2} behind the sizes {lead}, or 1 for some outermost and innermost ones")  # fmt: skip
    return math.prod(lead[end:])
