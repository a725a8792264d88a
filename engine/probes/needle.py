"""Recall of planted facts, per length and depth.

Every context is read once; its cache is then forked, and the questions about it are answered by cached decoding, all of
a batch together. A length counts the whole prompt: the context and the five tokens of a question with its answer.
"""

# B contexts of a batch, Q questions per context, T tokens

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

import numpy as np
import torch

from engine import events
from engine.engine import Engine
from engine.probes import session
from engine.task import QUESTION_TOKENS, Contexts, Ids, ask, fact_at_depth, make_contexts

TOKENS_PER_BATCH = 1 << 14  # of all contexts that are read together

Cell = tuple[int, float]


def answers(engine: Engine, context_ids_BT: Ids, questions_BQ4: Ids) -> Ids:
    """Returns the engine's answer to every question [B,Q]."""
    batch, num_questions, _ = questions_BQ4.shape
    _, cache = engine.prefill(torch.from_numpy(context_ids_BT), logits_at=[])
    forked = cache.fork(num_questions)
    asked = torch.from_numpy(questions_BQ4).flatten(0, 1)
    for step in range(asked.shape[1]):
        logits = engine.decode(asked[:, step], forked)
    return logits.argmax(-1).view(batch, num_questions).cpu().numpy()


def depths_of(args: argparse.Namespace) -> Ids:
    """Which depth each question asks about [contexts, questions]: all in turn, so that every cell fills evenly."""
    return np.arange(args.contexts * args.questions).reshape(args.contexts, args.questions) % len(args.depths)


def work(args: argparse.Namespace) -> None:
    engine = Engine.load(args.checkpoint)
    depth_numbers = depths_of(args)
    cells: dict[Cell, list[bool]] = defaultdict(list)
    total, done = len(args.lengths) * args.contexts, 0
    for length in args.lengths:
        rng = np.random.default_rng([args.seed, length])
        contexts = make_contexts(rng, args.contexts, length - QUESTION_TOKENS)
        facts = np.array([fact_at_depth(contexts.num_facts, depth) for depth in args.depths])[depth_numbers]
        per_batch = max(1, TOKENS_PER_BATCH // length)
        for first in range(0, args.contexts, per_batch):
            rows = slice(first, first + per_batch)
            ok = _ask_batch(engine, contexts, facts, rows)
            for row, column in np.ndindex(*ok.shape):
                context, depth = first + row, args.depths[depth_numbers[first + row, column]]
                right = bool(ok[row, column])
                cells[length, depth].append(right)
                cluster = session.item_id(args.seed, f"L{length}/c{context}")
                events.emit(
                    "item",
                    id=f"{cluster}/q{column}",
                    cluster=cluster,
                    ok=right,
                    tags={"length": length, "depth": depth},
                )
            done += len(ok)
            session.progress(done, total, f"{length} tokens")
    _report(args, cells)


def _ask_batch(engine: Engine, contexts: Contexts, facts_BQ: Ids, rows: slice) -> np.ndarray:
    questions, wanted = ask(contexts, facts_BQ)
    return answers(engine, contexts.ids_BT[rows], questions[rows]) == wanted[rows]


def _report(args: argparse.Namespace, cells: dict[Cell, list[bool]]) -> None:
    print(f"{'recall':>8} " + " ".join(f"d={depth:<6}" for depth in args.depths))
    for length in args.lengths:
        shown = []
        for depth in args.depths:
            found = cells.get((length, depth), [])
            if found:
                _metric(found, {"length": length, "depth": depth})
            shown.append(f"{sum(found) / len(found):<8.3f}" if found else f"{'-':<8}")
        print(f"{length:>8} " + " ".join(shown))
    everything = [right for found in cells.values() for right in found]
    _metric(everything, {})
    print(f"{'all':>8} {sum(everything) / len(everything):.3f} of {len(everything)} questions")


def _metric(found: list[bool], tags: dict[str, float]) -> None:
    low, high = session.wilson(sum(found), len(found))
    value = sum(found) / len(found)
    better = {"higher_is_better": True, "tags": tags}
    events.emit("metric", name="recall", value=value, n=len(found), low=low, high=high, **better)


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("needle", __doc__, "--lengths 256,1024 --contexts 8")
    parser.add_argument("--lengths", type=session.numbers(int), default="256,1024,2048", help="tokens of a prompt")
    parser.add_argument("--contexts", type=session.count, default=40, help="contexts per length (default 40)")
    parser.add_argument("--questions", type=session.count, default=4, help="questions per context (default 4)")
    parser.add_argument("--depths", type=session.numbers(float), default="0,.25,.5,.75,1", help="0 is the first fact")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
