"""One path against another on the same inputs, op by op.

`topk`: HashTopK's weights against StandardTopK's on the same scores, held to the same experts. `experts`, `attention`,
`read` and `write`: the engine's op against the oracle's, on inputs that the engine itself made in prefill and decode.
The number is a relative error, |a - b| / |b|; the metric is the largest one.
"""

# B contexts, T tokens, N rows = B*T, D hidden size, K picks, E experts

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from torch import Tensor

from engine import events
from engine.config import ModelConfig
from engine.engine import Engine
from engine.events import Phase
from engine.moe import MoE
from engine.oracle import routed_sum, shared_expert
from engine.oracle.attention import attend
from engine.oracle.parts import Params, mix_coefficients, read_streams, write_streams
from engine.probes import session
from engine.probes.capture import Call, params_of, recorded, run_through, sample_ids
from engine.topk import HashTopK, StandardTopK
from kernels.index_page_ref import quantise_keys

PHASES: tuple[Phase, ...] = ("prefill", "decode")
SITES = ("attn_hc", "ffn_hc")
HOLD = 1e4  # added to the scores of the experts that must be picked

Row = tuple[str, str, float]  # op, phase, relative error


def relative_error(found: Tensor, reference: Tensor) -> float:
    reference = reference.double()
    return float((found.double() - reference).norm() / reference.norm().clamp(min=1e-30))


def stored_keys(index_keys: str) -> Callable[[Tensor], Tensor] | None:
    """The rounding that index keys go through in storage, and nothing of how a page is laid out."""
    if index_keys == "fp8":
        return lambda keys: _scaled(*quantise_keys(keys))
    if index_keys == "bf16":
        return lambda keys: keys.to(torch.bfloat16).float()
    return None


def _scaled(values: Tensor, scales: Tensor) -> Tensor:
    return values.float() * scales.unsqueeze(-1)


def routers(mlp: MoE, config: ModelConfig, calls: list[Call]) -> Iterator[Row]:
    """HashTopK as it ran, against a StandardTopK whose correction bias leaves it no other choice of experts."""
    for phase in PHASES:
        seen = [call for call in calls if call.args[2] == phase]
        x_ND = torch.cat([call.args[0] for call in seen])
        ids_NK = torch.cat([call.result.topk_ids_TK for call in seen])
        weights_NK = torch.cat([call.result.topk_weights_TK for call in seen])
        empty_NE = weights_NK.new_zeros(len(x_ND), config.n_routed_experts)
        standard_NE = empty_NE.clone()
        sets, group_N = torch.unique(ids_NK.sort(dim=-1).values, dim=0, return_inverse=True)
        for number, picks_K in enumerate(sets):
            rows = torch.nonzero(group_N == number).flatten()
            bias_E = torch.zeros(config.n_routed_experts).index_fill(0, picks_K, HOLD)
            standard = StandardTopK(
                config,
                mlp.topk.gate_ED,
                bias_E,
                layer=mlp.layer,
                routed_scaling_factor=mlp.routed_scaling_factor,
                apply_routed_scaling_factor_on_output=mlp.experts.should_fuse_routed_scaling_factor_in_topk,
            )
            found = standard.forward(x_ND[rows], rows, phase)
            standard_NE[rows] = empty_NE[rows].scatter(-1, found.topk_ids_TK, found.topk_weights_TK)
        yield "topk", phase, relative_error(empty_NE.scatter(-1, ids_NK, weights_NK), standard_NE)


def expert_blocks(engine: Engine, layer: int, params: Params, calls: list[Call]) -> Iterator[Row]:
    experts = {layer: engine.expert_weights(layer)}
    for phase in PHASES:
        for_phase = [call for call in calls if call.args[2] == phase]
        x_ND, ids_N = (torch.cat([call.args[place] for call in for_phase]) for place in (0, 1))
        wanted = routed_sum(x_ND, ids_N, layer, params, engine.config, experts=experts)
        wanted = wanted + shared_expert(x_ND, layer, params, engine.config)
        yield "experts", phase, relative_error(torch.cat([call.result for call in for_phase]), wanted)


def attentions(engine: Engine, layer: int, params: Params, calls: list[Call]) -> Iterator[Row]:
    """Every decoded token's attention looks back at the inputs of all tokens before it."""
    x_BTD = torch.cat([call.args[0] for call in calls], dim=1)
    found = torch.cat([call.result for call in calls], dim=1)
    first_decoded = sum(call.args[0].shape[1] for call in calls if call.args[3] == "prefill")
    at_T = torch.arange(x_BTD.shape[1])
    store = stored_keys(engine.settings.index_keys)
    wanted, _ = attend(x_BTD, at_T, layer, params, engine.config, key_store=store)
    yield "attention", "prefill", relative_error(found[:, :first_decoded], wanted[:, :first_decoded])
    yield "attention", "decode", relative_error(found[:, first_decoded:], wanted[:, first_decoded:])


def mixes(engine: Engine, prefix: str, params: Params, reads: list[Call], writes: list[Call]) -> Iterator[Row]:
    iters = engine.config.hc_sinkhorn_iters
    for op, calls in (("read", reads), ("write", writes)):
        for phase in PHASES:
            errors = []
            for call in calls:
                # A decode step takes one token of every context.
                if (call.args[0].shape[1] == 1) != (phase == "decode"):
                    continue
                pre, post, mix = mix_coefficients(call.args[0], params, prefix, engine.config, iters)
                if op == "read":
                    wanted = read_streams(call.args[0], pre)
                else:
                    wanted = write_streams(call.args[0], post, mix, call.args[1])
                errors.append(relative_error(call.result, wanted))
            yield op, phase, max(errors)


def rows_of_layer(engine: Engine, number: int, params: Params, ids_BT: Tensor) -> Iterator[Row]:
    layer = engine.model.layers[number]
    with ExitStack() as stack:
        experts = stack.enter_context(recorded(layer.mlp, "forward"))
        routing = stack.enter_context(recorded(layer.mlp.topk, "forward"))
        attention = stack.enter_context(recorded(layer.self_attn, "forward"))
        sites = {
            site: [stack.enter_context(recorded(getattr(layer, site), op)) for op in ("read", "write")]
            for site in SITES
        }
        run_through(engine, ids_BT)
    if isinstance(layer.mlp.topk, HashTopK):
        yield from routers(layer.mlp, engine.config, routing)
    yield from expert_blocks(engine, number, params, experts)
    yield from attentions(engine, number, params, attention)
    for site, (reads, writes) in sites.items():
        yield from mixes(engine, f"model.layers.{number}.{site}", params, reads, writes)


def work(args: argparse.Namespace) -> None:
    engine = Engine.load(args.checkpoint)
    params = params_of(args.checkpoint)
    ids_BT = sample_ids(args.seed, args.contexts, args.length)
    worst: dict[str, float] = {}
    print(f"{'layer':>5} {'op':<10} {'phase':<8} {'relative error':>14}")
    for number in range(engine.config.num_hidden_layers):
        with torch.inference_mode():
            rows = list(rows_of_layer(engine, number, params, ids_BT))
        largest: dict[tuple[str, str], float] = {}
        for op, phase, error in rows:
            largest[op, phase] = max(error, largest.get((op, phase), 0.0))
        for (op, phase), error in largest.items():
            worst[op] = max(error, worst.get(op, 0.0))
            name = session.item_id(args.seed, f"layer{number}/{op}/{phase}")
            events.emit("item", id=name, cluster=name, score=error, tags={"layer": number, "op": op, "phase": phase})
            print(f"{number:>5} {op:<10} {phase:<8} {error:>14.2e}")
        session.progress(number + 1, engine.config.num_hidden_layers, f"layer {number}")
    for op, error in worst.items():
        events.emit("metric", name="difference", value=error, higher_is_better=False, tags={"op": op})
    events.emit("metric", name="difference", value=max(worst.values()), higher_is_better=False)


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("differential", __doc__, "--length 256")
    parser.add_argument("--contexts", type=session.count, default=2, help="contexts to take inputs from (default 2)")
    parser.add_argument("--length", type=session.count, default=704, help="tokens; beyond 512 the indexer chooses")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
