"""Hyper-connections of one site, four streams of 4096 in bf16: pre-mix by precision, read and write, each alone.

Floor: every byte that must move, at 4.3 TB/s: the pre-mix reads streams and fn and writes z, the read takes streams to
one vector, the write takes streams and output to streams. The slices that the pre-mix sums in a second launch are not
in it, their time is. "bf16x3" takes fn's parts, made ahead as the engine makes them at load; the floor keeps fn's own
fp32 bytes, which are fewer. clean_us is the time with the L2 cache filled by reads (`timing.clean_us`). Peer: the
reference, op by op.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import clean_us, median_us
from kernels import hyper
from kernels.dispatch_hyper import hyper_matrix
from kernels.hyper_mix import Precision, premix
from kernels.hyper_ref import premix_ref
from kernels.hyper_site_ref import read_ref, write_ref

STREAMS, DIM, ITERS, EPS = 4, 4096, 20, 1e-6
MIXES, WIDTH = (2 + STREAMS) * STREAMS, STREAMS * DIM
BYTES_PER_S = 4.3e12
# name: tokens
SHAPES = {"4096": 4096, "64": 64, "1": 1}
# precision: largest relative l2 error
PREMIX_LIMITS: dict[Precision, float] = {"bf16x3": 5e-6, "tf32": 8e-4, "fp32": 2e-6}
ROUNDED_LIMIT = 4e-3
TOKENS_CHECKED = 64


def floor_us(part: str, num_tokens: int) -> float:
    """The byte bound of one part."""
    streams, vector = 2 * num_tokens * WIDTH, 2 * num_tokens * DIM
    moved = {
        "hyper_premix": streams + 4 * MIXES * WIDTH + 4 * num_tokens * MIXES,
        "hyper_read": streams + vector,
        "hyper_write": 2 * streams + vector,
    }
    return moved[part] / BYTES_PER_S * 1e6


def run(shape_names: list[str], peers: bool = True) -> list[dict[str, Any]]:
    """Per shape one row for each precision of the pre-mix, one for the read and one for the write."""
    rows: list[dict[str, Any]] = []
    generator = torch.Generator("cuda").manual_seed(0)
    for name in shape_names:
        tokens = SHAPES[name]
        x = torch.randn(tokens, STREAMS, DIM, device="cuda", generator=generator).bfloat16()
        output = torch.randn(tokens, DIM, device="cuda", generator=generator).bfloat16()
        fn = torch.randn(MIXES, WIDTH, device="cuda", generator=generator) * WIDTH**-0.5
        base = torch.randn(MIXES, device="cuda", generator=generator)
        scale = torch.tensor([0.5, 0.7, 1.3], device="cuda")
        some = slice(0, TOKENS_CHECKED)
        z, parts = premix_ref(x, fn, EPS), hyper_matrix(fn, x.dtype)

        for precision, limit in PREMIX_LIMITS.items():
            ours = partial(premix, x, parts if precision == "bf16x3" else fn, EPS, precision)
            peer = partial(premix_ref, x, fn, EPS) if peers else None
            error = _error(ours()[some], _exact_z(x[some], fn))
            rows.append(_row("hyper_premix", name, ours, peer, error, limit) | {"precision": precision})
        mixes = (base, scale)
        expected = read_ref(x[some].float(), z[some], *mixes, EPS)
        ours = partial(hyper.read, x, z, *mixes, EPS)
        peer = partial(read_ref, x, z, *mixes, EPS) if peers else None
        rows.append(_row("hyper_read", name, ours, peer, _error(ours()[some], expected), ROUNDED_LIMIT))
        expected = write_ref(x[some].float(), output[some], z[some], *mixes, ITERS, EPS)
        ours = partial(hyper.write, x, output, z, *mixes, ITERS, EPS)
        peer = partial(write_ref, x, output, z, *mixes, ITERS, EPS) if peers else None
        rows.append(_row("hyper_write", name, ours, peer, _error(ours()[some], expected), ROUNDED_LIMIT))
    return rows


def _exact_z(streams: Tensor, fn: Tensor) -> Tensor:
    flat = streams.double().flatten(1)
    return flat * torch.rsqrt(flat.square().mean(1, keepdim=True) + EPS) @ fn.double().T


def _error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def _row(
    part: str, name: str, ours: Callable[[], Tensor], peer: Callable[[], Tensor] | None, error: float, limit: float
) -> dict[str, Any]:
    floor = floor_us(part, SHAPES[name])
    right = error <= limit
    us, clean = (round(clock(ours, graph=True), 1) if right else None for clock in (median_us, clean_us))
    times = {} if peer is None else {"torch eager": round(median_us(peer, graph=True), 1)}
    ratio = "wrong" if us is None else f"{us:8.1f} us = {us / floor:.2f} x floor, {clean:.1f} us in a clean cache"
    beside = "".join(f"  {other} {time}" for other, time in times.items())
    print(f"{part:12} {name:5} floor {floor:6.1f}  ours {ratio}{beside}  error {error:.1e}", flush=True)
    return {
        "op": part,
        "shape": name,
        "tokens": SHAPES[name],
        "us": us,
        "clean_us": clean,
        "floor_us": round(floor, 2),
        "error": error,
        "error_limit": limit,
        "peers": times,
    }
