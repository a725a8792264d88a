from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import index, index_page_ref
from kernels.errors import DtypeError, ShapeError
from kernels.index_page_ref import PageLayout
from tests.numerics import assert_close

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
