"""Picks for attention over window and entries: gathered already, or rows of the caches."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import sparse_attention_ref as sparse_attention_reference
from kernels.choice import Record, Requested, pick, told
from kernels.sparse_attention_ref import Rotation


def sparse_attention(
    q_BHD: Tensor,
    entries_BND: Tensor,
    valid_BN: Tensor | None,
    sinks_H: Tensor,
    scale: float,
    *,
    split_size: int | None = None,
    rotation: Rotation | None = None,
    out_dtype: torch.dtype = torch.float32,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Attention [B, H, D] over gathered entries; see `sparse_attention_ref`, which without `split_size` makes no splits
    where the kernel chooses them by the shape."""
    implementation, reason = pick("sparse_attention", q_BHD, requested)
    if implementation == "triton":
        from kernels.sparse_attention import sparse_attention as run
    else:
        run = sparse_attention_reference.sparse_attention_ref
    if record is not None:
        run = told(record, "sparse_attention", implementation, requested, reason, run)
    return run(
        q_BHD, entries_BND, valid_BN, sinks_H, scale, split_size=split_size, rotation=rotation, out_dtype=out_dtype
    )


def sparse_attention_rows(
    q_BHD: Tensor,
    window_SD: Tensor,
    window_rows_BW: Tensor,
    entries_SD: Tensor | None,
    entry_rows_BK: Tensor | None,
    sinks_H: Tensor,
    scale: float,
    *,
    split_size: int | None = None,
    rotation: Rotation | None = None,
    out_dtype: torch.dtype = torch.float32,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Attention [B, H, D] over rows of a window and an entry cache; see `sparse_attention_rows_ref`."""
    implementation, reason = pick("sparse_attention_rows", q_BHD, requested)
    if implementation == "triton":
        from kernels.sparse_attention import sparse_attention_rows as run
    else:
        run = sparse_attention_reference.sparse_attention_rows_ref
    if record is not None:
        run = told(record, "sparse_attention_rows", implementation, requested, reason, run)
    return run(
        q_BHD,
        window_SD,
        window_rows_BW,
        entries_SD,
        entry_rows_BK,
        sinks_H,
        scale,
        split_size=split_size,
        rotation=rotation,
        out_dtype=out_dtype,
    )
