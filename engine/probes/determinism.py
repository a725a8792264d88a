"""Whether the same input gives the same answer: twice, in a batch, by chunks, and token by token.

`twice` repeats a pass and allows no bit to differ. `batch` takes a context in beside others, `mixed` beside others that
already decode, `chunked` by pieces of a few tokens, `decode` with its last tokens one at a time; there the sums may run
in another order, so the next token must be the same and the logits may differ by `--tolerance` of their norm.
"""

# B contexts, T tokens, V vocabulary.

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

import torch
from torch import Tensor

from engine import events
from engine.engine import Engine
from engine.probes import session
from engine.probes.capture import DECODED_TOKENS, sample_ids
from engine.probes.differential import relative_error
from engine.serving.ragged import Segment, forward_ragged

# Another context has taken this many tokens in before it decodes beside the one under test; fewer if it has no more.
BESIDE_TOKENS = 40


def answers(engine: Engine, ids_BT: Tensor, place: int, chunk: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits [V] after context `place`, and those they are held against, by kind."""
    ids_1T = ids_BT[place : place + 1]
    alone = engine.prefill(ids_1T)[0][0, -1]
    split = ids_1T.shape[1] - DECODED_TOKENS
    _, cache = engine.prefill(ids_1T[:, :split], [])
    for step in range(split, ids_1T.shape[1]):
        decoded = engine.decode(ids_1T[:, step], cache)[0]
    found = {
        "twice": engine.prefill(ids_1T)[0][0, -1],
        "batch": engine.prefill(ids_BT)[0][place, -1],
        "mixed": _mixed(engine, ids_BT, place),
        "chunked": _chunked(engine, ids_1T[0], chunk),
        "decode": decoded,
    }
    return {kind: (logits, alone) for kind, logits in found.items()}


def _chunked(engine: Engine, ids_T: Tensor, chunk: int) -> Tensor:
    with torch.inference_mode():
        cache = engine.model.new_cache(1)
    for piece in ids_T.split(chunk):
        logits = forward_ragged(engine.model, [Segment(cache=cache, ids_T=piece, phase="prefill")])
    return logits[0]


def _mixed(engine: Engine, ids_BT: Tensor, place: int) -> Tensor:
    """One pass in which this context is taken in while every other one decodes a token."""
    segments = []
    for number, ids_T in enumerate(ids_BT):
        with torch.inference_mode():
            cache = engine.model.new_cache(1)
        if number == place:
            segments.append(Segment(cache=cache, ids_T=ids_T, phase="prefill"))
            continue
        taken = min(BESIDE_TOKENS, len(ids_T) - 1)
        forward_ragged(engine.model, [Segment(cache=cache, ids_T=ids_T[:taken], phase="prefill")])
        segments.append(Segment(cache=cache, ids_T=ids_T[taken : taken + 1], phase="decode"))
    return forward_ragged(engine.model, segments)[place]


def work(args: argparse.Namespace) -> None:
    engine = Engine.load(args.checkpoint)
    ids_BT = sample_ids(args.seed, args.contexts, args.length)
    errors: dict[str, list[float]] = defaultdict(list)
    right: dict[str, list[bool]] = defaultdict(list)
    for place in range(args.contexts):
        cluster = session.item_id(args.seed, f"c{place}")
        for kind, (logits_V, alone_V) in answers(engine, ids_BT, place, args.chunk).items():
            error = relative_error(logits_V, alone_V)
            same = int(logits_V.argmax()) == int(alone_V.argmax())
            ok = torch.equal(logits_V, alone_V) if kind == "twice" else same and error <= args.tolerance
            errors[kind].append(error)
            right[kind].append(ok)
            tags = {"kind": kind, "error": error, "same_token": same}
            events.emit("item", id=f"{cluster}/{kind}", cluster=cluster, ok=ok, tags=tags)
        session.progress(place + 1, args.contexts, cluster)
    print(f"{'kind':<8} {'same':>9} {'largest error':>14}")
    for kind, found in errors.items():
        tags = {"kind": kind}
        events.emit("metric", name="difference", value=max(found), n=len(found), higher_is_better=False, tags=tags)
        print(f"{kind:<8} {sum(right[kind]):>4} of {len(found):<2} {max(found):>13.1e}")
    everything = [ok for oks in right.values() for ok in oks]
    share = sum(everything) / len(everything)
    low, high = session.wilson(sum(everything), len(everything))
    events.emit("metric", name="same", value=share, n=len(everything), low=low, high=high, higher_is_better=True)


def main(argv: list[str] | None = None) -> int:
    parser = session.parser_of("determinism", __doc__, "--contexts 2 --length 200 --chunk 7")
    parser.add_argument(
        "--contexts", type=session.count, default=4, help="contexts, each tried beside the others (default 4)"
    )
    parser.add_argument("--length", type=session.count, default=160, help="tokens of each (default 160)")
    parser.add_argument("--chunk", type=session.count, default=13, help="tokens of a piece (default 13)")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative error of the logits (default 1e-4)")
    return session.run(parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
