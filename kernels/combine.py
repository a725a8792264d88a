"""The two light passes around the expert GEMMs: order the activations' columns, and sum the picks of each token.

Contract of the sum: out[t] = factor * sum_k weight[t, k] * rows[t * K + k], in fp32 and in the order of k, so it is the
same from run to run; picks whose id is no expert are skipped, their rows were never written.
Live when: the experts run on a GPU; the column order only beside `experts_hopper`.
"""

# T tokens, K picks per token, D model dim.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from kernels.checks import overlapped
from kernels.launch import launch


def _permute_metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": "permute_columns", "bytes": args["x"].nbytes + args["out"].nbytes, "flops": 0}


def _combine_metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    moved = sum(args[name].nbytes for name in ("rows", "topk_ids", "topk_weights", "out"))
    return {"name": "combine", "bytes": moved, "flops": 2 * args["rows"].numel() + args["out"].numel()}


@triton.jit(launch_metadata=_permute_metadata)
def _permute_pairs(x, out, num_pairs, num_out_pairs, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    if OVERLAP:
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # A pair is 4 bytes: place (j, d, t) of a chunk of 32 pairs holds pair (t, j, d).
    source = place // 32 * 32 + place % 4 * 8 + place % 32 // 8 * 2 + place % 8 // 4
    pair = tl.load(x + token * num_pairs + source, mask=(place < num_out_pairs) & (source < num_pairs), other=0)
    tl.store(out + token * num_out_pairs + place, pair, mask=place < num_out_pairs)


@triton.jit(launch_metadata=_combine_metadata)
def _combine(  # type: ignore[no-untyped-def]
    rows,
    topk_ids,
    topk_weights,
    out,
    factor,
    D,
    TOPK: tl.constexpr,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(TOPK):
        expert = tl.load(topk_ids + token * TOPK + k)
        real = (expert >= 0) & (expert < E)
        value = tl.load(rows + (token * TOPK + k) * D + column, mask=(column < D) & real, other=0.0)
        acc += tl.load(topk_weights + token * TOPK + k) * value.to(tl.float32)
    tl.store(out + token * D + column, (acc * factor).to(out.dtype.element_ty), mask=column < D)


def permute_columns(x_TD: Tensor, num_columns: int, overlap: bool = False) -> Tensor:
    """bf16 rows [T, D] with columns in the order of `permuted_columns`, padded with zeros to `num_columns`."""
    num_tokens, dim = x_TD.shape
    out = torch.empty(num_tokens, num_columns, dtype=torch.bfloat16, device=x_TD.device)
    block = 1024
    launch(_permute_pairs, (num_tokens, triton.cdiv(num_columns // 2, block)))(
        x_TD.view(torch.int32),
        out.view(torch.int32),
        dim // 2,
        num_columns // 2,
        BLOCK=block,
        num_warps=4,
        **overlapped(overlap),
    )
    return out


def combine(
    rows_ND: Tensor,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    num_experts: int,
    factor: float | None,
    out: Tensor,
    overlap: bool = False,
) -> Tensor:
    """The weighted sum of each token's rows into `out` [T, D]."""
    num_tokens, dim = out.shape
    block = min(1024, triton.next_power_of_2(dim))
    launch(_combine, (num_tokens, triton.cdiv(dim, block)))(
        rows_ND,
        topk_ids_TK,
        topk_weights_TK,
        out,
        1.0 if factor is None else factor,
        dim,
        TOPK=topk_ids_TK.shape[1],
        E=num_experts,
        BLOCK=block,
        num_warps=4,
        **overlapped(overlap),
    )
    return out
