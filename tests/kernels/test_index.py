from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import index, index_hopper, index_page_ref
from kernels.errors import DtypeError, ShapeError
from kernels.index_page_ref import PageLayout
from tests.numerics import assert_close, poisoned

BLOCK_TABLE = torch.tensor([[0, 2, 4], [6, 5, 1]], dtype=torch.int32)


def inputs(
    generator: torch.Generator, device: str, *, queries: int = 1, keys: int = 129, dim: int = 32, fp8: bool = True
) -> tuple[Tensor, Tensor, Tensor, int, Tensor, float]:
    pages = index_page_ref.empty_pages(7, dim, torch.float8_e4m3fn if fp8 else torch.bfloat16)
    position = torch.arange(keys)
    slots = BLOCK_TABLE[:, position // 64] * 64 + position % 64
    index_page_ref.write_keys(pages, slots, torch.randn(2, keys, dim, generator=generator))
    q = torch.randn(2, queries, 4, dim, generator=generator)
    weights = torch.randn(2, queries, 4, generator=generator)
    return q.to(device), pages.to(device), BLOCK_TABLE.to(device), keys, weights.to(device), dim**-0.5


@pytest.mark.interpreter
@pytest.mark.parametrize("fp8", [True, False], ids=["fp8", "bf16"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 63), (1, 129), (3, 64), (9, 130)])
def test_scores_equal_the_reference(
    fp8: bool, queries: int, keys: int, generator: torch.Generator, device: str
) -> None:
    arguments = inputs(generator, device, queries=queries, keys=keys, fp8=fp8)

    assert_close(index.index_scores(*arguments), index_page_ref.index_scores_ref(*arguments), "fp32")


@pytest.mark.interpreter
def test_whatever_layout_the_reader_names_is_read(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator, device: str
) -> None:
    q, pages, table, keys, weights, scale = inputs(generator, device)
    # Bytes that are finite under either layout: small values, and scales of 2^-8..2^8 wherever they are read from.
    pages[:] = torch.randint(0, 64, pages.shape, generator=generator, dtype=torch.uint8).to(device)
    pages.view(-1, 4)[:, 3] = 0x3C
    interleaved = PageLayout(value_base=0, value_stride=36, scale_base=32, scale_stride=36)
    packed = index.index_scores(q, pages, table, keys, weights, scale)
    for module in (index, index_page_ref):
        monkeypatch.setattr(module, "reader_layout", lambda _: interleaved)

    scores = index.index_scores(q, pages, table, keys, weights, scale)

    assert_close(scores, index_page_ref.index_scores_ref(q, pages, table, keys, weights, scale), "fp32")
    assert not torch.equal(scores, packed)


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_key_that_is_no_number_ranks_last_and_an_infinite_one_first(device: str) -> None:
    pages = index_page_ref.empty_pages(1, 16, torch.float8_e4m3fn)
    index_page_ref.write_keys(pages, torch.arange(3), torch.ones(3, 16))
    pages[0, 64 * 16 : 64 * 16 + 8] = torch.tensor([float("nan"), float("inf")]).view(torch.uint8)
    table = torch.zeros(1, 1, dtype=torch.int32)
    q, weights = torch.ones(1, 1, 1, 16), torch.ones(1, 1, 1)

    scores = index.index_scores(q.to(device), pages.to(device), table.to(device), 3, weights.to(device), 1.0)

    assert scores.flatten().tolist() == pytest.approx([-1e20, 1e20, 16.0])


@pytest.mark.gpu
@pytest.mark.parametrize("fp8", [True, False], ids=["fp8", "bf16"])
@pytest.mark.parametrize("queries", [1, 5])
def test_bf16_queries_on_tensor_cores_stay_within_bf16(fp8: bool, queries: int, generator: torch.Generator) -> None:
    q, *rest = inputs(generator, "cuda", queries=queries, dim=128, fp8=fp8)

    scores = index.index_scores(q.bfloat16(), *rest)

    assert_close(scores, index_page_ref.index_scores_ref(q.bfloat16(), *rest), "fp32")


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(generator: torch.Generator, device: str) -> None:
    q, pages, table, keys, weights, scale = inputs(generator, device)

    with pytest.raises(DtypeError, match="float16"):
        index.index_scores(q.half(), pages, table, keys, weights, scale)
    with pytest.raises(DtypeError, match="index pages"):
        index.index_scores(q, pages.int(), table, keys, weights, scale)
    with pytest.raises(ShapeError, match="page size"):
        index.index_scores(q[..., :16], pages, table, keys, weights, scale)
    with pytest.raises(ShapeError, match="block table"):
        index.index_scores(q, pages, table, 193, weights, scale)
    with pytest.raises(ShapeError, match="head weights"):
        index.index_scores(q, pages, table, keys, weights[..., :2], scale)


def hopper_inputs(
    generator: torch.Generator, *, heads: int = 64, keys: int = 129, dim: int = 128, fp8: bool = True
) -> tuple[Tensor, Tensor, Tensor, int, Tensor, float]:
    """Three sequences with a bf16 query each, pages scattered; skips where the kernel for Hopper would not run."""
    num_pages = -(-keys // 64)
    table = torch.randperm(3 * num_pages, generator=generator).int().view(3, num_pages)
    pages = index_page_ref.empty_pages(3 * num_pages, dim, torch.float8_e4m3fn if fp8 else torch.bfloat16)
    pages.fill_(255 if fp8 else float("nan"))  # what lies behind the last key must not matter
    position = torch.arange(keys)
    slots = table[:, position // 64].long() * 64 + position % 64
    index_page_ref.write_keys(pages, slots, torch.randn(3, keys, dim, generator=generator))
    q = torch.randn(3, 1, heads, dim, generator=generator).bfloat16().cuda()
    pages = pages.cuda()
    if not index_hopper.fits(q, pages, index_page_ref.reader_layout(dim)):
        pytest.skip("needs an sm_90")
    return q, pages, table.cuda(), keys, torch.randn(3, 1, heads, generator=generator).cuda(), dim**-0.5


def hopper_scores(q: Tensor, pages: Tensor, table: Tensor, keys: int, weights: Tensor, scale: float) -> Tensor:
    scores = poisoned(q.shape[0], 1, keys, device="cuda")
    index_hopper.score_pages(q, pages, table, weights, scores, scale, index_page_ref.reader_layout(q.shape[-1]))
    return scores


@pytest.mark.gpu
@pytest.mark.parametrize("fp8", [True, False], ids=["fp8", "bf16"])
@pytest.mark.parametrize(("heads", "dim"), [(64, 128), (64, 64), (32, 128), (3, 128)])
@pytest.mark.parametrize("keys", [1, 63, 64, 129, 1000, 20011])
def test_one_query_on_hopper_equals_the_reference_and_repeats(
    keys: int, heads: int, dim: int, fp8: bool, generator: torch.Generator
) -> None:
    arguments = hopper_inputs(generator, heads=heads, keys=keys, dim=dim, fp8=fp8)

    scores = hopper_scores(*arguments)

    assert_close(scores, index_page_ref.index_scores_ref(*arguments), "fp32")
    assert torch.equal(scores, hopper_scores(*arguments))
    assert torch.equal(scores, index.index_scores(*arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("fp8", [True, False], ids=["fp8", "bf16"])
def test_a_score_does_not_depend_on_the_batch_or_on_who_shares_the_pages(
    monkeypatch: pytest.MonkeyPatch, fp8: bool, generator: torch.Generator
) -> None:
    q, pages, table, keys, weights, scale = hopper_inputs(generator, keys=3000, fp8=fp8)
    scores = hopper_scores(q, pages, table, keys, weights, scale)

    alone = hopper_scores(q[1:2], pages, table[1:2], keys, weights[1:2], scale)
    monkeypatch.setattr(index_hopper, "PROGRAMS_EACH", 0)
    by_one_program = hopper_scores(q, pages, table, keys, weights, scale)

    assert torch.equal(alone, scores[1:2])
    assert torch.equal(by_one_program, scores)


@pytest.mark.gpu
def test_heads_of_any_magnitude_lose_nothing_in_fp16(generator: torch.Generator) -> None:
    q, pages, table, keys, weights, scale = hopper_inputs(generator, keys=500)
    exponent_H = torch.linspace(-90, 90, 64).round().cuda()
    power_H = torch.exp2(exponent_H)
    q = (q * power_H[:, None]).bfloat16()
    q[:, :, 7] = 0
    q[:, :, :, ::2] *= 2**-16  # beside elements that are 2^16 times as large
    weights = weights / power_H

    scores = hopper_scores(q, pages, table, keys, weights, scale)

    assert_close(scores, index_page_ref.index_scores_ref(q, pages, table, keys, weights, scale), "fp32")


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [1, 64])
def test_on_hopper_a_key_that_is_no_number_ranks_last_and_an_infinite_one_first(
    heads: int, generator: torch.Generator
) -> None:
    q, pages, table, _, _, _ = hopper_inputs(generator, heads=heads)
    index_page_ref.write_keys(pages, torch.arange(5, device="cuda"), torch.ones(5, 128, device="cuda"))
    pages[0, 17], pages[0, 128 + 5] = 0x7F, 0xFF
    special = torch.tensor([float("nan"), float("inf")], device="cuda").view(torch.uint8)
    pages[0, 64 * 128 + 2 * 4 : 64 * 128 + 4 * 4] = special
    q, weights = torch.ones_like(q), torch.ones(3, 1, heads, device="cuda")
    table = torch.zeros_like(table)

    scores = hopper_scores(q, pages, table, 5, weights, 1.0)

    expected = torch.tensor([-1e20, -1e20, -1e20, 1e20, 128.0 * heads], device="cuda").expand(3, 1, 5)
    assert torch.allclose(scores, expected)


@pytest.mark.gpu
def test_on_hopper_whatever_layout_the_reader_names_is_read(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    arguments = hopper_inputs(generator, keys=500)
    pages = arguments[1]
    pages[:] = torch.randint(0, 64, pages.shape, generator=generator, dtype=torch.uint8).cuda()
    pages.view(-1, 4)[:, 3] = 0x3C
    interleaved = PageLayout(value_base=0, value_stride=132, scale_base=128, scale_stride=132)
    packed = hopper_scores(*arguments)
    monkeypatch.setattr(index_page_ref, "reader_layout", lambda _: interleaved)

    scores = hopper_scores(*arguments)

    assert_close(scores, index_page_ref.index_scores_ref(*arguments), "fp32")
    assert not torch.equal(scores, packed)


def test_the_hopper_kernel_takes_one_bf16_query_over_pages_of_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    layout = index_page_ref.reader_layout(128)
    q, pages = torch.zeros(2, 1, 64, 128, dtype=torch.bfloat16), index_page_ref.empty_pages(2, 128, torch.float8_e4m3fn)
    ragged = PageLayout(value_base=0, value_stride=130, scale_base=128, scale_stride=132)

    assert index_hopper.fits(q, pages, layout)
    assert not index_hopper.fits(q.expand(2, 3, 64, 128), pages, layout)
    assert not index_hopper.fits(q.float(), pages, layout)
    assert not index_hopper.fits(q[..., :32], pages, layout)
    assert not index_hopper.fits(q.expand(2, 64, 64, 128).reshape(2, 1, -1, 128), pages, layout)
    assert not index_hopper.fits(q, pages, ragged)
    assert not index_hopper.fits(q, pages.view(-1)[1:8449].view(1, 8448), layout)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert not index_hopper.fits(q, pages, layout)
