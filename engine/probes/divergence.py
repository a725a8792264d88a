"""What every layer computes, as named tensors on disk, and how far it is from an earlier recording.

Per layer and phase: `attention` and `experts` (what the two sites add to the streams), `routed` (the experts' sum
before the shared expert) and `streams` (what the layer hands on), over the positions of the phase, and at the end the
`logits`, as layer -1. They go to one safetensors file in the folder of LIVEPATH_EVENTS, or in `--out`; each has a
`tensor` event. With `--against FILE` the relative error |a - b| / |b| of every tensor is an item, and the first line
that rises tells where two builds part.
"""

# B contexts, T positions of a phase.

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine import events
from engine.engine import Engine
from engine.errors import InputError
from engine.probes import session
from engine.probes.capture import Call, recorded, run_through, sample_ids
from engine.probes.differential import PHASES, relative_error

# Of a recorded call's arguments, the one that is the phase.
_PHASE_AT = {"attention": 3, "experts": 2, "routed": 2, "streams": 4, "logits": 2}
LOGITS_LAYER = -1


def tensors_of(engine: Engine, ids_BT: Tensor) -> dict[str, Tensor]:
    """Every named tensor [B, T, ...] of both phases, by "layer.name.phase"."""
    with ExitStack() as stack:
        calls: dict[tuple[int, str], list[Call]] = {}
        for number, layer in enumerate(engine.model.layers):
            owners = (("attention", layer.self_attn, "forward"), ("experts", layer.mlp, "forward"))
            for name, owner, method in (*owners, ("routed", layer.mlp, "routed"), ("streams", layer, "forward")):
                calls[number, name] = stack.enter_context(recorded(owner, method))
        calls[LOGITS_LAYER, "logits"] = stack.enter_context(recorded(engine.model, "forward"))
        run_through(engine, ids_BT)
    found = {}
    for (layer_number, name), seen in calls.items():
        for phase in PHASES:
            parts = [call.result for call in seen if call.args[_PHASE_AT[name]] == phase]
            # Experts see the tokens of all contexts in one row; a call has all contexts.
            parts = [part.view(len(ids_BT), -1, *part.shape[1:]) if part.ndim == 2 else part for part in parts]
            found[f"{layer_number}.{name}.{phase}"] = torch.cat(parts, 1).float().contiguous()
    return found


def work(args: argparse.Namespace) -> None:
    before = _earlier(args.against) if args.against else {}
    engine = Engine.load(args.checkpoint)
    with torch.inference_mode():
        found = tensors_of(engine, sample_ids(args.seed, args.contexts, args.length))
    path = _folder(args.out) / f"divergence-s{args.seed}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: tensor.cpu() for key, tensor in found.items()}, path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be written: {error}") from error
    for key in found:
        layer, name, phase = key.split(".")
        events.emit("tensor", name=name, layer=int(layer), phase=phase, file=str(path), key=key)
    print("\n".join(_table(args.seed, found, before)))
    print(f"{len(found)} tensors in {path}", file=sys.stderr)


def _table(seed: int, found: dict[str, Tensor], before: dict[str, Tensor]) -> Iterator[str]:
    yield f"{'layer':>5} {'tensor':<10} {'phase':<8} {'root mean square':>16} {'relative error':>15}"
    worst = 0.0
    for key, tensor in found.items():
        layer, name, phase = key.split(".")
        shown = "-"
        if before:
            if key not in before or before[key].shape != tensor.shape:
                there = tuple(before[key].shape) if key in before else "nothing"
                raise InputError(
                    f"{key} has shape {tuple(tensor.shape)}, the earlier recording holds {there}",
                    hint="Give both recordings the same checkpoint, --contexts and --length.",
                )
            error = relative_error(tensor, before[key])
            worst, shown = max(worst, error), f"{error:.2e}"
            tags = {"layer": int(layer), "tensor": name, "phase": phase}
            events.emit("item", id=session.item_id(seed, key), cluster=key, score=error, tags=tags)
        yield f"{layer:>5} {name:<10} {phase:<8} {float(tensor.square().mean().sqrt()):>16.6f} {shown:>15}"
    if before:
        events.emit("metric", name="divergence", value=worst, n=len(found), higher_is_better=False)


def _earlier(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"--against {path} cannot be read: {error}") from error


def _folder(out: Path | None) -> Path:
    if out is not None:
        return out.resolve()
    beside = os.environ.get("LIVEPATH_EVENTS")
    if not beside:
        raise InputError("there is no folder to write to", hint="Give --out DIR, or set LIVEPATH_EVENTS.")
    return Path(beside).resolve().parent


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("divergence", __doc__, "--length 96 --out recording")
    parser.add_argument("--contexts", type=session.count, default=2, help="contexts to record (default 2)")
    parser.add_argument("--length", type=session.count, default=160, help="tokens of each (default 160)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the file goes")
    parser.add_argument("--against", type=Path, metavar="FILE", help="an earlier recording to compare with")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
