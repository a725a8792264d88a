"""Paged index scores of one query per sequence (64 heads of 128, own pages per sequence), and the best keys of them.

Floor of the scores: every key read once (132 bytes in fp8, 256 in bf16) and every score written, at 4.3 TB/s. Floor of
the selection: every score read once; its error is the share of picks that differ from the reference's. `torch.topk` of
the floats breaks ties as it likes; `select_ref` is the reference, which does not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import clean_us, median_us
from kernels import index_page_ref
from kernels.index import index_scores
from kernels.index_select import index_select

HEADS, DIM = 64, 128
BYTES_PER_S = 4.3e12
ERROR_LIMIT = 1e-3
# name: (sequences, keys of each)
SHAPES = {"16x64k": (16, 65536), "1x64k": (1, 65536), "64x8k": (64, 8192)}
TOPKS = (512, 2048)


def run(shape_names: list[str]) -> list[dict[str, Any]]:
    """One row per shape and key format, and one per shape and number of picks."""
    rows: list[dict[str, Any]] = []
    generator = torch.Generator("cuda").manual_seed(0)
    for name in shape_names:
        batch, num_keys = SHAPES[name]
        num_pages = num_keys // index_page_ref.PAGE_SIZE
        table = torch.randperm(batch * num_pages, device="cuda", generator=generator).int().view(batch, num_pages)
        keys = torch.randn(batch * num_keys, DIM, device="cuda", generator=generator)
        q = torch.randn(batch, 1, HEADS, DIM, device="cuda", generator=generator).bfloat16()
        weights = torch.rand(batch, 1, HEADS, device="cuda", generator=generator)
        for fmt, dtype, key_bytes in (("fp8", torch.float8_e4m3fn, DIM + 4), ("bf16", torch.bfloat16, 2 * DIM)):
            pages = index_page_ref.empty_pages(batch * num_pages, DIM, dtype, "cuda")
            index_page_ref.write_keys(pages, torch.arange(batch * num_keys, device="cuda"), keys)
            call = partial(index_scores, q, pages, table, num_keys, weights, DIM**-0.5)
            reference = index_page_ref.index_scores_ref(q[:1], pages, table[:1], num_keys, weights[:1], DIM**-0.5)
            error = float((call()[:1] - reference).norm() / reference.norm())
            floor = batch * num_keys * (key_bytes + 4) / BYTES_PER_S * 1e6
            us = clean = None
            if error <= ERROR_LIMIT:
                us, clean = round(median_us(call, graph=True), 1), round(clean_us(call, graph=True), 1)
            row = {"op": "index", "shape": name, "keys": fmt, "us": us, "clean_us": clean, "floor_us": round(floor, 1)}
            rows.append({**row, "error": error})
            ratio = "wrong" if us is None else f"{us:8.1f} us = {us / floor:.2f} x floor, from a clean cache {clean}"
            print(f"index {name:7} {fmt:4}  floor {floor:6.1f}  ours {ratio}  error {error:.1e}", flush=True)
        scores = call()  # of the bf16 keys
        rows += [_selection(name, scores, topk) for topk in TOPKS]
    return rows


def _selection(name: str, scores: Tensor, topk: int) -> dict[str, Any]:
    """The row of the best `topk` of these scores, all of them visible."""
    visible = torch.full(scores.shape[:2], scores.shape[-1], device="cuda")
    ours = partial(index_select, scores, visible, topk)
    rivals = {
        "torch.topk": partial(torch.topk, scores, topk),
        "select_ref": partial(index_page_ref.select_ref, scores, visible, topk),
    }
    error = float((ours() != rivals["select_ref"]()).float().mean())
    floor = scores.numel() * 4 / BYTES_PER_S * 1e6
    us = round(median_us(ours, graph=True), 1) if error == 0 else None
    peers = {peer: round(median_us(rival, graph=True), 1) for peer, rival in rivals.items()}
    ratio = "wrong" if us is None else f"{us:8.1f} us = {us / floor:.2f} x floor"
    beside = "".join(f"  {peer} {time}" for peer, time in peers.items())
    print(f"index_select {name:7} {topk:4}  floor {floor:6.1f}  ours {ratio}{beside}", flush=True)
    return {
        "op": "index_select",
        "shape": name,
        "topk": topk,
        "us": us,
        "floor_us": round(floor, 1),
        "error": error,
        "error_limit": 0.0,
        "peers": peers,
    }
