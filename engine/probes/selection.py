"""Which entries the indexer picks, against the picks of an fp32 reference, and where the gold entry ranks.

A question about a planted fact ends each context; the entries that hold the fact's value are gold. Per indexer layer:
`overlap` is the share of the reference's picks that the engine picks too, `rank` the gold entry's place among the
engine's picks beside its place among all the reference's scores. An item is ok where the engine picks a gold entry
whenever the reference does.
"""

# B contexts, T tokens, K picks, C entries.

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine import events, oracle
from engine.engine import Engine
from engine.errors import InputError
from engine.probes import session
from engine.probes.capture import params_of, recorded
from engine.task import ASK_TOKENS, ask, fact_at_depth, make_contexts, value_positions

PER_BATCH = 4
NOT_PICKED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Ranks count from 0; `rank` is -1 where the engine picks no gold entry, `reference_rank` always is a place."""

    overlap: float
    rank: int
    reference_rank: int
    ok: bool


def judge(picks_K: Tensor, scores_C: Tensor, gold: tuple[int, ...]) -> Found:
    """One query: the engine's picks, best first, against the reference's scores of all visible entries."""
    order_C = torch.sort(scores_C, descending=True, stable=True).indices.tolist()
    picks = [pick for pick in picks_K.tolist() if pick >= 0]
    wanted = order_C[: len(picks)]
    rank = min((picks.index(entry) for entry in gold if entry in picks), default=NOT_PICKED)
    reference_rank = min(order_C.index(entry) for entry in gold)
    return Found(
        overlap=len(set(picks) & set(wanted)) / len(wanted),
        rank=rank,
        reference_rank=reference_rank,
        ok=rank != NOT_PICKED or reference_rank >= len(picks),
    )


def look(engine: Engine, params: dict[str, Tensor], ids_BT: Tensor, gold_at_B: np.ndarray) -> dict[int, list[Found]]:
    """What the last position of every context picks, by layer."""
    last = ids_BT.shape[1] - 1
    indexers = {n: one.self_attn.indexer for n, one in enumerate(engine.model.layers) if one.self_attn.indexer}
    with ExitStack() as stack:
        calls = {number: stack.enter_context(recorded(indexer, "pick")) for number, indexer in indexers.items()}
        engine.prefill(ids_BT)
    experts = {number: engine.expert_weights(number) for number in range(engine.config.num_hidden_layers)}
    with torch.inference_mode(), session.unheard():
        reference = oracle.forward(ids_BT, params, engine.config, at=torch.tensor([last]), experts=experts)
    found: dict[int, list[Found]] = {}
    for number, seen in calls.items():
        if not seen:
            raise InputError(
                f"layer {number}: {len(ids_BT[0])} tokens give its indexer nothing to choose, expected more than "
                f"{engine.config.index_topk * engine.config.compress_rate(number)}"
            )
        rate = engine.config.compress_rate(number)
        picks_BK = seen[-1].result[:, -1]
        scores_BC = reference.selections[number].scores_BQN[:, -1, : (last + 1) // rate]
        found[number] = [
            # An entry pools its own window and the one before.
            judge(picks_K, scores_C, (int(at) // rate, int(at) // rate + 1))
            for picks_K, scores_C, at in zip(picks_BK, scores_BC, gold_at_B, strict=True)
        ]
    return found


def work(args: argparse.Namespace) -> None:
    engine = Engine.load(args.checkpoint)
    params = params_of(args.checkpoint)
    found: dict[tuple[int, int], list[Found]] = defaultdict(list)
    for length in args.lengths:
        rng = np.random.default_rng([args.seed, length])
        contexts = make_contexts(rng, args.contexts, length - ASK_TOKENS)
        depths = [args.depths[number % len(args.depths)] for number in range(args.contexts)]
        facts_B1 = np.array([[fact_at_depth(contexts.num_facts, depth)] for depth in depths])
        questions, _ = ask(contexts, facts_B1)
        gold_at_B = value_positions(contexts, facts_B1)[:, 0]
        ids_BT = torch.from_numpy(np.concatenate((contexts.ids_BT, questions[:, 0]), 1))
        for first in range(0, args.contexts, PER_BATCH):
            rows = slice(first, first + PER_BATCH)
            for layer, ones in look(engine, params, ids_BT[rows], gold_at_B[rows]).items():
                for offset, one in enumerate(ones):
                    cluster = session.item_id(args.seed, f"L{length}/c{first + offset}")
                    tags = {
                        "layer": layer,
                        "length": length,
                        "depth": depths[first + offset],
                        "overlap": one.overlap,
                        "rank": one.rank,
                        "reference_rank": one.reference_rank,
                    }
                    events.emit("item", id=f"{cluster}/layer{layer}", cluster=cluster, ok=one.ok, tags=tags)
                found[length, layer] += ones
            session.progress(min(first + PER_BATCH, args.contexts), args.contexts, f"{length} tokens")
    _report(found)


def _report(found: dict[tuple[int, int], list[Found]]) -> None:
    print(f"{'tokens':>7} {'layer':>5} {'overlap':>8} {'gold picked':>12} {'rank':>6} {'in fp32':>8}")
    for (length, layer), ones in found.items():
        overlap = sum(one.overlap for one in ones) / len(ones)
        picked = [one.rank for one in ones if one.rank != NOT_PICKED]
        rank = f"{np.median(picked):.0f}" if picked else "-"
        reference = np.median([one.reference_rank for one in ones])
        tags = {"length": length, "layer": layer}
        events.emit("metric", name="overlap", value=overlap, n=len(ones), higher_is_better=True, tags=tags)
        print(f"{length:>7} {layer:>5} {overlap:>8.3f} {len(picked):>5} of {len(ones):<3} {rank:>6} {reference:>8.0f}")
    everything = [one for ones in found.values() for one in ones]
    right = sum(one.ok for one in everything)
    low, high = session.wilson(right, len(everything))
    share = right / len(everything)
    events.emit("metric", name="gold", value=share, n=len(everything), low=low, high=high, higher_is_better=True)
    overlap = sum(one.overlap for one in everything) / len(everything)
    events.emit("metric", name="overlap", value=overlap, n=len(everything), higher_is_better=True)


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("selection", __doc__, "--lengths 1024 --contexts 4")
    parser.add_argument("--lengths", type=session.numbers(int), default="1024,2048", help="tokens of a prompt")
    parser.add_argument("--contexts", type=session.count, default=8, help="contexts per length (default 8)")
    parser.add_argument("--depths", type=session.numbers(float), default="0,.25,.5,.75,1", help="0 is the first fact")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
