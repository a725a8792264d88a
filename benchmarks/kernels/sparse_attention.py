"""Attention of 64 heads of 512 over a window of 128 and selected entries: decode steps, each sequence with a cache of
its own, and a stretch of prefill over one cache.

Floor: the longer of the bytes (every candidate's row once per query, 1024 bytes in bf16 and 584 packed, the queries and
the output) at 4.3 TB/s and the two products at 790 TFLOP/s. The bound of a decode step of 16 is below two launches.
Peers gather first, as they must: the reference op by op, and torch's scaled dot product attention with the sink as one
more key of zeros; both from bf16 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import clean_us, median_us
from kernels import attention_cache_ref
from kernels.sparse_attention import BATCH_INVARIANT_SPLIT, sparse_attention_rows
from kernels.sparse_attention_ref import sparse_attention_ref, sparse_attention_rows_ref

HEADS, DIM, WINDOW = 64, 512, 128
BYTES_PER_S, FLOPS_PER_S = 4.3e12, 790e12
ERROR_LIMIT = 3e-3
# Entries that a query's picks are drawn from: those of 16k tokens.
ENTRIES = 4096
CHECKED_QUERIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    queries: int
    picks: int
    prefill: bool = False


SHAPES = {
    f"{batch}x{WINDOW + picks}": Shape(queries=batch, picks=picks) for picks in (512, 2048) for batch in (16, 64, 128)
}
SHAPES["prefill-4096x640"] = Shape(queries=4096, picks=512, prefill=True)


def floor_us(shape: Shape, row_bytes: int) -> float:
    """The byte or flop bound of one call, the longer."""
    candidates = shape.queries * (WINDOW + shape.picks)
    moved = candidates * row_bytes + 2 * shape.queries * HEADS * DIM * 2
    return max(moved / BYTES_PER_S, 4 * candidates * HEADS * DIM / FLOPS_PER_S) * 1e6


def run(shape_names: list[str], peers: bool = True) -> list[dict[str, Any]]:
    """One row per shape, cache format and way to choose the splits."""
    rows: list[dict[str, Any]] = []
    for name in shape_names:
        shape, generator = SHAPES[name], torch.Generator("cuda").manual_seed(0)
        window, window_rows, entries, entry_rows = _caches(shape, generator)
        q = torch.randn(shape.queries, HEADS, DIM, device="cuda", generator=generator).bfloat16()
        sinks = torch.randn(HEADS, device="cuda", generator=generator)
        angles = torch.rand(shape.queries, 32, device="cuda", generator=generator)
        plain = (window.bfloat16(), window_rows, entries.bfloat16(), entry_rows)
        packed = (_packed(window), window_rows, _packed(entries), entry_rows)
        beside = _peers(q, *plain, sinks) if peers else {}
        for fmt, row_bytes, caches in (("bf16", 2 * DIM, plain), ("fp8+bf16", 584, packed)):
            for splits, split_size in (("chosen", None), ("batch-invariant", BATCH_INVARIANT_SPLIT)):
                call = partial(
                    sparse_attention_rows,
                    *(q, *caches, sinks, DIM**-0.5),
                    split_size=split_size,
                    rotation=(angles.cos(), angles.sin()),
                    out_dtype=torch.bfloat16,
                )
                error = _error(call(), q, caches, sinks, angles)
                floor = floor_us(shape, row_bytes)
                us = round(median_us(call, graph=True), 1) if error <= ERROR_LIMIT else None
                clean = None if us is None else round(clean_us(call, graph=True), 1)
                rows.append(
                    {
                        "op": "sparse_attention",
                        "shape": name,
                        "cache": fmt,
                        "splits": splits,
                        "us": us,
                        "clean_us": clean,
                        "floor_us": round(floor, 1),
                        "error": error,
                        "error_limit": ERROR_LIMIT,
                        "peers": beside,
                    }
                )
                ratio = "wrong" if us is None else f"{us:8.1f} us = {us / floor:.2f} x floor, clean {clean:.1f}"
                others = "".join(f"  {peer} {time}" for peer, time in beside.items())
                print(
                    f"sparse_attention {name:16} {fmt:8} {splits:15}  floor {floor:6.1f}  ours {ratio}"
                    f"  error {error:.1e}{others}",
                    flush=True,
                )
    return rows


def _caches(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Window keys, each query's rows of them, entries, each query's rows of them; every row of a query is another."""
    query = torch.arange(shape.queries, device="cuda")[:, None]
    num_window = shape.queries + WINDOW if shape.prefill else shape.queries * WINDOW
    num_entries = ENTRIES if shape.prefill else shape.queries * ENTRIES
    window, entries = (torch.randn(rows, DIM, device="cuda", generator=generator) for rows in (num_window, num_entries))
    window_rows = query * (1 if shape.prefill else WINDOW) + torch.arange(WINDOW, device="cuda")
    picks = torch.rand(shape.queries, ENTRIES, device="cuda", generator=generator).argsort(1)[:, : shape.picks]
    return window, window_rows.int(), entries, (picks if shape.prefill else picks + query * ENTRIES).int()


def _error(out: Tensor, q: Tensor, caches: tuple[Tensor, ...], sinks: Tensor, angles: Tensor) -> float:
    """Relative l2 error of the first queries against the reference, which would gather gigabytes for all."""
    window, window_rows, entries, entry_rows = caches
    some = slice(0, CHECKED_QUERIES)
    reference = sparse_attention_rows_ref(
        q[some],
        window,
        window_rows[some],
        entries,
        entry_rows[some],
        sinks,
        DIM**-0.5,
        rotation=(angles[some].cos(), angles[some].sin()),
    )
    return float((out[some].float() - reference).norm() / reference.norm())


def _packed(keys: Tensor) -> Tensor:
    pages = attention_cache_ref.empty_key_pages(-(-len(keys) // attention_cache_ref.KEYS_PER_PAGE), DIM, "cuda")
    attention_cache_ref.write_rows(pages, torch.arange(len(keys), device="cuda"), keys)
    return pages


def _peers(
    q: Tensor, window: Tensor, window_rows: Tensor, entries: Tensor, entry_rows: Tensor, sinks: Tensor
) -> dict[str, float]:
    """Microseconds of torch, gathering counted."""
    valid = torch.ones(q.shape[0], WINDOW + entry_rows.shape[1], dtype=torch.bool, device="cuda")
    bias = q.new_zeros(HEADS, valid.shape[1] + 1)
    bias[:, -1] = sinks
    zeros = q.new_zeros(q.shape[0], 1, DIM)

    def by_op() -> Tensor:
        candidates = torch.cat((window[window_rows], entries[entry_rows]), 1)
        return sparse_attention_ref(q, candidates, valid, sinks, DIM**-0.5)

    def fused() -> Tensor:
        candidates = torch.cat((window[window_rows], entries[entry_rows], zeros), 1)[:, None]
        return F.scaled_dot_product_attention(q[:, None], candidates, candidates, attn_mask=bias)

    return {name: round(median_us(call, graph=False), 1) for name, call in (("torch", by_op), ("torch sdpa", fused))}
