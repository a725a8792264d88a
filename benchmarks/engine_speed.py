"""The engine beside others, on the CPU: prefill and decode against transformers, loading against plain safetensors.

    .venv-oracles/bin/python -m benchmarks.engine_speed speed --tokens 8192
    .venv-oracles/bin/python -m benchmarks.engine_speed load --megabytes 2000

Contract: both sides of a ratio are measured in one run, in turn, on the same weights and prompt; a difference of the
logits above the tolerance gives no ratio. Times are medians: of the repeats, and of the decode steps in each. `speed`
without transformers times the engine alone. Peak memory is that of a process of its own, above what it held before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.memory import peak_of
from engine.checkpoint import Tensors, load_checkpoint
from engine.config import ModelConfig
from engine.engine import Engine
from engine.loading.expected import expected_tensors
from engine.loading.experts import StoredExperts
from engine.settings import EngineSettings
from tests.engine.data.forms import stored
from tests.engine.data.tiny import CONFIG, Draw, weights

EXACT = EngineSettings(expert_quant="none", index_keys="fp32")
TOLERANCE = 5e-6


def speed(num_tokens: int, num_decoded: int, repeats: int, threads: int) -> dict[str, Any]:
    """Seconds of a prefill and milliseconds of a decode step, ours and transformers', and their ratios."""
    torch.set_num_threads(threads)
    config = CONFIG | {"max_position_embeddings": 2 * num_tokens + num_decoded}
    tensors = weights(0, config)
    ids = Draw(1).integers(1, num_tokens + num_decoded, below=config["vocab_size"])
    engine = Engine(ModelConfig.from_dict(config), Tensors(tensors, "tiny"), EXACT)
    ways: dict[str, Callable[[], tuple[float, float, Tensor]]] = {
        "engine": lambda: _time_engine(engine, ids, num_tokens)
    }
    model = _transformers_model(tensors, config)
    if model is not None:
        ways["transformers"] = lambda: _time_transformers(model, ids, num_tokens)
    runs: dict[str, list[tuple[float, float, Tensor]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            runs[name].append(way())
            print(
                f"{name}: prefill {runs[name][-1][0]:.2f} s, decode {runs[name][-1][1] * 1e3:.1f} ms", file=sys.stderr
            )
    result: dict[str, Any] = {"tokens": num_tokens, "decoded": num_decoded, "threads": threads, "repeats": repeats}
    for name, all_runs in runs.items():
        result[name] = {
            "prefill_s": round(statistics.median(run[0] for run in all_runs), 3),
            "decode_step_ms": round(statistics.median(run[1] for run in all_runs) * 1e3, 2),
            "total_s": round(statistics.median(run[0] + num_decoded * run[1] for run in all_runs), 3),
        }
    if model is None:
        return result | {"note": "transformers is not installed: no ratio"}
    difference = float((runs["engine"][0][2] - runs["transformers"][0][2]).abs().max())
    result["max_logit_difference"] = difference
    if difference > TOLERANCE:
        return result | {"note": f"logits differ by more than {TOLERANCE}: no ratio"}
    for measure in ("prefill_s", "decode_step_ms", "total_s"):
        result[f"ratio_{measure}"] = round(result["transformers"][measure] / result["engine"][measure], 2)
    return result


def _time_engine(engine: Engine, ids: Tensor, num_tokens: int) -> tuple[float, float, Tensor]:
    (logits, cache), prefill_s = _timed(lambda: engine.prefill(ids[:, :num_tokens]))
    steps, seconds = [logits[:, -1]], []
    for at in range(num_tokens, ids.shape[1]):
        logits, step_s = _timed(lambda at=at: engine.decode(ids[:, at], cache))
        steps.append(logits)
        seconds.append(step_s)
    return prefill_s, statistics.median(seconds), torch.stack(steps, 1)


@torch.inference_mode()
def _time_transformers(model: Any, ids: Tensor, num_tokens: int) -> tuple[float, float, Tensor]:
    output, prefill_s = _timed(lambda: model(ids[:, :num_tokens], use_cache=True, logits_to_keep=1))
    steps, seconds = [output.logits[:, -1]], []
    for at in range(num_tokens, ids.shape[1]):
        cache = output.cache
        output, step_s = _timed(lambda at=at, cache=cache: model(ids[:, at : at + 1], cache=cache, use_cache=True))
        steps.append(output.logits[:, -1])
        seconds.append(step_s)
    return prefill_s, statistics.median(seconds), torch.stack(steps, 1)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def _transformers_model(tensors: dict[str, Tensor], config: dict[str, Any]) -> Any:
    try:
        from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
    except ImportError:
        return None
    model = DeepseekV4ForCausalLM(DeepseekV4Config(**config)).float().eval()
    model.load_state_dict(tensors, strict=True)
    return model


def load(megabytes: int) -> dict[str, Any]:
    """Seconds, peak memory and bytes kept of every way of loading one random NVFP4 checkpoint."""
    folder = Path(tempfile.mkdtemp(prefix="livepath-load-"))
    try:
        size = write_random(folder, megabytes)
        rows = {}
        for way in WAYS:
            # Each way starts from a warm page cache and in a process of its own.
            for file in folder.glob("*.safetensors"):
                file.read_bytes()
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.engine_speed", "load-once", way, str(folder)],
                capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "2"},
            )  # fmt: skip
            rows[way] = json.loads(done.stdout)
        return {"checkpoint_mb": round(size / 1e6), "files": len(list(folder.glob("*.safetensors"))), "ways": rows}
    finally:
        shutil.rmtree(folder)


def write_random(folder: Path, megabytes: int) -> int:
    """A checkpoint with random NVFP4 experts of about this size, a shard for each layer; its bytes."""
    shape = {"hidden_size": 1024, "moe_intermediate_size": 512, "n_routed_experts": 64}
    layer_bytes = 3 * shape["hidden_size"] * shape["moe_intermediate_size"] * shape["n_routed_experts"] * 9 // 16
    num_layers = max(2, round(megabytes * 1e6 / layer_bytes))
    kinds = {"layer_types": ["sliding_attention"] * num_layers, "mlp_layer_types": ["moe"] * num_layers}
    config = CONFIG | shape | kinds | {"num_hidden_layers": num_layers}
    shapes = expected_tensors(ModelConfig.from_dict(config))
    generator = torch.Generator().manual_seed(0)
    plain = {
        name: torch.randn(size, generator=generator) * 0.02 for name, size in shapes.items() if ".experts." not in name
    }
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"moe_quant_algo": "NVFP4"}}))
    save_file(stored({name: t for name, t in plain.items() if ".layers." not in name}), folder / "rest.safetensors")
    for layer in range(num_layers):
        tensors = stored({name: t for name, t in plain.items() if f".layers.{layer}." in name})
        for expert in range(shape["n_routed_experts"]):
            for projection in ("w1", "w3", "w2"):
                columns, rows = shape["hidden_size"], shape["moe_intermediate_size"]
                rows, columns = (columns, rows) if projection == "w2" else (rows, columns)
                stem = f"layers.{layer}.ffn.experts.{expert}.{projection}"
                codes = torch.randint(0, 256, (rows, columns // 2), generator=generator, dtype=torch.uint8)
                # Block scales between 1 and 240.
                scale = torch.randint(56, 120, (rows, columns // 16), generator=generator, dtype=torch.uint8)
                tensors[f"{stem}.weight"], tensors[f"{stem}.weight_scale"] = codes, scale.view(torch.float8_e4m3fn)
                tensors[f"{stem}.weight_scale_2"] = torch.tensor(1e-4)
        save_file(tensors, folder / f"layer-{layer:03d}.safetensors")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _load_safetensors(folder: Path) -> object:
    return {name: t.clone() for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def _map_safetensors(folder: Path) -> object:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def _load_packed(folder: Path) -> object:
    config, tensors = load_checkpoint(folder)
    kept: list[object] = []
    for name, shape in expected_tensors(config).items():
        experts = tensors.take_experts(name, *shape) if ".experts." in name else None
        kept.append(experts.kept_as("nvfp4") if isinstance(experts, StoredExperts) else tensors.take(name, *shape))
    return kept


def _load_engine(folder: Path) -> object:
    return Engine.load(folder, EngineSettings(expert_quant="nvfp4", runner="marlin"))


WAYS: dict[str, Callable[[Path], object]] = {
    "safetensors, mapped": _map_safetensors,
    "safetensors, copied": _load_safetensors,
    "loader, packed": _load_packed,
    "engine, marlin runner": _load_engine,
}


def load_once(way: str, folder: Path) -> dict[str, Any]:
    seconds = 0.0

    def timed() -> object:
        nonlocal seconds
        start = time.perf_counter()
        result = WAYS[way](folder)
        seconds = time.perf_counter() - start
        return result

    peak, kept = peak_of(timed)
    return {
        "seconds": round(seconds, 2),
        "peak_mb": round(peak / 1e6),
        "kept_mb": round(kept / 1e6),
        "peak_over_kept": round(peak / kept, 2),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_speed", description=(__doc__ or "").split("\n")[0]
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    of_speed = verbs.add_parser("speed", help="prefill and decode, beside transformers where it is installed")
    of_speed.add_argument("--tokens", type=int, default=8192)
    of_speed.add_argument("--decode", type=int, default=64)
    of_speed.add_argument("--repeats", type=int, default=3)
    of_speed.add_argument("--threads", type=int, default=2)
    of_load = verbs.add_parser("load", help="loading a random NVFP4 checkpoint, beside plain safetensors")
    of_load.add_argument("--megabytes", type=int, default=2000)
    once = verbs.add_parser("load-once", help="one way of loading, in this process")
    once.add_argument("way", choices=WAYS)
    once.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    if args.verb == "speed":
        result = speed(args.tokens, args.decode, args.repeats, args.threads)
    elif args.verb == "load":
        result = load(args.megabytes)
    else:
        result = load_once(args.way, args.folder)
    print(json.dumps(result, indent=None if args.verb == "load-once" else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
