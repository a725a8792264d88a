from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import hyper_ref
from kernels.errors import ShapeError

EPS = 1e-6


def plain_sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """The definition, one division after the other."""
    comb = logits.softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


@pytest.mark.parametrize("spread", [0.3, 3.0, 30.0])
@pytest.mark.parametrize(("iters", "bound"), [(1, 3e-7), (2, 2e-6), (3, 3e-6), (20, 1e-6)])
@pytest.mark.parametrize("shape", [(1, 1, 4, 4), (2, 9, 4, 4), (64, 3, 3), (5, 2, 2)])
def test_sinkhorn_equals_its_definition(
    shape: tuple[int, ...], iters: int, bound: float, spread: float, generator: torch.Generator
) -> None:
    logits = spread * torch.randn(shape, generator=generator)
    expected = plain_sinkhorn(logits.double(), iters, EPS)

    by_numpy = hyper_ref.sinkhorn_ref(logits, iters, EPS)
    by_torch = hyper_ref._balance(logits.softmax(-1), iters, EPS, torch.matmul, torch.reciprocal)

    assert by_numpy.shape == shape
    assert by_numpy.dtype == torch.float32
    assert (by_numpy - expected).abs().max() < bound
    assert (by_torch - expected).abs().max() < bound


@pytest.mark.parametrize("spread", [0.3, 3.0, 30.0])
@pytest.mark.parametrize(("iters", "bound"), [(1, 3e-7), (2, 2e-6), (3, 3e-6), (20, 1e-6)])
def test_sinkhorn_of_four_equals_the_definition(
    iters: int, bound: float, spread: float, generator: torch.Generator
) -> None:
    for logits in spread * torch.randn(50, 4, 4, generator=generator):
        comb = torch.tensor(hyper_ref.sinkhorn_of_four(logits.flatten().tolist(), iters, EPS), dtype=torch.float64)
        assert (comb.view(4, 4) - plain_sinkhorn(logits.double(), iters, EPS)).abs().max() < bound


def test_sinkhorn_of_a_token_does_not_depend_on_its_batch(generator: torch.Generator) -> None:
    logits = 3 * torch.randn(2, 7, 4, 4, generator=generator)

    together = hyper_ref.sinkhorn_ref(logits, 20, EPS)

    alone = torch.stack([hyper_ref.sinkhorn_ref(one[None], 20, EPS)[0] for one in logits.flatten(0, 1)])
    assert (together.flatten(0, 1) - alone).abs().max() < 5e-7
    assert hyper_ref.sinkhorn_ref(logits[:0], 20, EPS).shape == (0, 7, 4, 4)


def test_sinkhorn_ends_doubly_stochastic_with_columns_last(generator: torch.Generator) -> None:
    comb = hyper_ref.sinkhorn_ref(torch.randn(7, 4, 4, generator=generator), 20, EPS)

    assert torch.allclose(comb.sum(-2), torch.ones(7, 4), atol=1e-5)
    assert torch.allclose(comb.sum(-1), torch.ones(7, 4), atol=1e-2)


def test_premix_normalises_all_streams_together(generator: torch.Generator) -> None:
    streams = 5 * torch.randn(3, 4, 8, generator=generator)
    fn = torch.randn(24, 32, generator=generator)

    z = hyper_ref.premix_ref(streams, fn, 0.0)

    flat = streams.double().flatten(1)
    expected = flat @ fn.double().T / flat.square().mean(1, keepdim=True).sqrt()
    assert torch.allclose(z.double(), expected, atol=1e-5)


def test_split_puts_the_factor_two_and_the_eps_where_they_belong() -> None:
    pre, post, comb = hyper_ref.split_ref(torch.zeros(1, 24), torch.zeros(24), torch.ones(3), 4, 20, 0.125)

    assert torch.equal(pre, torch.full((1, 4), 0.625))
    assert torch.equal(post, torch.ones(1, 4))
    assert comb.shape == (1, 4, 4)


def test_postmix_sums_over_the_first_index_of_comb(generator: torch.Generator) -> None:
    streams, output = torch.randn(2, 4, 8, generator=generator), torch.randn(2, 8, generator=generator)
    post, comb = torch.randn(2, 4, generator=generator), torch.randn(2, 4, 4, generator=generator)

    mixed = hyper_ref.postmix_ref(streams, output, post, comb)

    expected = post[1, 2] * output[1] + sum(comb[1, j, 2] * streams[1, j] for j in range(4))
    assert torch.allclose(mixed[1, 2], expected, atol=1e-5)


def test_collapse_weighs_the_streams() -> None:
    streams = torch.arange(8.0).view(1, 4, 2)

    assert hyper_ref.collapse_ref(streams, torch.tensor([[1.0, 0.0, 2.0, 0.0]])).tolist() == [[8.0, 11.0]]


def test_a_matrix_of_another_width_is_refused() -> None:
    with pytest.raises(ShapeError, match="expected 32"):
        hyper_ref.premix_ref(torch.ones(1, 4, 8), torch.ones(24, 16), EPS)


def test_the_mix_of_one_token_is_that_of_many(generator: torch.Generator) -> None:
    streams, output = torch.randn(4, 8, generator=generator), torch.randn(8, generator=generator)
    post, comb = torch.randn(4, generator=generator), torch.randn(4, 4, generator=generator)

    alone = hyper_ref.postmix_of_one_ref(streams, output[None], torch.cat((post[None], comb)))

    torch.testing.assert_close(alone, hyper_ref.postmix_ref(streams, output, post, comb))
