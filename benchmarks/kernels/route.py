"""Routing of fp32 logits over 256 experts: top-6 with a bias (V4), top-8 in groups (V3), and by a table of token ids.

Floor: logits read once (by table only those of the picks), ids and weights written, at 4.3 TB/s; up to some thousand
tokens a launch takes longer than that. Error: the share of tokens whose picks are not the reference's; scores nearer
than their rounding may change places. Peer: the reference, op by op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.timing import median_us
from kernels.route import route, table_route
from kernels.route_ref import route_ref, table_route_ref

BYTES_PER_S = 4.3e12
ERROR_LIMIT = 1e-3
VOCABULARY = 129280
TOKENS = (1, 64, 4096, 16384)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    num_experts: int
    topk: int
    settings: dict[str, Any] = field(default_factory=dict)
    table: bool = False


SHAPES = {
    "v4": Shape(num_experts=256, topk=6),
    "v3": Shape(num_experts=256, topk=8, settings={"scoring": "sigmoid", "num_groups": 8, "topk_groups": 4}),
    "v4-table": Shape(num_experts=256, topk=6, table=True),
}


def floor_us(shape: Shape, num_tokens: int) -> float:
    """The byte bound of one call."""
    read = 4 * shape.topk + 8 * (shape.topk + 1) if shape.table else 4 * shape.num_experts
    return num_tokens * (read + 8 * shape.topk) / BYTES_PER_S * 1e6


def run(shape_names: list[str], peers: bool = True) -> list[dict[str, Any]]:
    """One row per shape and number of tokens."""
    rows: list[dict[str, Any]] = []
    generator = torch.Generator("cuda").manual_seed(0)
    for name in shape_names:
        shape = SHAPES[name]
        for tokens in TOKENS:
            logits = 2 * torch.randn(tokens, shape.num_experts, device="cuda", generator=generator)
            ours: Callable[[], Any]
            if shape.table:
                shares = torch.rand(VOCABULARY, shape.num_experts, device="cuda", generator=generator)
                arguments = (
                    torch.randint(0, VOCABULARY, (tokens,), device="cuda", generator=generator),
                    shares.topk(shape.topk).indices,
                )
                ours, peer = (partial(function, logits, *arguments) for function in (table_route, table_route_ref))
            else:
                bias = 0.2 * torch.randn(shape.num_experts, device="cuda", generator=generator)
                settings = {"bias_E": bias, **shape.settings}
                ours, peer = (partial(function, logits, shape.topk, **settings) for function in (route, route_ref))
            error = float((ours()[1] != peer()[1]).any(1).float().mean())
            floor = floor_us(shape, tokens)
            us = round(median_us(ours, graph=True), 1) if error <= ERROR_LIMIT else None
            times = {"torch eager": round(median_us(peer, graph=True), 1)} if peers else {}
            ratio = "wrong" if us is None else f"{us:8.1f} us"
            beside = "".join(f"  {other} {time}" for other, time in times.items())
            print(f"route {name:8} {tokens:5}  floor {floor:6.2f}  ours {ratio}{beside}  error {error:.1e}", flush=True)
            rows.append(
                {
                    "op": "route",
                    "shape": name,
                    "tokens": tokens,
                    "us": us,
                    "floor_us": round(floor, 3),
                    "error": error,
                    "error_limit": ERROR_LIMIT,
                    "peers": times,
                }
            )
    return rows
