"""RMS norm in bf16: of the model's width with a weight, and of 64 query heads with their rotation, without one.

Floor: rows in and out, weight and turns once, at 4.3 TB/s. clean_us is the time with the L2 cache filled by reads
(`timing.clean_us`). Peers: the reference, op by op; torch's own rms_norm where nothing is rotated, with the weight in
bf16, of which the numbers are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import clean_us, median_us
from kernels.norm import norm
from kernels.norm_ref import norm_ref

EPS = 1e-6
BYTES_PER_S = 4.3e12
ERROR_LIMIT = 4e-3
TOKENS_CHECKED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Rows of `width` for each token and head; with a weight where nothing is rotated, else with `pairs` rotated."""

    tokens: int
    heads: int = 1
    width: int
    pairs: int = 0


SHAPES = {
    "4096x4096": Shape(tokens=4096, width=4096),
    "4096x64x512": Shape(tokens=4096, heads=64, width=512, pairs=32),
    "1x4096": Shape(tokens=1, width=4096),
    "1x64x512": Shape(tokens=1, heads=64, width=512, pairs=32),
}


def floor_us(shape: Shape) -> float:
    rows = 2 * 2 * shape.tokens * shape.heads * shape.width
    beside = 8 * shape.tokens * shape.pairs if shape.pairs else 4 * shape.width
    return (rows + beside) / BYTES_PER_S * 1e6


def run(shape_names: list[str], peers: bool = True) -> list[dict[str, Any]]:
    """One row a shape."""
    rows: list[dict[str, Any]] = []
    generator = torch.Generator("cuda").manual_seed(0)
    for name in shape_names:
        shape = SHAPES[name]
        x = torch.randn(shape.tokens, shape.heads, shape.width, device="cuda", generator=generator).bfloat16()
        weight, turns = None, None
        if shape.pairs:
            angle = 6.3 * torch.rand(shape.tokens, 1, shape.pairs, device="cuda", generator=generator)
            turns = torch.complex(angle.cos(), angle.sin())
        else:
            weight = torch.randn(shape.width, device="cuda", generator=generator).bfloat16().float()
        some = slice(0, TOKENS_CHECKED)
        expected = norm_ref(x[some].float(), EPS, weight, None if turns is None else turns[some])
        ours = partial(norm, x, EPS, weight, turns)
        beside: dict[str, Callable[[], Tensor]] = {}
        if peers:
            beside["torch eager"] = partial(norm_ref, x, EPS, weight, turns)
            if weight is not None:
                beside["torch rms_norm"] = partial(F.rms_norm, x, (shape.width,), weight.bfloat16(), EPS)
        rows.append(_row(name, ours, beside, _error(ours()[some], expected)))
    return rows


def _error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def _row(name: str, ours: Callable[[], Tensor], peers: dict[str, Callable[[], Tensor]], error: float) -> dict[str, Any]:
    floor = floor_us(SHAPES[name])
    right = error <= ERROR_LIMIT
    us, clean = (round(clock(ours, graph=True), 1) if right else None for clock in (median_us, clean_us))
    times = {peer: round(median_us(call, graph=True), 1) for peer, call in peers.items()}
    ratio = "wrong" if us is None else f"{us:8.1f} us = {us / floor:.2f} x floor, {clean:.1f} us in a clean cache"
    beside = "".join(f"  {peer} {time}" for peer, time in times.items())
    print(f"norm {name:12} floor {floor:6.1f}  ours {ratio}{beside}  error {error:.1e}", flush=True)
    return {
        "op": "norm",
        "shape": name,
        "tokens": SHAPES[name].tokens,
        "us": us,
        "clean_us": clean,
        "floor_us": round(floor, 2),
        "error": error,
        "peers": times,
    }
