"""One op on the checkpoint's real weights and real activations, against fp64, and its time in fp32 and in bf16.

`mhc-premix` is the matrix product that makes the mixing numbers of a hyper-connection; what it feeds is which stream
each output takes most from. `router` is the product that scores experts; it feeds the choice of experts. The error is
relative, |a - b| / |b|, the largest over layers and sites. Times are shown, never judged.
"""

# N tokens, D hidden size, S streams, M mixing numbers, E experts, K picks

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.engine import Engine
from engine.oracle.parts import Params, rms
from engine.probes import session
from engine.probes.capture import params_of, recorded, run_through, sample_ids

REPEATS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    site: str
    error: float
    agree: float  # share of argmaxes that stay what they are in fp64
    operands: tuple[Tensor, Tensor]  # of the product that is timed


def premixes(engine: Engine, params: Params, ids_BT: Tensor) -> Iterator[Measured]:
    num_streams = engine.config.hc_mult
    for number, layer in enumerate(engine.model.layers):
        for site, connection in (("attn_hc", layer.attn_hc), ("ffn_hc", layer.ffn_hc)):
            with recorded(connection, "premix") as calls:
                run_through(engine, ids_BT)
            prefix = f"model.layers.{number}.{site}"
            streams = torch.cat([call.args[0].flatten(0, 1) for call in calls]).double()
            found_NM = torch.cat([call.result.flatten(0, 1) for call in calls]).double()
            flat = rms(streams.flatten(-2), engine.config.rms_norm_eps)
            weight = params[f"{prefix}.fn"]
            wanted_NM = flat @ weight.double().T
            scale, base = params[f"{prefix}.scale"].double(), params[f"{prefix}.base"].double()
            tops = []
            for z_NM in (found_NM, wanted_NM):
                mix_NSS = (scale[2] * z_NM + base)[:, 2 * num_streams :].unflatten(-1, (num_streams, num_streams))
                pre_NS = (scale[0] * z_NM + base)[:, :num_streams]
                tops.append(torch.cat((mix_NSS.argmax(-1), pre_NS.argmax(-1, keepdim=True)), dim=-1))
            yield Measured(
                site=f"layer{number}/{site}",
                error=_relative(found_NM, wanted_NM),
                agree=float((tops[0] == tops[1]).double().mean()),
                operands=(flat.float(), weight),
            )


def routers(engine: Engine, params: Params, ids_BT: Tensor) -> Iterator[Measured]:
    for number, layer in enumerate(engine.model.layers):
        with recorded(layer.mlp.topk, "forward") as calls:
            run_through(engine, ids_BT)
        x_ND = torch.cat([call.args[0] for call in calls])
        weight = params[f"model.layers.{number}.mlp.gate.weight"]
        ids_NK = torch.cat([call.result.topk_ids_TK for call in calls])
        weights_NK = torch.cat([call.result.topk_weights_TK for call in calls]).double()
        scores = F.softplus(x_ND.double() @ weight.double().T).sqrt().gather(-1, ids_NK)
        # The factor may or may not be in the weights: only their proportions are compared.
        found, wanted = (part / part.sum(-1, keepdim=True) for part in (weights_NK, scores))
        yield Measured(
            site=f"layer{number}/gate",
            error=_relative(found, wanted),
            agree=float((found.argmax(-1) == wanted.argmax(-1)).double().mean()),
            operands=(x_ND, weight),
        )


OPS = {"mhc-premix": premixes, "router": routers}


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))


def median_us(operands: tuple[Tensor, Tensor], dtype: torch.dtype) -> float:
    left, right = (operand.to(dtype) for operand in operands)
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        F.linear(left, right)
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def work(args: argparse.Namespace) -> None:
    engine = Engine.load(args.checkpoint)
    params = params_of(args.checkpoint)
    with torch.inference_mode():
        measured = list(OPS[args.op](engine, params, sample_ids(args.seed, args.contexts, args.length)))
        print(f"{'site':<16} {'error':>9} {'argmax agrees':>14} {'fp32 us':>9} {'bf16 us':>9}")
        for done, found in enumerate(measured):
            name = session.item_id(args.seed, f"{args.op}/{found.site}")
            fp32_us, bf16_us = (median_us(found.operands, dtype) for dtype in (torch.float32, torch.bfloat16))
            tags = {"op": args.op, "site": found.site, "agree": found.agree}
            events.emit("item", id=name, cluster=name, score=found.error, tags=tags)
            site = {"op": args.op, "site": found.site}
            events.emit("metric", name="time_fp32_us", value=fp32_us, n=REPEATS, tags=site)
            events.emit("metric", name="time_bf16_us", value=bf16_us, n=REPEATS, tags=site)
            session.progress(done + 1, len(measured), found.site)
            print(f"{found.site:<16} {found.error:>9.2e} {found.agree:>14.4f} {fp32_us:>9.1f} {bf16_us:>9.1f}")
    worst, agree = max(found.error for found in measured), min(found.agree for found in measured)
    events.emit("metric", name="error", value=worst, higher_is_better=False)
    events.emit("metric", name="agree", value=agree, higher_is_better=True)


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("microbench", __doc__, "--op router")
    parser.add_argument("--op", choices=sorted(OPS), default="mhc-premix")
    parser.add_argument("--contexts", type=session.count, default=4, help="contexts to take inputs from (default 4)")
    parser.add_argument("--length", type=session.count, default=256, help="tokens of each (default 256)")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
