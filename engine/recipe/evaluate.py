"""Measures recall of a checkpoint per length and depth, through the oracle, with index keys stored in several ways.

Example: python -m engine.recipe.evaluate --checkpoint /tmp/mine --device cuda --contexts 200 --out /tmp/recall.json

One question per depth and context, so every cell of a length has one prompt per context and contexts are independent.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.checkpoint import DEFAULT_CHECKPOINT
from engine.config import ModelConfig
from engine.errors import EngineError
from engine.oracle import Experts, forward
from engine.recipe.train import machine_name
from engine.task import QUESTION_TOKENS, Contexts, ask, fact_at_depth, make_contexts
from kernels import nvfp4_ref
from kernels.index_page_ref import PAGE_SIZE, SCALE_BYTES, quantise_keys

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TOKENS_PER_BATCH = {"cpu": 1 << 14, "cuda": 1 << 18}


def keys_bf16(keys: Tensor) -> Tensor:
    return keys.to(torch.bfloat16).float()


def keys_fp8(keys: Tensor) -> Tensor:
    values, scales = quantise_keys(keys)
    return values.float() * scales.unsqueeze(-1)


def keys_fp8_misread(keys_BNC: Tensor) -> Tensor:
    """The page fault: written as all values then all scales, read as records of one key's values and its scale."""
    batch, num_keys, channels = keys_BNC.shape
    num_pages = -(-num_keys // PAGE_SIZE)
    padded = torch.nn.functional.pad(keys_BNC, (0, 0, 0, num_pages * PAGE_SIZE - num_keys))
    values, scales = quantise_keys(padded.unflatten(1, (num_pages, PAGE_SIZE)))
    scale_bytes = scales.contiguous().view(torch.uint8)
    pages = torch.cat((values.view(torch.uint8).flatten(-2), scale_bytes), dim=-1)
    records = pages.unflatten(-1, (PAGE_SIZE, channels + SCALE_BYTES))
    read_values = records[..., :channels].contiguous().view(torch.float8_e4m3fn).float()
    read_scales = records[..., channels:].contiguous().view(torch.float32)
    return (read_values * read_scales).flatten(1, 2)[:, :num_keys].reshape(batch, num_keys, channels)


KEY_STORES: dict[str, Callable[[Tensor], Tensor]] = {
    "bf16": keys_bf16,
    "fp8": keys_fp8,
    "fp8-misread": keys_fp8_misread,
}


def nvfp4_experts(params: dict[str, Tensor], config: ModelConfig) -> Experts:
    """The routed experts after a trip through NVFP4 storage."""

    def stored(weights_EOI: Tensor) -> Tensor:
        return torch.stack([nvfp4_ref.decode(*nvfp4_ref.encode(weight)) for weight in weights_EOI])

    found = {}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}.mlp.experts"
        found[layer] = (stored(params[f"{prefix}.gate_up_proj"]), stored(params[f"{prefix}.down_proj"]))
    return found


@torch.inference_mode()
def answered(
    contexts: Contexts,
    params: dict[str, Tensor],
    config: ModelConfig,
    *,
    key_store: Callable[[Tensor], Tensor] | None,
    experts: Experts | None = None,
) -> Tensor:
    """Returns whether each context's question at each depth was answered, bool [contexts, depths]."""
    device = params["lm_head.weight"].device
    count, num_tokens = contexts.ids_BT.shape
    facts = np.tile([fact_at_depth(contexts.num_facts, depth) for depth in DEPTHS], (count, 1))
    questions, answers = ask(contexts, facts)
    repeated = np.repeat(contexts.ids_BT[:, None], len(DEPTHS), axis=1)
    prompts = torch.from_numpy(np.concatenate((repeated, questions), axis=-1)).flatten(0, 1).to(device)
    at = torch.tensor([prompts.shape[1] - 1], device=device)
    rows = max(1, TOKENS_PER_BATCH[device.type] // (num_tokens + QUESTION_TOKENS))
    picks = [
        forward(batch, params, config, at=at, key_store=key_store, experts=experts).logits_BQV[:, 0].argmax(-1)
        for batch in prompts.split(rows)
    ]
    return torch.cat(picks).cpu().view(count, -1) == torch.from_numpy(answers)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m engine.recipe.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--checkpoint", type=Path, default=DEFAULT_CHECKPOINT)
    parser.add_argument("--out", type=Path, help="JSON file to write beside the table")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--contexts", type=int, default=40, help="contexts per length; each cell has as many prompts")
    parser.add_argument("--lengths", default=",".join(str(length) for length in LENGTHS))
    parser.add_argument("--seed", type=int, default=10_000)
    parser.add_argument("--nvfp4", action="store_true", help="also with the experts in NVFP4 and right fp8 keys")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        config = ModelConfig.from_json(args.checkpoint / "config.json")
        stored = load_file(args.checkpoint / "model.safetensors")
        params = {name: value.to(device) for name, value in stored.items()}
        cases: dict[str, tuple[Callable[[Tensor], Tensor], Experts | None]] = {
            name: (store, None) for name, store in KEY_STORES.items()
        }
        if args.nvfp4:
            cases["fp8 + nvfp4 experts"] = (keys_fp8, nvfp4_experts(params, config))
        cells = []
        print(f"{'index keys':<20} {'length':>6} {'n/cell':>6}  " + " ".join(f"d={depth:<5}" for depth in DEPTHS))
        for length in (int(text) for text in args.lengths.split(",")):
            rng = np.random.default_rng([args.seed, length])
            contexts = make_contexts(rng, args.contexts, length - QUESTION_TOKENS)
            for name, (store, experts) in cases.items():
                began = time.monotonic()
                ok = answered(contexts, params, config, key_store=store, experts=experts)
                recall = ok.float().mean(0).tolist()
                print(
                    f"{name:<20} {length:>6} {args.contexts:>6}  "
                    + " ".join(f"{value:<7.3f}" for value in recall)
                    + f" {time.monotonic() - began:.1f} s",
                    flush=True,
                )
                for depth, right in zip(DEPTHS, ok.sum(0).tolist(), strict=True):
                    cells.append({"keys": name, "length": length, "depth": depth, "ok": right, "n": args.contexts})
    except EngineError as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 1
    if args.out:
        report = {
            "machine": machine_name(device),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            "seed": args.seed,
            "cells": cells,
        }
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
