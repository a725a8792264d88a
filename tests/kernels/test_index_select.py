"""The masked stable top-k against its reference, pick for pick: order and ties are part of the contract."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels import index_select as module
from kernels.errors import DtypeError, ShapeError
from kernels.index_page_ref import select_ref
from kernels.index_select import index_select


def drawn(generator: torch.Generator, num_queries: int, num_keys: int) -> Tensor:
    """Scores [2, T, S]: Gaussian ones, and of seven values only, two of them the two zeros."""
    gaussian = torch.randn(num_queries, num_keys, generator=generator)
    ties = torch.randint(-3, 4, (num_queries, num_keys), generator=generator).float() * -1e19
    return torch.stack((gaussian, ties))


def counts(generator: torch.Generator, num_queries: int, most: int) -> Tensor:
    """Visible keys of each query, none and all among them."""
    visible = torch.randint(0, most + 1, (2, num_queries), generator=generator)
    visible.view(-1)[0] = 0
    visible[:, -1] = most
    return visible


@pytest.mark.interpreter
@pytest.mark.parametrize(("num_keys", "topk"), [(1, 1), (3, 8), (63, 63), (129, 17)])
def test_picks_equal_the_reference_in_one_round(
    num_keys: int, topk: int, generator: torch.Generator, device: str
) -> None:
    scores, visible = drawn(generator, 2, num_keys).to(device), counts(generator, 2, num_keys).to(device)

    assert torch.equal(index_select(scores, visible, topk), select_ref(scores, visible, topk))


@pytest.mark.interpreter
@pytest.mark.parametrize(("num_keys", "topk"), [(513, 100), (700, 5)])
def test_rounds_of_elimination_keep_what_the_reference_picks(
    monkeypatch: pytest.MonkeyPatch, num_keys: int, topk: int, generator: torch.Generator, device: str
) -> None:
    for name, value in (("CHUNK", 256), ("LAST_CHUNK", 256), ("PART", 128)):
        monkeypatch.setattr(module, name, value)
    scores, visible = drawn(generator, 1, num_keys).to(device), torch.tensor([[num_keys], [num_keys - 190]]).to(device)

    assert torch.equal(index_select(scores, visible, topk), select_ref(scores, visible, topk))


@pytest.mark.interpreter
def test_extreme_scores_and_both_zeros_keep_their_order(device: str) -> None:
    values = [-0.0, 0.0, 1e-45, -1e-45, 1e20, -1e20, 3.4e38, -3.4e38, float("inf"), -float("inf")]
    scores = torch.tensor([[values]]).to(device)

    picks = index_select(scores, torch.tensor([[10]], dtype=torch.int32).to(device), 10)

    assert picks.flatten().tolist() == [8, 6, 4, 2, 0, 1, 3, 5, 7, 9]


@pytest.mark.interpreter
def test_the_nan_that_a_gpu_makes_ends_the_search_too(device: str) -> None:
    scores = torch.tensor([0x7FFFFFFF, 0, 0x7FFFFFFF, 0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)

    picks = index_select(scores.view(1, 1, 5).to(device), torch.tensor([[5]]).to(device), 2)

    assert picks.tolist() == [[[0, 2]]]


@pytest.mark.interpreter
def test_hidden_scores_may_be_anything_and_no_query_or_key_gives_no_pick(device: str) -> None:
    scores = torch.full((1, 2, 40), float("nan"))
    scores[..., :2] = torch.tensor([1.0, 2.0])
    visible = torch.tensor([[2, 0]]).to(device)

    picks = index_select(scores.to(device), visible, 3)

    assert picks.tolist() == [[[1, 0, -1], [-1, -1, -1]]]
    assert index_select(scores[:, :0].to(device), visible[:, :0], 3).shape == (1, 0, 3)
    assert index_select(scores[..., :0].to(device), visible, 3).shape == (1, 2, 0)


@pytest.mark.interpreter
def test_without_counts_every_key_is_visible_whatever_was_asked_before(generator: torch.Generator, device: str) -> None:
    for batch, num_keys in ((1, 9), (3, 9), (1, 12), (1, 9)):
        scores = torch.randn(batch, 1, num_keys, generator=generator).to(device)

        assert torch.equal(index_select(scores, None, 10), select_ref(scores, None, 10))


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(device: str) -> None:
    scores, visible = torch.zeros(1, 2, 8).to(device), torch.full((1, 2), 8).to(device)

    with pytest.raises(DtypeError, match="index scores"):
        index_select(scores.double(), visible, 4)
    with pytest.raises(DtypeError, match="float32"):
        index_select(scores, visible.float(), 4)
    with pytest.raises(ShapeError, match="visible counts"):
        index_select(scores, visible[:, :1], 4)
    for topk in (0, 4097):
        with pytest.raises(ShapeError, match=f"index_topk: {topk}"):
            index_select(scores, visible, topk)


def test_dispatch_tells_which_selection_ran_and_why() -> None:
    choices: list[dispatch.Choice] = []

    picks = dispatch.index_select(torch.tensor([[[1.0, 3.0, 2.0]]]), torch.tensor([[3]]), 2, record=choices.append)

    assert picks.tolist() == [[[1, 2]]]
    assert (choices[0].op, choices[0].implementation) == ("index_select", "reference")
    assert (choices[0].file, choices[0].reason) == ("kernels/index_page_ref.py", "tensors on cpu, not on a GPU")


@pytest.mark.gpu
@pytest.mark.parametrize("topk", [512, 1024, 2048, 4096])
@pytest.mark.parametrize("num_keys", [4097, 16384, 16385, 65536, 131072])
def test_production_sizes_equal_the_reference_and_repeat(num_keys: int, topk: int, generator: torch.Generator) -> None:
    scores, visible = drawn(generator, 3, num_keys).cuda(), counts(generator, 3, num_keys).cuda()
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty gives the largest integers in here
    try:
        picks, again = (index_select(scores, visible, topk) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)

    assert torch.equal(picks, select_ref(scores, visible, topk))
    assert torch.equal(picks, again)


@pytest.mark.gpu
def test_a_captured_graph_follows_new_scores(generator: torch.Generator) -> None:
    scores, visible = drawn(generator, 2, 40000).cuda(), torch.full((2, 2), 40000).cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        index_select(scores, visible, 2048)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        picks = index_select(scores, visible, 2048)
    scores.copy_(drawn(generator, 2, 40000))
    visible.copy_(counts(generator, 2, 40000))

    graph.replay()

    assert torch.equal(picks, select_ref(scores, visible, 2048))
