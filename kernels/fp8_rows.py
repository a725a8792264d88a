"""Activations in e4m3 on a GPU, one fp32 scale per row and 128 columns: what an FP8 GEMM takes beside block weights.

Contract: bytes and scales as `fp8_block_ref.encode_rows` gives them: scale = amax / 448 (1 for zeros), values round to
nearest even. A group that holds NaN or infinity gets scale NaN, and its values mean nothing.
Live when: FP8 experts run on a GPU with activations quantised. No line depends on a constant.
Floor: one read and one write, at 3.9 TB/s.
"""

# N rows, C columns, G groups of 128 columns.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import require, require_device
from kernels.errors import DtypeError
from kernels.fp8_block_ref import BLOCK
from kernels.launch import launch
from kernels.small_float import on_grid


def _metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    moved = args["x"].nbytes + args["values"].nbytes + args["scales"].nbytes
    return {"name": "fp8_rows", "bytes": moved, "flops": 2 * args["x"].numel()}


@triton.jit(launch_metadata=_metadata)
def _quantise_rows(x, values, scales, C, G, GROUPS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    group_G = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column_GB = group_G[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x_GB = tl.load(x + row * C + column_GB, mask=column_GB < C, other=0.0).to(tl.float32)
    # A maximum would pass over NaN.
    amax_G = tl.max(tl.where(x_GB == x_GB, tl.abs(x_GB), float("inf")), axis=1)
    scale_G = tl.where(amax_G == 0.0, 1.0, tl.div_rn(amax_G, 448.0))
    scale_G = tl.where(amax_G == float("inf"), float("nan"), scale_G)
    quotient_GB = tl.div_rn(x_GB, tl.broadcast_to(scale_G[:, None], GROUPS, BLOCK))
    rounded_GB = on_grid(tl.minimum(tl.abs(quotient_GB), 448.0), 0.015625, 20)
    # A sign bit, for what rounds to zero keeps its sign.
    bits_GB = rounded_GB.to(tl.int32, bitcast=True) | (quotient_GB.to(tl.int32, bitcast=True) & -0x80000000)
    rounded_GB = bits_GB.to(tl.float32, bitcast=True)
    tl.store(values + row * C + column_GB, rounded_GB.to(tl.float8e4nv), mask=column_GB < C)
    tl.store(scales + row * G + group_G, scale_G, mask=group_G < G)


def quantise_rows(x_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise bf16 or fp32 rows [N, C] to float8_e4m3fn [N, C] and fp32 scales [N, ceil(C / 128)].

    Raises:
        DtypeError: the rows are of another dtype.
        DeviceError: they are not on a GPU of sm_80 or newer.
    """
    require_device("quantise_rows", x_NC)
    require(x_NC.dtype in (torch.bfloat16, torch.float32), DtypeError, "rows", x_NC.dtype, "bfloat16 or float32")
    num_rows, columns = x_NC.shape
    num_groups = triton.cdiv(columns, BLOCK)
    values = torch.empty(num_rows, columns, dtype=torch.float8_e4m3fn, device=x_NC.device)
    scales = torch.empty(num_rows, num_groups, dtype=torch.float32, device=x_NC.device)
    if values.numel() == 0:
        return values, scales
    groups = min(16, triton.next_power_of_2(num_groups))
    grid = (num_rows, triton.cdiv(num_groups, groups))
    launch(_quantise_rows, grid)(
        x_NC.contiguous(), values, scales, columns, num_groups, GROUPS=groups, BLOCK=BLOCK, num_warps=4
    )
    return values, scales
