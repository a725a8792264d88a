"""Fused experts over bf16 weights beside torch's grouped GEMM: whole layer, sort included in ours only.

Floor: as `benchmarks.kernels.experts`, with 2 bytes a weight.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels import experts
from benchmarks.kernels.experts import LIMIT, SHAPES, Shape
from benchmarks.kernels.peers import TorchGrouped
from kernels.experts_plain import bf16_experts
from kernels.experts_ref import experts_ref

ERROR_LIMIT = 4.5e-3


def make_weights(shape: Shape) -> tuple[Tensor, Tensor]:
    """Gaussian w13 [E, 2I, D] and w2 [E, D, I]."""
    generator = torch.Generator("cuda").manual_seed(0)
    stacks = []
    for rows, columns in ((2 * shape.hidden, shape.dim), (shape.dim, shape.hidden)):
        stack = torch.empty(shape.num_experts, rows, columns, dtype=torch.bfloat16, device="cuda")
        for expert in stack:
            expert.copy_(torch.randn(rows, columns, device="cuda", generator=generator) * 1.4 * columns**-0.5)
        stacks.append(stack)
    return stacks[0], stacks[1]


def error_of(out: Tensor, w13: Tensor, w2: Tensor, x: Tensor, ids: Tensor, gates: Tensor) -> float:
    """Relative l2 error against the fp32 sum over the same weights, on up to four tokens."""
    tokens, used, local = experts.sample(x, ids)
    reference = experts_ref(x[tokens], w13[used], w2[used], local, gates[tokens], LIMIT)
    return float((out[tokens].float() - reference).norm() / reference.norm())


def run(shape_names: list[str], token_counts: list[int], *, peers: bool, skewed: bool) -> list[dict[str, Any]]:
    """One row per shape and token count; a row whose error is above the limit has no time."""
    rows: list[dict[str, Any]] = []
    for name in shape_names:
        shape = SHAPES[name]
        w13, w2 = make_weights(shape)
        rivals = [TorchGrouped(w13, w2)] if peers else []
        for num_tokens in token_counts:
            x, ids, gates = experts.make_tokens(shape, num_tokens, skewed=skewed)
            row = {
                "op": "experts_bf16",
                "shape": name,
                "tokens": num_tokens,
                "routing": "skewed" if skewed else "uniform",
                "floor_us": round(experts.floor_us(shape, num_tokens, ids, weight_bytes=2.0), 1),
            }
            ours = partial(bf16_experts, x, w13, w2, ids, gates, LIMIT)
            error = partial(error_of, w13=w13, w2=w2, x=x, ids=ids, gates=gates)
            rows.append(experts.measured(row, ours, error, ERROR_LIMIT, rivals, (x, ids, gates)))
        del w13, w2, rivals, ours, error
        torch.cuda.empty_cache()
    return rows
