"""Timing on one GPU, and what must stand beside every figure: machine, versions, clocks, power state."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.testing import do_bench

ROOT = Path(__file__).resolve().parent.parent


def graph_of(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of one call, captured after three warm-up calls on a side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def median_us(function: Callable[[], Any], *, graph: bool, repeat_ms: int = 60) -> float:
    """The median time of one call; the L2 cache is overwritten before each. `graph` replays a CUDA graph of it."""
    function()
    torch.cuda.synchronize()
    call = graph_of(function).replay if graph else function
    return float(do_bench(call, warmup=20, rep=repeat_ms, return_mode="median")) * 1e3


def clean_us(function: Callable[[], Any], *, graph: bool, repeats: int = 100) -> float:
    """As `median_us`, but the L2 cache is filled by reading before each call.

    What overwrites the cache leaves it full of lines that the timed call must write back, one for each line that it
    reads, until they are gone: up to 60 MB that are not its own. Bounds count its own bytes only; this does too.
    """
    function()
    call = graph_of(function).replay if graph else function
    filling = torch.zeros(2**26, dtype=torch.int32, device="cuda")
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in events:
        filling.amax()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events) * 1e3


def _output(*command: str) -> str:
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def clocks() -> dict[str, str]:
    """Power state, clocks, power draw and cap, and throttle reasons of this card as the driver reports them now."""
    fields = "pstate,clocks.sm,clocks.mem,power.draw,enforced.power.limit,temperature.gpu,clocks_event_reasons.active"
    values = _query(fields).split(", ")
    return dict(zip(fields.split(","), values, strict=False))


def _query(fields: str) -> str:
    """What the driver says of the card that torch uses, which need not be its first one."""
    card = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"
    return _output("nvidia-smi", card, f"--query-gpu={fields}", "--format=csv,noheader")


def machine() -> dict[str, Any]:
    """The GPU, the versions and the commit that a result file names.

    BENCH_COMMIT names the commit of a copy without its git, or with another one's; whether files were changed (`dirty`)
    is then unknown, None.
    """
    named = os.environ.get("BENCH_COMMIT")
    head = None if named else _output("git", "rev-parse", "--verify", "--quiet", "HEAD")
    return {
        "gpu": torch.cuda.get_device_name(),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "driver": _query("driver_version"),
        "commit": named or head,
        "dirty": bool(_output("git", "status", "--porcelain", "--untracked-files=no")) if head else None,
        "clocks_before": clocks(),
    }


def ceilings() -> dict[str, float]:
    """What this card reaches now: copy bandwidth (TB/s, read plus written), bf16 matrix rate (TFLOP/s, sustained), and
    how long a CUDA graph of one launch that does nothing takes by the same clock as every other time."""
    source = torch.randint(0, 100, (2**28,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    copy_us = median_us(lambda: target.copy_(source), graph=False)
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    matmul_us = median_us(lambda: a @ b, graph=False, repeat_ms=300)
    one = torch.zeros(1, device="cuda")
    return {
        "launch_us": round(median_us(one.zero_, graph=True), 2),
        "copy_tb_per_s": 2 * source.numel() * 4 / copy_us / 1e6,
        "bf16_tflop_per_s": 2 * 8192**3 / matmul_us / 1e6,
    }
