"""The recall task: what a context holds, and that a seed always gives the same one."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.task import (
    ASK,
    BOS,
    FACT,
    FIRST_VALUE,
    IS,
    NUM_VALUES,
    VOCAB_SIZE,
    ask,
    fact_at_depth,
    make_contexts,
    value_positions,
)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 5), num_tokens=st.integers(32, 700))
def test_every_fact_stands_in_the_context_once_and_is_answered_by_its_value(
    seed: int, count: int, num_tokens: int
) -> None:
    contexts = make_contexts(np.random.default_rng(seed), count, num_tokens)
    every_fact = np.tile(np.arange(contexts.num_facts), (count, 1))
    questions, answers = ask(contexts, every_fact)
    at = value_positions(contexts, every_fact)

    assert contexts.ids_BT.shape == (count, num_tokens)
    assert contexts.num_facts == num_tokens // 32
    assert contexts.ids_BT.min() >= 0
    assert contexts.ids_BT.max() < VOCAB_SIZE
    np.testing.assert_array_equal(np.take_along_axis(contexts.ids_BT, at, 1), answers)
    for offset, expected in ((-4, FACT), (-3, questions[..., 1]), (-2, questions[..., 2]), (-1, IS)):
        np.testing.assert_array_equal(
            np.take_along_axis(contexts.ids_BT, at + offset, 1), np.broadcast_to(expected, at.shape)
        )
    assert (questions[..., 0] == ASK).all()
    assert ((answers >= FIRST_VALUE) & (answers < FIRST_VALUE + NUM_VALUES)).all()
    for row in questions:
        assert len({tuple(pair) for pair in row[:, 1:3]}) == contexts.num_facts


def test_a_context_begins_with_bos_unless_a_fact_does() -> None:
    contexts = make_contexts(np.random.default_rng(0), 200, 64)

    starts = np.where(contexts.fact_at_BF[:, 0] == 0, FACT, BOS)

    np.testing.assert_array_equal(contexts.ids_BT[:, 0], starts)


def test_a_seed_gives_the_same_ids_on_every_machine() -> None:
    contexts = make_contexts(np.random.default_rng([7, 256]), 4, 251)

    digest = hashlib.sha256(contexts.ids_BT.astype("<i8").tobytes()).hexdigest()

    assert digest[:16] == "ce36a639aa0077c5"


def test_depths_go_from_the_first_fact_to_the_last() -> None:
    assert [fact_at_depth(63, depth) for depth in (0, 0.25, 0.5, 0.75, 1)] == [0, 16, 31, 46, 62]
    with pytest.raises(ConfigError, match=r"depth 1\.5 is outside"):
        fact_at_depth(63, 1.5)


@pytest.mark.parametrize(("num_tokens", "num_facts"), [(31, None), (64, 13), (8192, 1025), (64, 0)])
def test_facts_that_do_not_fit_are_refused_with_the_numbers(num_tokens: int, num_facts: int | None) -> None:
    with pytest.raises(ConfigError, match=f"a context of {num_tokens} tokens cannot hold"):
        make_contexts(np.random.default_rng(0), 1, num_tokens, num_facts=num_facts)
