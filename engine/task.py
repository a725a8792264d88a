"""The recall task: multi-turn contexts with planted facts, and questions about them.

A context is filler with turn markers and some stray name, attribute and value ids; facts `FACT name attr IS value`
stand at random offsets, one per slot of equal length. A question `ASK name attr IS` follows the context; the answer
is the value. The length of a prompt counts the context and the five tokens of a question with its answer.

Contract: everything comes from `rng.random()`, so a seed gives the same ids on every numpy that keeps PCG64's
doubles.
"""

# B contexts, T tokens, F facts, Q questions per context

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import ConfigError

Ids = NDArray[np.int64]

BOS, USER, ASST, FACT, ASK, IS = 0, 1, 2, 3, 4, 5
FIRST_NAME, NUM_NAMES = 16, 64
FIRST_ATTR, NUM_ATTRS = 80, 16
FIRST_VALUE, NUM_VALUES = 96, 128
FIRST_FILLER, NUM_FILLER = 224, 288
VOCAB_SIZE = FIRST_FILLER + NUM_FILLER

FACT_TOKENS = 5
ASK_TOKENS = 4  # of a question without its answer
QUESTION_TOKENS = 5  # with it
TOKENS_PER_FACT = 32
CHATTER = 0.15
SHORTEST_TURN, LONGEST_TURN = 24, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    ids_BT: Ids
    fact_at_BF: Ids  # position of each fact's FACT token, ascending
    names_BF: Ids
    attrs_BF: Ids
    values_BF: Ids

    @property
    def num_facts(self) -> int:
        return self.fact_at_BF.shape[1]


def _below(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> Ids:
    return (rng.random(shape) * count).astype(np.int64)


def make_contexts(
    rng: np.random.Generator, count: int, num_tokens: int, *, num_facts: int | None = None, chatter: float = CHATTER
) -> Contexts:
    """Returns `count` contexts of `num_tokens` ids each (without questions).

    Args:
        num_facts: facts per context; one per 32 tokens where None. No two share both name and attribute.
        chatter: the chance that a filler position is a stray name, attribute or value instead.

    Raises:
        ConfigError: the facts do not fit.
    """
    facts = num_tokens // TOKENS_PER_FACT if num_facts is None else num_facts
    if not 0 < facts <= min(NUM_NAMES * NUM_ATTRS, num_tokens // FACT_TOKENS):
        raise ConfigError(
            f"a context of {num_tokens} tokens cannot hold {facts} facts",
            hint=f"ask for 1 to {num_tokens // FACT_TOKENS} facts, or for {TOKENS_PER_FACT} tokens or more",
        )
    shape = (count, num_tokens)
    ids = FIRST_FILLER + (NUM_FILLER * rng.random(shape) ** 2).astype(np.int64)
    stray = FIRST_NAME + _below(rng, FIRST_FILLER - FIRST_NAME, shape)
    ids = np.where(rng.random(shape) < chatter, stray, ids)
    turns = SHORTEST_TURN + _below(rng, LONGEST_TURN - SHORTEST_TURN + 1, (count, 1))
    positions = np.arange(num_tokens)
    ids = np.where(positions % turns == 0, USER + positions // turns % 2, ids)
    ids[:, 0] = BOS

    slot = num_tokens // facts
    fact_at = np.arange(facts) * slot + _below(rng, slot - FACT_TOKENS + 1, (count, facts))
    pairs = np.argsort(rng.random((count, NUM_NAMES * NUM_ATTRS)), axis=1)[:, :facts]
    names, attrs = FIRST_NAME + pairs // NUM_ATTRS, FIRST_ATTR + pairs % NUM_ATTRS
    values = FIRST_VALUE + _below(rng, NUM_VALUES, (count, facts))
    rows = np.arange(count)[:, None]
    written = (np.full_like(names, FACT), names, attrs, np.full_like(names, IS), values)
    for offset, column in enumerate(written):
        ids[rows, fact_at + offset] = column
    return Contexts(ids_BT=ids, fact_at_BF=fact_at, names_BF=names, attrs_BF=attrs, values_BF=values)


def ask(contexts: Contexts, facts_BQ: Ids) -> tuple[Ids, Ids]:
    """Returns the questions [B,Q,4] about the facts with these indices, and the ids that answer them [B,Q]."""

    def pick(column: Ids) -> Ids:
        return np.take_along_axis(column, facts_BQ, axis=1)

    names, attrs = pick(contexts.names_BF), pick(contexts.attrs_BF)
    questions = np.stack((np.full_like(names, ASK), names, attrs, np.full_like(names, IS)), axis=-1)
    return questions, pick(contexts.values_BF)


def value_positions(contexts: Contexts, facts_BQ: Ids) -> Ids:
    """Returns where in the context the answers stand."""
    return np.take_along_axis(contexts.fact_at_BF, facts_BQ, axis=1) + FACT_TOKENS - 1


def fact_at_depth(num_facts: int, depth: float) -> int:
    """Returns the index of the fact at a depth between 0 (the first) and 1 (the last)."""
    if not 0 <= depth <= 1:
        raise ConfigError(f"depth {depth} is outside 0..1", hint="0 is the start of the context, 1 its end")
    return round(depth * (num_facts - 1))
