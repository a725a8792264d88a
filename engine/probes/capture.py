"""Real inputs for one part of the engine: what it was called with in a run, and what it gave back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.checkpoint import load_checkpoint
from engine.engine import Engine
from engine.loading.reader import EXPERT_SUFFIXES
from engine.task import ask, make_contexts

DECODED_TOKENS = 8


def params_of(checkpoint: Path) -> dict[str, Tensor]:
    """What the oracle computes with, under Hugging Face's names and in fp32: all tensors but the routed experts.

    Those come from the engine, which holds them in a format of its own.
    """
    _, tensors = load_checkpoint(checkpoint)
    return {name: tensors.by_name[name] for name in tensors.by_name if not name.endswith(EXPERT_SUFFIXES)}


@dataclass(frozen=True, slots=True)
class Call:
    args: tuple[Any, ...]
    result: Any


@contextmanager
def recorded(owner: object, method: str) -> Iterator[list[Call]]:
    """Every call of `owner.method` inside the block, in order; the method itself does what it always does."""
    original = getattr(owner, method)
    calls: list[Call] = []

    def record(*args: Any, **kwargs: Any) -> Any:
        # Arguments are kept as they were: a callee may write into its caches, never into these tensors.
        result = original(*args, **kwargs)
        calls.append(Call((*args, *kwargs.values()), result))
        return result

    setattr(owner, method, record)
    try:
        yield calls
    finally:
        delattr(owner, method)


def sample_ids(seed: int, count: int, num_tokens: int) -> Tensor:
    """Contexts of the recall task, each ending in a question, `num_tokens` in all [count, num_tokens]."""
    rng = np.random.default_rng([seed, num_tokens])
    contexts = make_contexts(rng, count, num_tokens - 4)
    facts = (rng.random((count, 1)) * contexts.num_facts).astype(np.int64)
    questions, _ = ask(contexts, facts)
    return torch.from_numpy(np.concatenate((contexts.ids_BT, questions[:, 0]), axis=1))


def run_through(engine: Engine, ids_BT: Tensor) -> None:
    """Prefills all but the last tokens, asking for every position, and decodes the rest: both phases, every layer."""
    split = ids_BT.shape[1] - DECODED_TOKENS
    _, cache = engine.prefill(ids_BT[:, :split], logits_at=range(split))
    for step in range(split, ids_BT.shape[1]):
        engine.decode(ids_BT[:, step], cache)
