"""Picks for the index keys: scores of paged keys, and the selection from scores."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import index_page_ref
from kernels.choice import Record, Requested, pick, told
from kernels.errors import DtypeError


def index_scores(
    q_BTHD: Tensor,
    pages: Tensor,
    block_table_BP: Tensor,
    num_keys: int,
    weights_BTH: Tensor,
    scale: float,
    *,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Index scores fp32 [B, T, num_keys] of paged keys; see `index_page_ref.index_scores_ref`."""
    obstacle = "index keys are float32, the kernel takes fp8 and bfloat16" if pages.dtype == torch.float32 else None
    implementation, reason = pick("index_scores", q_BTHD, requested, obstacle=obstacle, error=DtypeError)
    if implementation == "triton":
        from kernels.index import index_scores as run
    else:
        run = index_page_ref.index_scores_ref
    if record is not None:
        run = told(record, "index_scores", implementation, requested, reason, run)
    return run(q_BTHD, pages, block_table_BP, num_keys, weights_BTH, scale)


def index_select(
    scores_BTS: Tensor,
    num_visible_BT: Tensor | None,
    index_topk: int,
    *,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """The best visible keys of every query, int64 [B, T, K], best first; see `index_page_ref.select_ref`."""
    implementation, reason = pick("index_select", scores_BTS, requested)
    if implementation == "triton":
        from kernels.index_select import index_select as run
    else:
        run = index_page_ref.select_ref
    if record is not None:
        run = told(record, "index_select", implementation, requested, reason, run)
    return run(scores_BTS, num_visible_BT, index_topk)
