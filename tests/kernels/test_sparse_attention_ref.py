from __future__ import annotations

import pytest
import torch

from kernels.errors import ShapeError
from kernels.sparse_attention_ref import (
    part_probs_ref,
    part_weights_ref,
    sparse_attention_ref,
    sparse_attention_split_ref,
)
from tests.numerics import assert_close

B, H, N, D = 3, 4, 20, 16


def inputs(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    q = torch.randn(B, H, D, generator=generator)
    entries = torch.randn(B, N, D, generator=generator)
    valid = torch.rand(B, N, generator=generator) > 0.4
    valid[1] = False
    return q, entries, valid, torch.randn(H, generator=generator)


def test_the_sink_only_enlarges_the_denominator(generator: torch.Generator) -> None:
    q, entries, valid, sinks = inputs(generator)

    out = sparse_attention_ref(q, entries, valid, sinks, 0.25)

    logits = 0.25 * entries[0, valid[0]] @ q[0, 2]
    expected = (logits.exp()[:, None] * entries[0, valid[0]]).sum(0) / (logits.exp().sum() + sinks[2].exp())
    assert torch.allclose(out[0, 2], expected, atol=1e-5)


def test_a_query_without_a_valid_entry_gives_zero(generator: torch.Generator) -> None:
    q, entries, valid, sinks = inputs(generator)

    assert torch.equal(sparse_attention_ref(q, entries, valid, sinks, 0.25)[1], torch.zeros(H, D))
    assert torch.equal(sparse_attention_split_ref(q, entries, valid, sinks, 0.25, 3)[1], torch.zeros(H, D))


@pytest.mark.parametrize("num_splits", [1, 2, 3, 20, 25])
def test_splits_merge_to_the_whole(num_splits: int, generator: torch.Generator) -> None:
    q, entries, valid, sinks = inputs(generator)

    out = sparse_attention_split_ref(q, entries, valid, sinks, 0.25, num_splits)

    assert_close(out, sparse_attention_ref(q, entries, valid, sinks, 0.25), "fp32_merge")


@pytest.mark.parametrize("num_splits", [1, 3, 20])
def test_without_a_mask_every_entry_counts(num_splits: int, generator: torch.Generator) -> None:
    q, entries, valid, sinks = inputs(generator)

    out = sparse_attention_split_ref(q, entries, None, sinks, 0.25, num_splits)

    whole = sparse_attention_ref(q, entries, torch.ones_like(valid), sinks, 0.25)
    assert torch.equal(sparse_attention_ref(q, entries, None, sinks, 0.25), whole)
    assert_close(out, whole, "fp32_merge")


def test_a_part_without_a_valid_entry_has_no_weight_and_no_nan(generator: torch.Generator) -> None:
    logits = torch.randn(B, H, 2, 5, generator=generator)
    logits[1, 0, 1] = -torch.inf
    logits[2] = -torch.inf

    probs, lse = part_probs_ref(logits)
    weights = part_weights_ref(lse, torch.zeros(H))

    assert torch.equal(probs[1, 0, 1], torch.zeros(5))
    assert torch.equal(probs[2], torch.zeros(H, 2, 5))
    assert torch.allclose(probs[0].sum(-1), torch.ones(H, 2), atol=1e-6)
    assert weights[1, 0, 1] == 0
    assert torch.equal(weights[2], torch.zeros(H, 2, 1))
    assert bool(((weights[0].sum(1) > 0) & (weights[0].sum(1) < 1)).all())


def test_no_splits_are_refused(generator: torch.Generator) -> None:
    with pytest.raises(ShapeError, match="0 splits"):
        sparse_attention_split_ref(*inputs(generator), 0.25, 0)
