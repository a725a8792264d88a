from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import route
from kernels.errors import DtypeError, ShapeError
from kernels.route_ref import best_groups_ref, route_ref, score_ref, table_route_ref
from tests.numerics import assert_close, poisoned

# The interpreter's numpy warns of a NaN it makes; all of them are masked or meant.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def outputs(logits_TE: Tensor, topk: int, shared_weight: float | None) -> tuple[Tensor, Tensor]:
        shape, device = (len(logits_TE), topk + (shared_weight is not None)), str(logits_TE.device)
        return poisoned(*shape, device=device), torch.full(shape, 77777, dtype=torch.int32, device=device)

    monkeypatch.setattr(route, "_outputs", outputs)


def draw(generator: torch.Generator, device: str, tokens: int, experts: int) -> tuple[Tensor, Tensor]:
    logits = 2 * torch.randn(tokens, experts, generator=generator)
    return logits.to(device), (0.2 * torch.randn(experts, generator=generator)).to(device)


def check(logits: Tensor, topk: int, **settings: Any) -> None:
    weights, ids = route.route(logits, topk, **settings)
    expected_weights, expected_ids = route_ref(logits, topk, **settings)

    assert ids.dtype == torch.int32
    assert torch.equal(ids.long(), expected_ids)
    assert_close(weights, expected_weights, "fp32")


@pytest.mark.interpreter
@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "sigmoid", "softmax"])
@pytest.mark.parametrize(("tokens", "experts", "topk"), [(1, 384, 8), (3, 7, 7), (5, 256, 6)])
def test_picks_and_weights_equal_the_reference(
    scoring: str, tokens: int, experts: int, topk: int, generator: torch.Generator, device: str
) -> None:
    logits, bias = draw(generator, device, tokens, experts)

    check(logits, topk, scoring=scoring, bias_E=bias, factor=2.5, shared_weight=0.4)
    check(logits, topk, scoring=scoring, bias_E=bias.bfloat16(), renormalise=False)


@pytest.mark.interpreter
@pytest.mark.parametrize(("experts", "groups", "kept"), [(64, 8, 4), (24, 6, 1), (12, 12, 9), (96, 3, 2)])
def test_experts_come_from_the_best_groups_only(
    experts: int, groups: int, kept: int, generator: torch.Generator, device: str
) -> None:
    logits, bias = draw(generator, device, 5, experts)

    check(logits, 2, scoring="sigmoid", bias_E=bias, num_groups=groups, topk_groups=kept)
    check(logits, 9, num_groups=groups, topk_groups=kept, shared_weight=1.0)


@pytest.mark.interpreter
def test_equal_scores_go_to_the_lower_expert_and_the_lower_group(device: str) -> None:
    logits = torch.zeros(2, 12, device=device)

    assert route.route(logits, 5)[1].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert route.route(logits, 5, num_groups=3, topk_groups=2)[1].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert route.route(logits, 10, num_groups=3, topk_groups=1)[1].tolist() == [list(range(10))] * 2


@pytest.mark.interpreter
@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "sigmoid", "softmax"])
@pytest.mark.parametrize("groups", [1, 4])
def test_logits_that_are_no_numbers_give_distinct_experts_in_range(scoring: str, groups: int, device: str) -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.linspace(-1, 1, 24).repeat(4, 1)
    logits[0], logits[1, 5], logits[2, 7], logits[3, ::2] = nan, nan, inf, -inf
    logits[1, 9] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)  # a NaN with its sign set
    settings: dict[str, Any] = {"scoring": scoring, "num_groups": groups, "topk_groups": max(1, groups - 1)}

    weights, ids = route.route(logits.to(device), 6, **settings)

    expected_weights, expected_ids = route_ref(logits, 6, **settings)
    assert torch.equal(ids.cpu().long(), expected_ids)
    assert all(len(set(row)) == 6 for row in ids.tolist())
    assert torch.equal(weights.cpu().isnan(), expected_weights.isnan())


@pytest.mark.interpreter
def test_the_scores_are_accurate_from_the_smallest_to_the_largest(device: str) -> None:
    logits = torch.linspace(-80, 90, 56)[:, None]

    for scoring, exact in (
        ("sqrtsoftplus", torch.logaddexp(logits.double(), torch.zeros(1, dtype=torch.float64)).sqrt()),
        ("sigmoid", logits.double().sigmoid()),
    ):
        weights, _ = route.route(logits.to(device), 1, scoring=scoring, renormalise=False)

        off = ((weights.cpu() - exact) / exact).abs().max()
        # The interpreter's fma rounds twice: what rounding took from the exponent is lost there.
        assert off < (1e-6 if device == "cuda" else 4e-6), scoring


@pytest.mark.interpreter
@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "softmax"])
def test_a_token_routed_alone_or_among_others_gets_the_same_bits(
    scoring: str, generator: torch.Generator, device: str
) -> None:
    logits, bias = draw(generator, device, 9, 48)

    together = route.route(logits, 4, bias_E=bias, scoring=scoring)

    for token in (0, 5, 8):
        alone = route.route(logits[token : token + 1], 4, bias_E=bias, scoring=scoring)
        assert all(torch.equal(a[0], b[token]) for a, b in zip(alone, together, strict=True))


@pytest.mark.interpreter
def test_rows_of_a_wider_matrix_in_bf16_are_read_in_place(generator: torch.Generator, device: str) -> None:
    logits, bias = draw(generator, device, 5, 64)
    wide = logits.bfloat16()

    weights, ids = route.route(wide[:, 8:40], 4, bias_E=bias[:32])

    expected_weights, expected_ids = route_ref(wide[:, 8:40].float(), 4, bias_E=bias[:32])
    assert torch.equal(ids.long(), expected_ids)
    assert_close(weights, expected_weights, "fp32")


@pytest.mark.interpreter
@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "sigmoid", "softmax"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_table_of_token_ids_chooses(
    scoring: str, dtype: torch.dtype, generator: torch.Generator, device: str
) -> None:
    logits, _ = draw(generator, device, 9, 24)
    ids = torch.randint(0, 50, (9, 2), generator=generator).to(device, dtype)[:, 1]  # a decode step's lie apart
    table = torch.rand(50, 24, generator=generator).argsort(1)[:, :3].to(device, dtype).contiguous()
    settings: dict[str, Any] = {"scoring": scoring, "factor": 1.5, "shared_weight": 0.25}

    weights, picked = route.table_route(logits, ids, table, **settings)

    expected_weights, expected_ids = table_route_ref(logits, ids, table, **settings)
    assert picked.dtype == torch.int32
    assert torch.equal(picked.long(), expected_ids)
    assert_close(weights, expected_weights, "fp32")


@pytest.mark.interpreter
def test_what_the_table_does_not_know_is_no_expert_and_weighs_nothing(device: str) -> None:
    table = torch.tensor([[0, 1], [2, 8], [-1, 2**32 + 1]], device=device)
    ids = torch.tensor([0, 1, 2, -1, 3], device=device)

    weights, picked = route.table_route(torch.zeros(5, 8, device=device), ids, table)

    assert picked.tolist() == [[0, 1], [2, -1], [-1, -1], [-1, -1], [-1, -1]]
    assert weights.tolist() == [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.interpreter
def test_no_tokens_are_no_launch(device: str) -> None:
    weights, ids = route.route(torch.zeros(0, 8, device=device), 2, shared_weight=1.0)

    assert weights.shape == ids.shape == (0, 3)


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(device: str) -> None:
    logits, ids = torch.zeros(4, 8, device=device), torch.zeros(4, dtype=torch.long, device=device)
    table = torch.zeros(3, 2, dtype=torch.long, device=device)

    with pytest.raises(DtypeError, match="float16"):
        route.route(logits.half(), 2)
    with pytest.raises(ShapeError, match="stride of router logits"):
        route.route(torch.zeros(8, 4, device=device).T, 2)
    with pytest.raises(ShapeError, match="top-9 of 8"):
        route.route(logits, 9)
    with pytest.raises(ShapeError, match="2 of 3 groups of 8"):
        route.route(logits, 2, num_groups=3, topk_groups=2)
    with pytest.raises(ShapeError, match="correction bias"):
        route.route(logits, 2, bias_E=torch.zeros(7, device=device))
    with pytest.raises(DtypeError, match="correction bias"):
        route.route(logits, 2, bias_E=torch.zeros(8, dtype=torch.int32, device=device))
    with pytest.raises(ShapeError, match="at most 1024"):
        route.route(torch.zeros(1, 1025, device=device), 2)
    with pytest.raises(DtypeError, match="token ids"):
        route.table_route(logits, ids.float(), table)
    with pytest.raises(ShapeError, match="token ids"):
        route.table_route(logits, ids[:3], table)
    with pytest.raises(DtypeError, match="expert table"):
        route.table_route(logits, ids, table.short())


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 63, 129, 4096, 16385])
@pytest.mark.parametrize(
    ("experts", "topk", "settings"),
    [
        (256, 6, {}),
        (256, 8, {"scoring": "sigmoid", "num_groups": 8, "topk_groups": 4, "factor": 2.5}),
        (384, 8, {"scoring": "sigmoid", "shared_weight": 0.4}),
        (512, 16, {"scoring": "softmax", "renormalise": False}),
    ],
    ids=["v4", "v3", "k2", "softmax"],
)
def test_production_shapes_are_routed_as_by_the_reference_and_repeatably(
    tokens: int, experts: int, topk: int, settings: dict[str, Any], generator: torch.Generator
) -> None:
    logits, bias = draw(generator, "cuda", tokens, experts)

    weights, ids = route.route(logits, topk, bias_E=bias, **settings)

    again = route.route(logits, topk, bias_E=bias, **settings)
    assert torch.equal(weights, again[0])
    assert torch.equal(ids, again[1])
    expected_weights, expected_ids = route_ref(logits, topk, bias_E=bias, **settings)
    choice = score_ref(logits, settings.get("scoring", "sqrtsoftplus")) + bias
    choice = best_groups_ref(choice, settings.get("num_groups", 1), settings.get("topk_groups", 1))
    got, expected = (choice.gather(1, picked[:, :topk].long()) for picked in (ids, expected_ids))
    # Scores nearer than their rounding may change places, and nothing else may.
    assert torch.allclose(got, expected, rtol=2e-6, atol=1e-7)
    assert (ids.sort(1).values.diff(dim=1) > 0).all()
    same = (ids == expected_ids).all(1)
    assert same.float().mean() > 0.99
    assert_close(weights[same], expected_weights[same], "fp32")


@pytest.mark.gpu
def test_a_table_of_the_whole_vocabulary_routes_a_prefill(generator: torch.Generator) -> None:
    logits, _ = draw(generator, "cuda", 4097, 256)
    table = torch.rand(129280, 256, generator=generator).topk(6).indices.to("cuda")
    ids = torch.randint(0, 129280, (4097,), generator=generator).to("cuda")

    weights, picked = route.table_route(logits.bfloat16(), ids, table, shared_weight=0.5)

    expected_weights, expected_ids = table_route_ref(logits.bfloat16(), ids, table, shared_weight=0.5)
    assert torch.equal(picked.long(), expected_ids)
    assert_close(weights, expected_weights, "fp32")
