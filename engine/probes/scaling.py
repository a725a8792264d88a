"""How often the routed scaling factor f is applied, per layer, phase and branch.

The output of an expert block, before residual and norm, is split by least squares into a * (sum of the routed experts
at f = 1) + b * (shared expert), both computed by the oracle on the very experts the engine holds. Doing so with f and
with 2 f gives the exponent n = d log|a| / d log f: 1 is right, 2 doubled, 0 missing, -1 undone. The shared expert
takes no factor: its exponent is 0. The gain a / f catches a constant that is wrong without depending on f.
"""

# N tokens, D hidden size

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from engine import events
from engine.engine import Engine
from engine.oracle import routed_sum, shared_expert
from engine.probes import session
from engine.probes.capture import params_of, recorded, run_through, sample_ids

BRANCHES = ("routed", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """output = gains[0] * routed + gains[1] * shared, and the share of the output that this leaves over."""

    gains: tuple[float, float]
    residual: float


def fit(output_ND: Tensor, routed_ND: Tensor, shared_ND: Tensor) -> Fit:
    columns = torch.stack((routed_ND.flatten(), shared_ND.flatten()), dim=1).double()
    target = output_ND.flatten().double()
    gains = torch.linalg.lstsq(columns, target.unsqueeze(1)).solution.flatten()
    left = (target - columns @ gains).norm() / target.norm().clamp(min=1e-30)
    return Fit(gains=(float(gains[0]), float(gains[1])), residual=float(left))


def exponent(gain: float, gain_at_double: float) -> float:
    """log2 of what doubling the constant did; a branch that vanished has none."""
    if gain == 0 or gain_at_double == 0:
        return math.nan
    return math.log2(abs(gain_at_double / gain))


def work(args: argparse.Namespace) -> None:
    engine = Engine.load(args.checkpoint)
    factor = engine.model.layers[0].mlp.routed_scaling_factor
    doubled = Engine.load(args.checkpoint, routed_scaling_factor=2 * factor)
    params = params_of(args.checkpoint)
    ids_BT = sample_ids(args.seed, args.contexts, args.length)
    print(f"{'layer':>5} {'phase':>8} {'branch':>7} {'exponent':>9} {'gain':>9} {'residual':>9}")
    worst = 0.0
    layers = engine.model.layers
    for number, layer in enumerate(layers):
        with recorded(layer.mlp, "forward") as calls:
            run_through(engine, ids_BT)
        experts = {number: engine.expert_weights(number)}
        for phase in ("prefill", "decode"):
            seen = [call for call in calls if call.args[2] == phase]
            x_ND, ids_N = (torch.cat([call.args[place] for call in seen]) for place in (0, 1))
            output = torch.cat([call.result for call in seen])
            with torch.inference_mode(), session.unheard():
                output_at_double = doubled.model.layers[number].mlp.forward(x_ND, ids_N, phase)
                routed = routed_sum(
                    x_ND, ids_N, number, params, engine.config, experts=experts, routed_scaling_factor=1.0
                )
                shared = shared_expert(x_ND, number, params, engine.config)
            once, twice = fit(output, routed, shared), fit(output_at_double, routed, shared)
            worst = max(worst, *_report(number, phase, once, twice, factor))
        session.progress(number + 1, len(layers), f"layer {number}")
    events.emit("metric", name="exponent_error", value=worst, higher_is_better=False)
    print(f"largest error {worst:.2g}")


def _report(layer: int, phase: str, once: Fit, twice: Fit, factor: float) -> list[float]:
    """Emits both branches and returns how far each number is from what it should be."""
    errors: list[float] = []
    residual = max(once.residual, twice.residual)
    for place, branch in enumerate(BRANCHES):
        right = 1 - place
        n = exponent(once.gains[place], twice.gains[place])
        gain = once.gains[place] / factor**right
        tags = {"layer": layer, "phase": phase, "branch": branch}
        events.emit("metric", name="exponent", value=n, residual=residual, tags=tags)
        events.emit("metric", name="gain", value=gain, residual=residual, tags=tags)
        print(f"{layer:>5} {phase:>8} {branch:>7} {n:>9.4f} {gain:>9.4f} {residual:>9.1e}")
        errors += [abs(n - right), abs(gain - 1)]
    # No number is the worst number.
    return [math.inf if math.isnan(error) else error for error in errors]


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("scaling", __doc__, "--length 128")
    parser.add_argument("--contexts", type=session.count, default=4, help="contexts to take inputs from (default 4)")
    parser.add_argument("--length", type=session.count, default=160, help="tokens of each (default 160)")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
