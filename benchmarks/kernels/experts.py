"""Fused NVFP4 experts beside their peers: whole layer, sort included in ours, one H200.

Floor: the larger of the bytes (weights of the experts really drawn, tokens in and out, one intermediate written and
read) at 4.3 TB/s and the flops at 790 TFLOP/s; the second is a burst figure, 680 is what the card sustains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.peers import Peer, all_peers
from benchmarks.timing import median_us
from kernels import nvfp4_ref
from kernels.experts_hopper import experts_hopper
from kernels.experts_ref import experts_ref
from kernels.nvfp4_layout import Nvfp4Experts, repack

LIMIT = 10.0
ERROR_LIMIT = 4.5e-3
GRAPH_UP_TO_TOKENS = 64
BYTES_PER_S, FLOP_PER_S = 4.3e12, 790e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    dim: int
    hidden: int
    num_experts: int
    topk: int


SHAPES = {
    "flash": Shape(dim=4096, hidden=2048, num_experts=256, topk=6),
    "v3": Shape(dim=7168, hidden=2048, num_experts=256, topk=8),
}


def make_weights(shape: Shape) -> Nvfp4Experts:
    """Gaussian weights, quantised expert by expert on the GPU."""
    generator = torch.Generator("cuda").manual_seed(0)
    parts: list[list[Tensor]] = [[] for _ in range(6)]
    for _ in range(shape.num_experts):
        for offset, size in ((0, (2 * shape.hidden, shape.dim)), (3, (shape.dim, shape.hidden))):
            weight = torch.randn(size, device="cuda", generator=generator) * 1.4 * size[1] ** -0.5
            for i, tensor in enumerate(nvfp4_ref.encode(weight)):
                parts[offset + i].append(tensor)
    names = ("w13_codes", "w13_scale", "w13_global", "w2_codes", "w2_scale", "w2_global")
    return Nvfp4Experts(**{name: torch.stack(part) for name, part in zip(names, parts, strict=True)})


def make_tokens(shape: Shape, num_tokens: int, *, skewed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, expert ids and routing weights; skewed routing prefers the experts by a Zipf-like bias."""
    generator = torch.Generator("cuda").manual_seed(1 + num_tokens)
    x = torch.randn(num_tokens, shape.dim, device="cuda", generator=generator).bfloat16()
    logits = torch.randn(num_tokens, shape.num_experts, device="cuda", generator=generator)
    if skewed:
        logits = logits - 0.6 * torch.arange(1, shape.num_experts + 1, device="cuda").log()
    values, ids = logits.topk(shape.topk)
    return x, ids.int(), values.softmax(-1)


def floor_us(
    shape: Shape, num_tokens: int, ids: Tensor, *, weight_bytes: float = 0.5625, flop_per_s: float = FLOP_PER_S
) -> float:
    """The byte or flop bound of the layer, whichever is longer."""
    weights = 3 * shape.dim * shape.hidden
    activations = 4 * num_tokens * shape.dim + 4 * ids.numel() * shape.hidden
    active = int(torch.unique(ids).numel())
    seconds = max((active * weights * weight_bytes + activations) / BYTES_PER_S, 2 * ids.numel() * weights / flop_per_s)
    return seconds * 1e6


def sample(x: Tensor, ids: Tensor) -> tuple[list[int], Tensor, Tensor]:
    """Up to four tokens to check, the experts they use, and their ids counted among those [tokens, K]."""
    tokens = sorted({0, min(3, len(x) - 1), len(x) // 2, len(x) - 1})
    used, local = torch.unique(ids[tokens], return_inverse=True)
    return tokens, used.long(), local.view(len(tokens), -1)


def error_of(out: Tensor, weights: Nvfp4Experts, x: Tensor, ids: Tensor, gates: Tensor) -> float:
    """Relative l2 error against fp32 dequantised weights, on up to four tokens."""
    tokens, used, local = sample(x, ids)
    w13 = nvfp4_ref.decode(weights.w13_codes[used], weights.w13_scale[used], weights.w13_global[used])
    w2 = nvfp4_ref.decode(weights.w2_codes[used], weights.w2_scale[used], weights.w2_global[used])
    reference = experts_ref(x[tokens], w13, w2, local, gates[tokens], LIMIT)
    return float((out[tokens].float() - reference).norm() / reference.norm())


def measured(
    row: dict[str, Any],
    ours: Callable[[], Tensor],
    error: Callable[[Tensor], float],
    error_limit: float,
    rivals: Sequence[Peer],
    tokens: tuple[Tensor, Tensor, Tensor],
) -> dict[str, Any]:
    """The row with its error, its time where the error allows one, and the peers' of both; also printed."""
    graph = row["tokens"] <= GRAPH_UP_TO_TOKENS
    row |= {"error": error(ours()), "us": None, "peers": {}, "peer_errors": {}}
    if row["error"] <= error_limit:
        row["us"] = round(median_us(ours, graph=graph), 1)
    for peer in rivals:
        layer = peer.prepare(*tokens, LIMIT)
        row["peer_errors"][peer.name] = error(layer())
        row["peers"][peer.name] = round(median_us(layer, graph=graph), 1)
    print(line_of(row), flush=True)
    return row


def run(shape_names: list[str], token_counts: list[int], *, peers: bool, skewed: bool) -> list[dict[str, Any]]:
    """One row per shape and token count; a row whose error is above the limit has no time."""
    rows: list[dict[str, Any]] = []
    for name in shape_names:
        shape = SHAPES[name]
        weights = make_weights(shape)
        packed = repack(weights)
        rivals = all_peers(weights) if peers else []
        for num_tokens in token_counts:
            x, ids, gates = make_tokens(shape, num_tokens, skewed=skewed)
            row = {
                "op": "experts",
                "shape": name,
                "tokens": num_tokens,
                "routing": "skewed" if skewed else "uniform",
                "floor_us": round(floor_us(shape, num_tokens, ids), 1),
            }
            ours = partial(experts_hopper, x, packed, ids, gates, LIMIT)
            error = partial(error_of, weights=weights, x=x, ids=ids, gates=gates)
            rows.append(measured(row, ours, error, ERROR_LIMIT, rivals, (x, ids, gates)))
        del weights, packed, rivals, ours, error
        torch.cuda.empty_cache()
    return rows


def line_of(row: dict[str, Any]) -> str:
    """A row as one line of text."""
    ours = "wrong" if row["us"] is None else f"{row['us']:9.1f} us = {row['us'] / row['floor_us']:.2f} x floor"
    peers = "".join(f"  {name} {value:.1f} ({row['peer_errors'][name]:.1e})" for name, value in row["peers"].items())
    head = f"{row['shape']:5} {row['routing']:7} {row['tokens']:6} tokens  floor {row['floor_us']:8.1f}"
    return f"{head}  ours {ours}  error {row['error']:.2e}{peers}"
