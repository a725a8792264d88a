"""Trains a checkpoint that recalls planted facts.

Example: python -m engine.recipe.train --out /tmp/mine --device cuda --minutes 3 --seed 1

Writes config.json, model.safetensors (fp32, Hugging Face names) and train.json (curve, versions, machine) into --out.
A GPU run is not repeatable to the bit: what ships is the weights with their digest, and this recipe beside them.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint import DEFAULT_CHECKPOINT
from engine.config import ModelConfig
from engine.errors import EngineError
from engine.recipe.curriculum import CPU_STAGES, GPU_STAGES, MEASURED_STEPS, Curriculum, Stage
from engine.recipe.initial import BUFFERS, initial_params, is_decayed
from engine.recipe.objective import Losses, losses, make_batch

WARM_UP_STEPS = 100
DECAY_FROM = 0.57  # share of the time after which the learning rate falls to zero
SHORT_SINKHORN_ITERS = 4
SHORT_SINKHORN_UNTIL = 0.85  # share of the time; the rest trains with the configuration's own number
HEADER = (
    f"{'step':>6} {'seconds':>8} {'tokens':>7} {'accuracy':>9} {'answer':>8} {'context':>8} {'index':>8} {'gold':>8}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Means over the steps since the row before; `tokens` is the longest context in training."""

    step: int
    seconds: float
    tokens: int
    accuracy: float
    answer: float
    context: float
    index: float
    gold: float

    def __str__(self) -> str:
        numbers = (self.accuracy, self.answer, self.context, self.index, self.gold)
        return f"{self.step:>6} {self.seconds:>8.1f} {self.tokens:>7} {numbers[0]:>9.3f}" + "".join(
            f" {number:>8.4f}" for number in numbers[1:]
        )


def train(
    config: ModelConfig,
    stages: tuple[Stage, ...],
    *,
    seed: int,
    seconds: float,
    steps: int | None = None,
    learning_rate: float,
    device: torch.device,
) -> tuple[dict[str, Tensor], list[Row]]:
    """Trains for `seconds`, or for `steps` where given, and returns the state dict (CPU, fp32) and the curve."""
    rng = np.random.default_rng(seed)
    start = initial_params(config, torch.Generator().manual_seed(seed))
    params = {name: value.to(device) for name, value in start.items()}
    trained = {name: value.requires_grad_() for name, value in params.items() if not name.endswith(BUFFERS)}
    groups = [
        {"params": [value for name, value in trained.items() if is_decayed(name, value)], "weight_decay": 0.01},
        {"params": [value for name, value in trained.items() if not is_decayed(name, value)], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=device.type == "cuda")
    curriculum = Curriculum(stages, rng)
    curve: list[Row] = []
    recent: list[Tensor] = []
    began, step = time.monotonic(), 0
    while (share := step / steps if steps else (time.monotonic() - began) / seconds) < 1:
        decay = min(1.0, (1 - share) / (1 - DECAY_FROM))
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * decay * min(1.0, (step + 1) / WARM_UP_STEPS)
        iters = SHORT_SINKHORN_ITERS if share < SHORT_SINKHORN_UNTIL else config.hc_sinkhorn_iters
        found = losses(
            params,
            config,
            make_batch(rng, curriculum.next_stage(), device),
            sinkhorn_iters=min(iters, config.hc_sinkhorn_iters),
        )
        optimiser.zero_grad(set_to_none=True)
        found.total(decay).backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimiser.step()
        step += 1
        recent.append(_numbers(found))
        if len(recent) == MEASURED_STEPS:
            # One wait for the device per 25 steps; the curriculum then learns of all of them.
            accuracy, answer, context, index, gold = torch.stack(recent).mean(0).tolist()
            recent.clear()
            spent = round(time.monotonic() - began, 2)
            tokens = curriculum.longest.num_tokens
            curve.append(
                Row(
                    step=step,
                    seconds=spent,
                    tokens=tokens,
                    accuracy=accuracy,
                    answer=answer,
                    context=context,
                    index=index,
                    gold=gold,
                )
            )
            if curriculum.record(accuracy) or step % (8 * MEASURED_STEPS) == 0:
                print(curve[-1], flush=True)
    return {name: value.detach().cpu().contiguous() for name, value in params.items()}, curve


def _numbers(found: Losses) -> Tensor:
    return torch.stack((found.accuracy, found.answer, found.context, found.index, found.gold)).detach()


def machine_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m engine.recipe.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write; made if missing")
    parser.add_argument("--config", type=Path, default=DEFAULT_CHECKPOINT / "config.json", help="config.json to train")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=8.0, help="time to train, without evaluation (default 8)")
    parser.add_argument("--steps", type=int, help="train this many steps instead; on a CPU that repeats to the bit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="3e-3 for two layers, 1e-3 for more")
    parser.add_argument("--commit", default="unknown", help="commit of this recipe, kept in train.json")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    stages = GPU_STAGES if device.type == "cuda" else CPU_STAGES
    try:
        config = ModelConfig.from_json(args.config)
        print(HEADER, flush=True)
        params, curve = train(
            config,
            stages,
            seed=args.seed,
            seconds=60 * args.minutes,
            steps=args.steps,
            learning_rate=args.learning_rate,
            device=device,
        )
    except EngineError as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(args.config, args.out / "config.json")
    save_file(params, args.out / "model.safetensors", metadata={"format": "pt"})
    report = {
        "seed": args.seed,
        "minutes": None if args.steps else args.minutes,
        "steps": args.steps,
        "learning_rate": args.learning_rate,
        "machine": machine_name(device),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "commit": args.commit,
        "curve": [asdict(row) for row in curve],
    }
    (args.out / "train.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
