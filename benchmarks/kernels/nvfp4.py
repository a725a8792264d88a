"""NVFP4 decode to bf16 and encode from bf16, against copy bandwidth; torch's eager reference beside the small shape.

Floor: every byte read once and written once, at the copy bandwidth that this card reaches in the same run. An encode
that finds its global scale reads the weights twice: 1.78 times the bytes, where they exceed the L2 cache. The error is
the share of bytes that differ from the reference's in the first and in the last matrix, and must be 0.
"""

# E matrices of N rows and K columns.

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import ceilings, median_us
from kernels import nvfp4_ref
from kernels.nvfp4 import decode
from kernels.nvfp4_encode import encode

ERROR_LIMIT = 0.0
# name: (E, N, K)
SHAPES = {"experts": (256, 4096, 4096), "w13": (64, 4096, 7168), "matrix": (1, 4096, 4096)}
# The reference wants about 40 bytes a weight for its indices.
MAX_PEER_WEIGHTS = 2**27


def run(shape_names: list[str], *, peers: bool = True) -> list[dict[str, Any]]:
    """One row per shape, direction and order of scales, and for encode with and without what else it may do."""
    rows: list[dict[str, Any]] = []
    copy_bytes_per_s = ceilings()["copy_tb_per_s"] * 1e12
    generator = torch.Generator("cuda").manual_seed(0)
    for name in shape_names:
        num_matrices, num_rows, num_columns = SHAPES[name]
        w = torch.empty(SHAPES[name], dtype=torch.bfloat16, device="cuda")
        for matrix in w:
            matrix.copy_(torch.randn(num_rows, num_columns, device="cuda", generator=generator) * 0.02)
        parts, swizzled = encode(w), encode(w, swizzled=True)
        given = parts[2].clone()
        calls: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Tensor, ...], dict[str, Any]]] = {
            "decode": (decode, nvfp4_ref.decode, parts, {"dtype": torch.bfloat16}),
            "decode swizzled": (decode, nvfp4_ref.decode, swizzled, {"dtype": torch.bfloat16, "swizzled": True}),
            "encode": (encode, nvfp4_ref.encode, (w,), {"check": False}),
            "encode given": (encode, nvfp4_ref.encode, (w,), {"check": False, "global_scale": given}),
            "encode swizzled": (encode, nvfp4_ref.encode, (w,), {"check": False, "swizzled": True}),
            "encode 4/6": (encode, nvfp4_ref.encode, (w,), {"check": False, "four_over_six": True}),
        }
        floor_us = num_matrices * num_rows * num_columns * (2 + 0.5 + 1 / 16) / copy_bytes_per_s * 1e6
        for call_name, (ours, reference, inputs, options) in calls.items():
            call = partial(ours, *inputs, **options)
            error = error_of(call(), reference, inputs, options)
            us = round(median_us(call, graph=True), 1) if error <= ERROR_LIMIT else None
            row = {"op": "nvfp4", "shape": name, "call": call_name, "us": us, "floor_us": round(floor_us, 1)}
            beside = {}
            if peers and w.numel() <= MAX_PEER_WEIGHTS:
                beside["torch eager"] = round(median_us(partial(reference, *inputs, **options), graph=False), 1)
            rows.append({**row, "error": error, "peers": beside})
            ratio = "wrong" if us is None else f"{us:8.1f} us = {us / floor_us:.2f} x floor"
            print(f"nvfp4 {name:8} {call_name:15}  floor {floor_us:7.1f}  ours {ratio}  {beside}", flush=True)
        del w, parts, swizzled, calls, call, inputs
        torch.cuda.empty_cache()
    return rows


def error_of(
    out: Tensor | tuple[Tensor, ...],
    reference: Callable[..., Any],
    inputs: tuple[Tensor, ...],
    options: dict[str, Any],
) -> float:
    """The share of differing bytes, in the worse of the first and the last matrix."""
    shares = []
    for matrix in (0, -1):
        given = options.get("global_scale")
        of_one = options if given is None else {**options, "global_scale": given[matrix]}
        expected = reference(*(part[matrix] for part in inputs), **of_one)
        pairs = [(out, expected)] if isinstance(out, Tensor) else list(zip(out, expected, strict=True))
        for ours, theirs in pairs:
            differing = _bytes(ours[matrix]) != _bytes(theirs)
            shares.append(float(differing.float().mean()))
    return max(shares)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
