from __future__ import annotations

import pytest
import torch

from kernels import hyper_ref
from kernels.errors import ShapeError

EPS = 1e-6


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
