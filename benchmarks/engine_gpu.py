"""The engine on a GPU: tokens per second and time per kernel in the full layer shape, and the trained checkpoint.

    python -m benchmarks.engine_gpu flash --layers 4 --prefill 1024,8192 --batches 1,16,64
    python -m benchmarks.engine_gpu trained

`flash` builds a few layers of DeepSeek-V4-Flash's shape with random weights (experts NVFP4, the rest bf16), times
prefill and cached decode over the longest context; `error` holds kernels against the references on the same GPU, in
the same shape with 16 experts.
`trained` holds the shipped checkpoint on the GPU against the CPU: logits, and recall of planted facts.

Contract: times are medians of repeats between synchronisations, launch overhead included. Decode steps that close an
entry take longer: each kind has its median (`open_us`, `closing_us`), `us` is their mean by number. `kernels` are the
GPU's own times in one more, profiled repeat. Both write `benchmarks/results/<date>-engine-<gpu>.json`
(`engine-trained`) after each row. `--tiny` runs the same on a small shape, on a processor if there is no GPU: its
figures say nothing.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import result_file
from benchmarks.random_model import FLASH, TINY, config_of, random_tensors
from engine.cache import Cache
from engine.config import ModelConfig
from engine.engine import Engine
from engine.probes.needle import answers
from engine.settings import EngineSettings
from engine.task import ask, make_contexts

# Logits of two ways through the same random weights in bf16: a pick of an expert or an entry that falls the other way
# is an error of its own size, so this only tells right from wrong.
BF16_LIMIT = 0.2
# Of the trained checkpoint: on a processor, bf16 differs from fp32 by 2.6e-3 in relative l2.
TRAINED_LIMITS = {torch.float32: 1e-3, torch.bfloat16: 2e-2}
# Beyond 2048 tokens a CSA layer picks; more experts would take the reference, which unpacks all of them, over 100 GB.
COMPARED_TOKENS, FEW_EXPERTS = 2304, 16
DECODED = 16
REPEATS = 3
KERNELS_SHOWN = 40

Row = dict[str, Any]


def flash(options: argparse.Namespace) -> Iterator[Row]:
    """A row per prefill length, and per number of sequences that decode together, without and with CUDA graphs."""
    shape = (TINY if options.tiny else FLASH) | {"max_position_embeddings": 1 << 20}
    device, named = options.device, f"{'tiny' if options.tiny else 'flash'} x {options.layers} layers"
    settings = EngineSettings(device=device, dtype=torch.bfloat16, cuda_graph=True)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, shape["vocab_size"], (1, max(options.prefill))))
    few = config_of(shape | {"n_routed_experts": min(FEW_EXPERTS, shape["n_routed_experts"])}, options.layers)
    found, expected = (_step_logits(few, replace(settings, kernels=kernels), ids) for kernels in ("auto", "reference"))
    begin = time.perf_counter()
    config = config_of(shape, options.layers)
    engine = Engine(config, random_tensors(config, device), settings)
    _wait(device)
    shared = {"error": _error(found, expected), "error_limit": BF16_LIMIT, "layers": options.layers}
    shared["built_s"] = round(time.perf_counter() - begin, 1)
    for num_tokens in options.prefill:
        prompt = ids[:, :num_tokens]
        yield {"op": "prefill", "shape": f"{named}, {num_tokens} tokens", **shared} | _timed(
            lambda prompt=prompt: engine.prefill(prompt), num_tokens, device
        )
    _, cache = engine.prefill(ids)
    graphs = engine.graphs
    for batch in options.batches:
        next_B = torch.from_numpy(np.random.default_rng(batch).integers(0, shape["vocab_size"], batch)).to(device)
        logits: list[Tensor] = []
        for engine.graphs in (None, graphs) if graphs else (None,):
            forked = cache.fork(batch)
            # The first step of graphs is one without, the second captures.
            logits.append(torch.stack([engine.decode(next_B, forked) for _ in range(3)]))
            by = (
                {"launched": "by graphs", "same_bits": torch.equal(*logits)}
                if engine.graphs
                else {"launched": "one by one"}
            )
            yield {"op": "decode", "shape": f"{named}, {batch} x {ids.shape[1]} tokens", **by, **shared} | _decoded(
                lambda forked=forked, next_B=next_B: engine.decode(next_B, forked), forked, config, device
            )
            del forked


def trained(options: argparse.Namespace) -> Iterator[Row]:
    """A row per type of activations: the shipped checkpoint there against fp32 on a processor."""
    length, count = (300, 4) if options.tiny else (1500, 24)
    contexts = make_contexts(np.random.default_rng(1), count, length)
    facts_BQ = np.tile(np.linspace(0, contexts.num_facts - 1, 4).astype(np.int64), (count, 1))
    questions_BQ4, wanted_BQ = ask(contexts, facts_BQ)
    ids = torch.from_numpy(contexts.ids_BT[:2])

    def recall(engine: Engine) -> float:
        return float((answers(engine, contexts.ids_BT, questions_BQ4) == wanted_BQ).mean())

    here = Engine.load()
    expected, recall_here = here.forward(ids), recall(here)
    for dtype, limit in TRAINED_LIMITS.items():
        there = Engine.load(settings=EngineSettings(device=options.device, dtype=dtype))
        measured = _timed(lambda there=there: there.forward(ids), ids.numel(), options.device)
        yield {
            "op": "trained",
            "shape": f"sliding-csa, {str(dtype).removeprefix('torch.')}",
            "error": _error(there.forward(ids), expected),
            "error_limit": limit,
            "recall": recall(there),
            "recall_on_cpu": recall_here,
            "questions": wanted_BQ.size,
        } | measured


def _step_logits(config: ModelConfig, settings: EngineSettings, ids: Tensor) -> Tensor:
    """Logits after a short prompt and after each of two more tokens, by an engine that is gone afterwards."""
    engine = Engine(config, random_tensors(config, settings.device), settings)
    num_tokens = min(COMPARED_TOKENS, ids.shape[1] - 2)
    logits, cache = engine.prefill(ids[:, :num_tokens])
    steps = [logits[:, -1], *(engine.decode(ids[:, num_tokens + step], cache) for step in range(2))]
    return torch.stack(steps, 1).cpu()


def _error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.double().cpu(), expected.double().cpu()
    return float((found - expected).norm() / expected.norm())


def _timed(call: Callable[[], object], num_tokens: int, device: str) -> Row:
    """Microseconds of a call, tokens per second, the memory it reached and where a GPU spends its time."""
    us = statistics.median(_times(call, device, REPEATS))
    return {"us": round(us, 1), "tokens_per_s": round(num_tokens / us * 1e6, 1)} | _inside(call, device)


def _decoded(step: Callable[[], object], cache: Cache, config: ModelConfig, device: str) -> Row:
    """The same of decode steps that fill `cache`, and of those apart that close an entry of some layer and do not."""
    rates = {config.compress_rate(layer) for layer in range(config.num_hidden_layers)} - {0}
    times, lengths = _times(step, device, DECODED), range(cache.length - DECODED + 1, cache.length + 1)
    closing = [any(length % rate == 0 for rate in rates) for length in lengths]
    of_kind = {
        closes: statistics.median(time for time, closed in zip(times, closing, strict=True) if closed == closes)
        for closes in set(closing)
    }
    us = statistics.mean(of_kind[closes] for closes in closing)
    row = {
        "us": round(us, 1),
        "tokens_per_s": round(cache.batch / us * 1e6, 1),
        "open_us": round(of_kind[False], 1) if False in of_kind else None,
        "closing_us": round(of_kind[True], 1) if True in of_kind else None,
    }
    return row | _inside(step, device)


def _times(call: Callable[[], object], device: str, repeats: int) -> list[float]:
    """Microseconds of each of `repeats` calls after one that is not timed; the peak of memory counts from there."""
    call()
    _wait(device)
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        _wait(device)
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def _inside(call: Callable[[], object], device: str) -> Row:
    """The memory that the calls before reached, and what one more spends its time on."""
    peak_gb = torch.cuda.max_memory_allocated() / 1e9 if torch.device(device).type == "cuda" else None
    kernels = time_by_kernel(call, device)
    return {
        "peak_gb": peak_gb and round(peak_gb, 2),
        "kernels_us": round(sum(kernel["us"] for kernel in kernels), 1),
        "kernels": kernels[:KERNELS_SHOWN],
    }


def time_by_kernel(call: Callable[[], object], device: str) -> list[Row]:
    """Time, share of the total and number of launches by kernel name, longest first; of torch's ops on a processor."""
    on_gpu = torch.device(device).type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        call()
        _wait(device)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in seen.key_averages():
        us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if us > 0:
            entry = spent[short_name(event.key)]
            entry[0] += us
            entry[1] += event.count
    total = sum(us for us, _ in spent.values())
    return [
        {"name": name, "us": round(us, 1), "share": round(us / total, 4), "launches": int(count)}
        for name, (us, count) in sorted(spent.items(), key=lambda item: -item[1][0])
    ]


def short_name(kernel: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    name = kernel.removeprefix("void ").replace("(anonymous namespace)", "")
    return re.split(r"[<(]", name, maxsplit=1)[0].strip() or kernel


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def machine_of(device: str) -> Row:
    """What a result file names; a processor has no clocks and no driver to report."""
    from benchmarks import timing

    if torch.device(device).type == "cuda":
        return timing.machine()
    versions = {"torch": torch.__version__, "triton": "none", "driver": "none"}
    return {"gpu": "cpu", **versions, "commit": "none", "clocks_before": {"pstate": "none"}}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["flash", "trained"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prefill", type=_numbers, help="tokens of the prompts (default 1024,8192)")
    parser.add_argument("--batches", type=_numbers, help="sequences that decode together (default 1,16,64)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the shortest prompt and the smallest batch only")
    parser.add_argument("--out", type=Path, default=result_file.RESULTS, help="folder of the result file")
    options = parser.parse_args(arguments)
    options.prefill = options.prefill or ([32, 96] if options.tiny else [1024, 8192])[: 1 if options.quick else None]
    options.batches = options.batches or ([1, 2] if options.tiny else [1, 16, 64])[: 1 if options.quick else None]
    if torch.device(options.device).type != "cuda" and not options.tiny:
        print("engine_gpu: no CUDA device; the full shape needs one, --tiny does not", file=sys.stderr)
        return 1
    result: Row = {"machine": machine_of(options.device), "rows": []}
    name = "engine" if options.what == "flash" else "engine-trained"
    path = result_file.path_of(options.out, name, result["machine"]["gpu"])
    for row in {"flash": flash, "trained": trained}[options.what](options):
        if not row["error"] <= row["error_limit"]:
            row["us"] = row["tokens_per_s"] = None
        result["rows"].append(row)
        result_file.write(path, result)
        print({key: value for key, value in row.items() if key != "kernels"}, flush=True)
        for kernel in row["kernels"][:12]:
            print(f"    {kernel['share']:6.1%} {kernel['us']:10.1f} us {kernel['launches']:5} x {kernel['name'][:80]}")
    print(path, flush=True)
    found = result_file.problems(result)
    for problem in found:
        print(f"engine_gpu: {path.name}: {problem}", file=sys.stderr)
    return 1 if found else 0


def _numbers(text: str) -> list[int]:
    return sorted(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
