from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.hyper_ref import collapse_ref, postmix_ref, premix_ref, split_ref
from kernels.hyper_site_ref import cut_of
from tests.numerics import assert_close

EPS = 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_site_on_a_cpu_is_the_reference_taken_in_three_steps(dtype: torch.dtype, generator: torch.Generator) -> None:
    choices: list[dispatch.Choice] = []
    streams = torch.randn(2, 3, 4, 16, generator=generator).to(dtype)
    output = torch.randn(2, 3, 16, generator=generator).to(dtype)
    fn, base = torch.randn(24, 64, generator=generator), torch.randn(24, generator=generator)
    scale = torch.tensor([0.5, 0.7, 1.3])

    z = dispatch.hyper_premix(streams, fn, EPS, record=choices.append)
    read = dispatch.hyper_read(streams, z, base, scale, EPS, record=choices.append)
    write = dispatch.hyper_write(streams, output, z, base, scale, 20, EPS, record=choices.append)

    assert torch.equal(z, premix_ref(streams, fn, EPS))
    pre, post, comb = split_ref(z, base, scale, 4, 20, EPS)
    torch.testing.assert_close(read, collapse_ref(streams, pre).to(dtype))
    torch.testing.assert_close(write, postmix_ref(streams, output, post, comb).to(dtype))
    assert [(choice.op, choice.implementation, choice.file) for choice in choices] == [
        ("hyper_premix", "reference", "kernels/hyper_ref.py"),
        ("hyper_read", "reference", "kernels/hyper_site_ref.py"),
        ("hyper_write", "reference", "kernels/hyper_site_ref.py"),
    ]


def test_the_head_reads_by_all_its_mixing_numbers(generator: torch.Generator) -> None:
    streams, fn = torch.randn(3, 4, 16, generator=generator), torch.randn(4, 64, generator=generator)
    base, scale = torch.randn(4, generator=generator), torch.tensor([0.5])

    z = dispatch.hyper_premix(streams, fn, EPS)
    read = dispatch.hyper_read(streams, z, base, scale, EPS)

    torch.testing.assert_close(read, collapse_ref(streams, torch.sigmoid(0.5 * z + base) + EPS))


@pytest.mark.parametrize("tokens", [(), (1,), (1, 1), (3,)])
@pytest.mark.parametrize("iters", [1, 2, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_base_and_scale_cut_beforehand_give_the_same_site(
    tokens: tuple[int, ...], iters: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    streams = torch.randn(*tokens, 4, 16, generator=generator).to(dtype)
    output = torch.randn(*tokens, 16, generator=generator).to(dtype)
    z, base = 3 * torch.randn(*tokens, 24, generator=generator), torch.randn(24, generator=generator)
    scale = torch.tensor([0.5, 0.7, 1.3])
    cut = cut_of(base, scale, 4)

    read, write = (streams, z, base, scale, EPS), (streams, output, z, base, scale, iters, EPS)

    for op, arguments, tolerance in (
        (dispatch.hyper_read, read, "fp32"),
        (dispatch.hyper_write, write, "fp32_merge"),
    ):
        found, expected = op(*arguments, cut=cut), op(*arguments)
        assert found.dtype == dtype
        assert found.shape == expected.shape
        if dtype == torch.float32:
            assert_close(found, expected, tolerance)
        else:
            torch.testing.assert_close(found, expected)


def test_numbers_too_large_for_an_exponential_still_give_gates() -> None:
    z, scale = torch.full((1, 24), -1e9), torch.ones(3)
    z[0, 8::5] = 1e9
    base, streams = torch.zeros(24), torch.ones(1, 4, 2)

    read = dispatch.hyper_read(streams, z, base, scale, EPS, cut=cut_of(base, scale, 4))
    write = dispatch.hyper_write(streams, torch.ones(1, 2), z, base, scale, 20, EPS, cut=cut_of(base, scale, 4))

    assert torch.allclose(read, torch.full((1, 2), 4 * EPS))
    assert torch.allclose(write, torch.ones(1, 4, 2), atol=1e-5)


def test_a_number_that_is_none_comes_out_as_none() -> None:
    z, base, scale, streams = torch.full((1, 24), torch.nan), torch.zeros(24), torch.ones(3), torch.ones(1, 4, 2)
    cut = cut_of(base, scale, 4)

    assert dispatch.hyper_read(streams, z, base, scale, EPS, cut=cut).isnan().all()
    assert dispatch.hyper_write(streams, torch.ones(1, 2), z, base, scale, 20, EPS, cut=cut).isnan().all()
