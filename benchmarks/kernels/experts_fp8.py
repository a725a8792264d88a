"""Fused experts over FP8 block weights, activations quantised (W8A8) and not (W8A16), beside torch's bf16 grouped GEMM.

Floor: as `benchmarks.kernels.experts`, with 1 byte a weight and, for W8A8, twice the flops a second.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels import experts
from benchmarks.kernels.experts import FLOP_PER_S, LIMIT, SHAPES
from benchmarks.kernels.experts_bf16 import make_weights
from benchmarks.kernels.peers import TorchGrouped
from kernels import fp8_block_ref
from kernels.experts_plain import fp8_experts
from kernels.experts_ref import fp8_experts_ref
from kernels.fp8_block_ref import Fp8Experts

# Of W8A8 against the reference that quantises too: on Hopper's tensor cores a product of e4m3 loses what is below 2^-13
# of the largest in its sum, and a hidden value that lies between two e4m3 numbers then moves by one of their steps.
ERROR_LIMITS = {"e4m3": 1.2e-2, "bf16": 4.5e-3}


def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 values and scales of [E, N, K], expert by expert."""
    parts = [fp8_block_ref.encode(expert) for expert in weight]
    values = torch.stack([values.view(torch.uint8) for values, _ in parts]).view(torch.float8_e4m3fn)
    return values, torch.stack([scale for _, scale in parts])


def error_of(
    out: Tensor, weights: Fp8Experts, x: Tensor, ids: Tensor, gates: Tensor, *, quantise_activations: bool
) -> float:
    """Relative l2 error against the reference that treats activations the same way, on up to four tokens."""
    tokens, used, local = experts.sample(x, ids)
    w13, w2 = (values.view(torch.uint8)[used].view(torch.float8_e4m3fn) for values in (weights.w13, weights.w2))
    some = Fp8Experts(w13=w13, w13_scale=weights.w13_scale[used], w2=w2, w2_scale=weights.w2_scale[used])
    reference = fp8_experts_ref(x[tokens], some, local, gates[tokens], LIMIT, quantise_activations=quantise_activations)
    return float((out[tokens].float() - reference).norm() / reference.norm())


def run(shape_names: list[str], token_counts: list[int], *, peers: bool, skewed: bool) -> list[dict[str, Any]]:
    """One row per shape, token count and kind of activations; the peer, timed once, stands beside W8A8.

    The peer's weights are the ones before quantisation, so its error says how far FP8 is from them.
    """
    rows: list[dict[str, Any]] = []
    for name in shape_names:
        shape = SHAPES[name]
        w13, w2 = make_weights(shape)
        (w13_values, w13_scale), (w2_values, w2_scale) = encode(w13), encode(w2)
        weights = Fp8Experts(w13=w13_values, w13_scale=w13_scale, w2=w2_values, w2_scale=w2_scale)
        rivals = [TorchGrouped(w13, w2)] if peers else []
        for num_tokens in token_counts:
            x, ids, gates = experts.make_tokens(shape, num_tokens, skewed=skewed)
            for activations, error_limit in ERROR_LIMITS.items():
                quantised = activations == "e4m3"
                flop_per_s = FLOP_PER_S * (2 if quantised else 1)
                floor = experts.floor_us(shape, num_tokens, ids, weight_bytes=1.0, flop_per_s=flop_per_s)
                row = {
                    "op": "experts_fp8",
                    "shape": name,
                    "tokens": num_tokens,
                    "routing": "skewed" if skewed else "uniform",
                    "activations": activations,
                    "floor_us": round(floor, 1),
                    "error_limit": error_limit,
                }
                ours = partial(fp8_experts, x, weights, ids, gates, LIMIT, quantise_activations=quantised)
                error = partial(error_of, weights=weights, x=x, ids=ids, gates=gates, quantise_activations=quantised)
                beside = rivals if quantised else []
                rows.append(experts.measured(row, ours, error, error_limit, beside, (x, ids, gates)))
        del w13, w2, weights, rivals, ours, error
        torch.cuda.empty_cache()
    return rows
