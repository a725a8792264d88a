"""Picks for NVFP4 weights: codes of numbers, and numbers of codes."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import nvfp4_ref
from kernels.choice import Record, Requested, pick, told


def nvfp4_encode(
    w_NK: Tensor,
    *,
    four_over_six: bool = False,
    global_scale: Tensor | None = None,
    swizzled: bool = False,
    check: bool = True,
    requested: Requested = "auto",
    record: Record | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, block scales and global scales of NVFP4 weights, the same bytes by both; see `nvfp4_ref.encode`.

    The kernel takes contiguous fp32 or bf16 weights.
    """
    implementation, reason = pick("nvfp4_encode", w_NK, requested)
    if implementation == "triton":
        from kernels.nvfp4_encode import encode as run
    else:
        run = nvfp4_ref.encode
    if record is not None:
        run = told(record, "nvfp4_encode", implementation, requested, reason, run)
    return run(w_NK, four_over_six=four_over_six, global_scale=global_scale, swizzled=swizzled, check=check)


def nvfp4_decode(
    codes: Tensor,
    block_scale: Tensor,
    global_scale: Tensor,
    *,
    swizzled: bool = False,
    dtype: torch.dtype = torch.float32,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """The values [..., N, K] that NVFP4 codes stand for, bit for bit the same by both; see `nvfp4_ref.decode`."""
    implementation, reason = pick("nvfp4_decode", codes, requested)
    if implementation == "triton":
        from kernels.nvfp4 import decode as run
    else:
        run = nvfp4_ref.decode
    if record is not None:
        run = told(record, "nvfp4_decode", implementation, requested, reason, run)
    return run(codes, block_scale, global_scale, swizzled=swizzled, dtype=dtype)
