"""The clamped SwiGLU of a shared expert of 2048 hidden channels, in bf16, against copy bandwidth.

Floor: gate and up read once and the product written once, at the copy bandwidth that this card reaches in the same run.
clean_us is the time with the L2 cache filled by reads (`timing.clean_us`). The error is against the reference in fp32;
`differing` is the share of numbers that are not the reference's own bits. Peer: the reference, op by op.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.timing import ceilings, clean_us, median_us
from kernels.experts_ref import swiglu_ref
from kernels.swiglu import swiglu

# One rounding to bf16.
ERROR_LIMIT = 4e-3
HIDDEN, LIMIT = 2048, 10.0
# name: tokens
SHAPES = {"4096": 4096, "1": 1}


def run(shape_names: list[str], *, peers: bool = True) -> list[dict[str, Any]]:
    """One row per shape."""
    rows: list[dict[str, Any]] = []
    copy_bytes_per_s = ceilings()["copy_tb_per_s"] * 1e12
    generator = torch.Generator("cuda").manual_seed(0)
    for name in shape_names:
        tokens = SHAPES[name]
        gate_up = (4 * torch.randn(tokens, 2 * HIDDEN, device="cuda", generator=generator)).bfloat16()
        ours, peer = partial(swiglu, gate_up, LIMIT), partial(swiglu_ref, gate_up, LIMIT)
        out, exact = ours().double(), swiglu_ref(gate_up.float(), LIMIT).double()
        error = float((out - exact).norm() / exact.norm())
        differing = float((ours() != peer()).double().mean())
        floor = 3 * 2 * tokens * HIDDEN / copy_bytes_per_s * 1e6
        right = error <= ERROR_LIMIT
        us, clean = (round(clock(ours, graph=True), 1) if right else None for clock in (median_us, clean_us))
        times = {"torch eager": round(median_us(peer, graph=True), 1)} if peers else {}
        ratio = "wrong" if us is None else f"{us:8.1f} us = {us / floor:.2f} x floor, {clean:.1f} us in a clean cache"
        print(f"swiglu {name:5} floor {floor:6.2f}  ours {ratio}  {times}  error {error:.1e}", flush=True)
        rows.append(
            {
                "op": "swiglu",
                "shape": name,
                "tokens": tokens,
                "us": us,
                "clean_us": clean,
                "floor_us": round(floor, 3),
                "error": error,
                "differing": differing,
                "peers": times,
            }
        )
    return rows
