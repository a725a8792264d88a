from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import dispatch
from kernels.errors import ShapeError
from kernels.route_ref import best_groups_ref, hash_route_ref, route_ref, score_ref, table_route_ref


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


@pytest.mark.parametrize("num_experts", [4, 100])
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("factor", [None, 1.5])
def test_a_token_alone_goes_where_it_goes_among_others(
    num_experts: int, renormalise: bool, factor: float | None, generator: torch.Generator
) -> None:
    logits = 30 * torch.randn(5, num_experts, generator=generator)
    logits[1], logits[2, 1] = 0.25, logits[2, 3]
    bias, table = torch.randn(num_experts, generator=generator), torch.tensor([[3, 0], [1, 2]])
    ways = {"renormalise": renormalise, "factor": factor, "shared_weight": 0.5}

    for route in (
        lambda rows: route_ref(logits[rows], 2, **ways),
        lambda rows: route_ref(logits[rows], 2, bias_E=bias, **ways),
        lambda rows: table_route_ref(logits[rows], torch.tensor([0, 1, 1, 0, 1])[rows], table, **ways),
    ):
        weights, ids = route(slice(None))
        for row in range(5):
            alone_weights, alone_ids = route(slice(row, row + 1))
            assert alone_ids.dtype == torch.int64
            assert torch.equal(alone_ids[0], ids[row])
            torch.testing.assert_close(alone_weights[0], weights[row])


def test_a_score_that_is_no_number_is_seen_in_the_weights() -> None:
    logits = torch.tensor([[1.0, float("nan"), 3.0, 2.0]])

    assert route_ref(logits, 2)[0].isnan().all()
    assert hash_route_ref(logits, torch.tensor([[0, 1]])).isnan().all()


def test_scores_follow_the_named_function(generator: torch.Generator) -> None:
    logits = torch.randn(2, 5, generator=generator)

    assert torch.allclose(score_ref(logits, "sqrtsoftplus") ** 2, torch.log1p(logits.exp()), atol=1e-6)
    assert torch.equal(score_ref(logits, "sigmoid"), torch.sigmoid(logits))
    assert torch.allclose(score_ref(logits, "softmax").sum(-1), torch.ones(2))
    assert torch.equal(route_ref(logits, 2, scoring="softmax", renormalise=False)[0], logits.softmax(-1).topk(2)[0])


def test_more_picks_than_experts_are_refused() -> None:
    with pytest.raises(ShapeError, match="top-4 of 3"):
        route_ref(torch.zeros(1, 3), 4)


def test_experts_come_from_the_groups_whose_two_best_together_are_best() -> None:
    choice = torch.tensor([[0.9, 0.0, 0.5, 0.5, 0.3, 0.2], [0.1, 0.1, 0.1, 0.1, 0.1, 0.1]])

    kept = best_groups_ref(choice, 3, 2)

    lost = float("-inf")
    assert kept.tolist() == [
        pytest.approx([0.9, 0.0, 0.5, 0.5, lost, lost]),
        pytest.approx([0.1, 0.1, 0.1, 0.1, lost, lost]),
    ]
    assert best_groups_ref(choice, 3, 3) is choice


def test_a_bias_moves_the_choice_between_groups_and_not_the_weights(generator: torch.Generator) -> None:
    logits = torch.randn(6, 8, generator=generator)
    bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 50.0, 0.0, 0.0, 0.0])

    weights, ids = route_ref(logits, 2, bias_E=bias, num_groups=2, topk_groups=1, renormalise=False)

    assert (ids >= 4).all()
    assert torch.equal(weights, score_ref(logits, "sqrtsoftplus").gather(1, ids))


def test_the_shared_expert_is_one_more_column_that_no_factor_multiplies(generator: torch.Generator) -> None:
    logits = torch.randn(6, 8, generator=generator)
    table = torch.tensor([[1, 2], [7, 0]], dtype=torch.int32)

    for weights, ids in (
        route_ref(logits, 2, factor=2.5, shared_weight=0.4),
        table_route_ref(logits, torch.tensor([0, 1, 1, 0, 0, 1]), table, factor=2.5, shared_weight=0.4),
    ):
        assert ids[:, 2].tolist() == [8] * 6
        assert torch.equal(weights[:, 2], torch.full((6,), 0.4))
        assert torch.allclose(weights[:, :2].sum(1), torch.full((6,), 2.5))


def test_a_table_names_the_experts_of_each_token(generator: torch.Generator) -> None:
    logits = torch.randn(3, 8, generator=generator)
    table = torch.tensor([[1, 2], [7, 0]])

    weights, ids = table_route_ref(logits, torch.tensor([1, 0, 1]), table)

    assert ids.tolist() == [[7, 0], [1, 2], [7, 0]]
    assert torch.equal(weights, hash_route_ref(logits, ids))


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="2 of 3 groups of 8"):
        route_ref(torch.zeros(1, 8), 2, num_groups=3, topk_groups=2)
    with pytest.raises(ShapeError, match="3 of 2 groups of 8"):
        route_ref(torch.zeros(1, 8), 2, num_groups=2, topk_groups=3)


def test_dispatch_routes_on_a_cpu_by_the_reference(generator: torch.Generator) -> None:
    choices: list[dispatch.Choice] = []
    logits, table = torch.randn(3, 8, generator=generator), torch.tensor([[1, 2], [7, 0]])
    ids = torch.tensor([1, 0, 1])

    scored = dispatch.route(logits, 2, num_groups=4, topk_groups=2, factor=2.5, record=choices.append)
    named = dispatch.table_route(logits, ids, table, shared_weight=0.4, record=choices.append)

    for got, expected in (
        (scored, route_ref(logits, 2, num_groups=4, topk_groups=2, factor=2.5)),
        (named, table_route_ref(logits, ids, table, shared_weight=0.4)),
    ):
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert [(choice.op, choice.implementation) for choice in choices] == [
        ("route", "reference"),
        ("table_route", "reference"),
    ]
