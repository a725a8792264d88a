from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels.errors import ShapeError
from kernels.route_ref import hash_route_ref, route_ref, score_ref


def test_the_bias_chooses_but_does_not_weigh() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    bias = torch.tensor([0.0, 0.0, 0.0, 100.0])

    weights, ids = route_ref(logits, 2, bias_E=bias)

    scores = F.softplus(logits).sqrt()[0]
    assert ids.tolist() == [[3, 0]]
    assert torch.allclose(weights[0], torch.stack((scores[3], scores[0])) / (scores[3] + scores[0]))


def test_the_factor_multiplies_after_renormalisation_and_only_when_given(generator: torch.Generator) -> None:
    logits = torch.randn(6, 8, generator=generator)

    plain, _ = route_ref(logits, 3)
    scaled, _ = route_ref(logits, 3, factor=2.5)

    assert torch.allclose(plain.sum(-1), torch.ones(6))
    assert torch.equal(scaled, plain * 2.5)


def test_hash_routing_weighs_the_given_experts_as_routing_would(generator: torch.Generator) -> None:
    logits = torch.randn(6, 8, generator=generator)
    weights, ids = route_ref(logits, 3, factor=1.5)

    assert torch.equal(hash_route_ref(logits, ids.int(), factor=1.5), weights)


def test_equal_scores_go_to_the_lower_expert() -> None:
    assert route_ref(torch.zeros(1, 6), 3)[1].tolist() == [[0, 1, 2]]


def test_scores_follow_the_named_function(generator: torch.Generator) -> None:
    logits = torch.randn(2, 5, generator=generator)

    assert torch.allclose(score_ref(logits, "sqrtsoftplus") ** 2, torch.log1p(logits.exp()), atol=1e-6)
    assert torch.equal(score_ref(logits, "sigmoid"), torch.sigmoid(logits))
    assert torch.allclose(score_ref(logits, "softmax").sum(-1), torch.ones(2))
    assert torch.equal(route_ref(logits, 2, scoring="softmax", renormalise=False)[0], logits.softmax(-1).topk(2)[0])


def test_more_picks_than_experts_are_refused() -> None:
    with pytest.raises(ShapeError, match="top-4 of 3"):
        route_ref(torch.zeros(1, 3), 4)
