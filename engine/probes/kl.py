"""Distance of the engine's next-token distributions to a reference that holds the same quantised experts.

The reference is the plain fp32 oracle with the engine's own dequantised expert weights, so storage formats cancel out
and the floor is rounding. The engine goes its real way: prefill, then the last tokens of the context and the question
by cached decoding. Scores are KL(reference || engine) in nats, apart for context positions and for answers: a wrong
weighting of experts moves the first and leaves the second, a lost fact does the reverse.
"""

# B contexts of equal length, T tokens, P positions compared, V vocabulary

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine import events
from engine.engine import Engine
from engine.errors import InputError
from engine.oracle import Experts, forward
from engine.probes import session
from engine.probes.capture import params_of, sample_ids
from engine.task import ASK_TOKENS

TAIL_TOKENS = 8  # context tokens that are decoded, before the question
FIRST_POSITION = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    kl_BP: Tensor
    agree_BP: Tensor  # whether both sides rank the same token first


def compare(engine: Engine, experts: Experts, params: dict[str, Tensor], ids_BT: Tensor, at_P: Tensor) -> Compared:
    """Both sides at the prefill positions `at_P`, at every decoded context position and, last, at the answer."""
    split = ids_BT.shape[1] - ASK_TOKENS - TAIL_TOKENS
    logits_BPV, cache = engine.prefill(ids_BT[:, :split], logits_at=at_P)
    decoded = [engine.decode(ids_BT[:, step], cache) for step in range(split, ids_BT.shape[1])]
    engine_BPV = torch.cat((logits_BPV, torch.stack(decoded[:TAIL_TOKENS] + decoded[-1:], dim=1)), dim=1)
    tail = torch.arange(split, split + TAIL_TOKENS)
    at = torch.cat((at_P, tail, torch.tensor([ids_BT.shape[1] - 1])))
    with torch.inference_mode():
        oracle_BPV = forward(ids_BT, params, engine.config, at=at, experts=experts).logits_BQV
    reference, log_ratio = oracle_BPV.double().log_softmax(-1), engine_BPV.double().log_softmax(-1)
    kl_BP = (reference.exp() * (reference - log_ratio)).sum(-1)
    return Compared(kl_BP=kl_BP, agree_BP=oracle_BPV.argmax(-1) == engine_BPV.argmax(-1))


def work(args: argparse.Namespace) -> None:
    engine = Engine.load(args.checkpoint)
    params = params_of(args.checkpoint)
    experts = {layer: engine.expert_weights(layer) for layer in range(engine.config.num_hidden_layers)}
    scores: dict[str, list[float]] = defaultdict(list)
    agreements: dict[str, list[float]] = defaultdict(list)
    wanted = [(length, args.contexts) for length in args.lengths]
    wanted += [(length, args.long) for length in args.long_lengths]
    groups = [(length, count) for length, count in wanted if count > 0]
    if not groups:
        raise InputError("--contexts and --long are 0, expected one of them to be at least 1")
    for done, (length, count) in enumerate(groups):
        ids_BT = sample_ids(args.seed, count, length)
        rng = np.random.default_rng([args.seed, length, 1])
        free = length - ASK_TOKENS - TAIL_TOKENS - FIRST_POSITION
        at_P = torch.from_numpy(FIRST_POSITION + np.sort((rng.random(args.positions) * free).astype(np.int64)))
        found = compare(engine, experts, params, ids_BT, at_P)
        for context in range(count):
            cluster = session.item_id(args.seed, f"L{length}/c{context}")
            for where, part in (("context", slice(None, -1)), ("answer", slice(-1, None))):
                score = float(found.kl_BP[context, part].mean())
                agree = float(found.agree_BP[context, part].double().mean())
                scores[where].append(score)
                agreements[where].append(agree)
                events.emit(
                    "item",
                    id=f"{cluster}/{where}",
                    cluster=cluster,
                    score=score,
                    tags={"where": where, "length": length, "agree": agree},
                )
        session.progress(done + 1, len(groups), f"{length} tokens")
    print(f"{'where':>8} {'KL (nats)':>10} {'largest':>10} {'agree':>7} {'n':>4}")
    for where, values in scores.items():
        kl, agree = float(np.mean(values)), float(np.mean(agreements[where]))
        tags, n = {"where": where}, len(values)
        events.emit("metric", name="kl", value=kl, n=n, higher_is_better=False, tags=tags)
        events.emit("metric", name=f"kl_{where}", value=kl, n=n, higher_is_better=False, tags=tags)
        events.emit("metric", name=f"agree_{where}", value=agree, n=n, higher_is_better=True)
        print(f"{where:>8} {kl:>10.2e} {max(values):>10.2e} {agree:>7.3f} {n:>4}")


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("kl", __doc__, "--contexts 4 --long 0")
    parser.add_argument("--lengths", type=session.numbers(int), default="192,256,320", help="tokens of a prompt")
    parser.add_argument("--contexts", type=session.amount, default=20, help="contexts per length (default 20)")
    parser.add_argument("--long-lengths", type=session.numbers(int), default="1024", help="beyond the indexer's reach")
    parser.add_argument("--long", type=session.amount, default=6, help="contexts per long length (default 6)")
    parser.add_argument("--positions", type=session.count, default=8, help="of each prefill (default 8)")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
