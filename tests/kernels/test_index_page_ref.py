from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import index_page_ref
from kernels.errors import DtypeError, ShapeError
from kernels.index_page_ref import PageLayout
from tests.numerics import assert_close, relative_error

DIM = 32
NUM_KEYS = 150
BLOCK_TABLE = torch.tensor([[0, 2, 4], [6, 5, 1]])


def slots_of(block_table: Tensor, num_keys: int) -> Tensor:
    index = torch.arange(num_keys)
    return block_table[:, index // 64] * 64 + index % 64


def written(keys: Tensor, dtype: torch.dtype) -> Tensor:
    pages = index_page_ref.empty_pages(7, DIM, dtype)
    index_page_ref.write_keys(pages, slots_of(BLOCK_TABLE, keys.shape[1]), keys)
    return pages


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float8_e4m3fn, "fp8_key"), (torch.bfloat16, "bf16_key")])
def test_keys_read_back_in_the_order_of_the_block_table(
    dtype: torch.dtype, tolerance: str, generator: torch.Generator
) -> None:
    keys = torch.randn(2, NUM_KEYS, DIM, generator=generator)

    read = index_page_ref.read_keys(written(keys, dtype), BLOCK_TABLE, NUM_KEYS, DIM)

    assert_close(read, keys, tolerance)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("table", [[[4, 5, 6]], [[4, 6, 5]]], ids=["in_a_row", "apart"])
def test_a_lone_sequence_reads_its_pages_wherever_they_lie(
    table: list[list[int]], dtype: torch.dtype, generator: torch.Generator
) -> None:
    keys, block_table = torch.randn(1, NUM_KEYS, DIM, generator=generator), torch.tensor(table)
    pages = index_page_ref.empty_pages(7, DIM, dtype)
    index_page_ref.write_keys(pages, slots_of(block_table, NUM_KEYS), keys)

    read = index_page_ref.read_keys(pages, block_table, NUM_KEYS, DIM)

    both = index_page_ref.read_keys(pages, block_table.expand(2, -1), NUM_KEYS, DIM)
    assert_close(read, keys, "fp8_key")
    assert torch.equal(read, both[:1])


def test_an_fp8_page_holds_all_values_before_all_scales(generator: torch.Generator) -> None:
    keys = torch.randn(2, 64, DIM, generator=generator)

    page = written(keys, torch.float8_e4m3fn)[0]

    values, scales = index_page_ref.quantise_keys(keys[0])
    assert torch.equal(page[: 64 * DIM], values.view(torch.uint8).flatten())
    assert torch.equal(page[64 * DIM :].view(torch.float32), scales)


def test_a_page_read_as_interleaved_records_gives_other_keys_but_the_first_values(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    keys = torch.randn(2, NUM_KEYS, DIM, generator=generator)
    pages = written(keys, torch.float8_e4m3fn)
    record = DIM + 4
    interleaved = PageLayout(value_base=0, value_stride=record, scale_base=DIM, scale_stride=record)
    monkeypatch.setattr(index_page_ref, "reader_layout", lambda _: interleaved)

    read = index_page_ref.read_keys(pages, BLOCK_TABLE, NUM_KEYS, DIM)

    flat = pages[BLOCK_TABLE[0, 1]]
    expected = flat[record : record + DIM].view(torch.float8_e4m3fn).float()
    scale = flat[record + DIM : 2 * record].view(torch.float32)
    assert torch.equal(read[0, 65].nan_to_num(), (expected * scale).nan_to_num())
    assert not relative_error(read, keys) < 0.5


def test_rewriting_one_slot_leaves_the_others_alone(generator: torch.Generator) -> None:
    keys = torch.randn(2, NUM_KEYS, DIM, generator=generator)
    pages = written(keys, torch.float8_e4m3fn)
    before = index_page_ref.read_keys(pages, BLOCK_TABLE, NUM_KEYS, DIM)

    index_page_ref.write_keys(pages, torch.tensor([2 * 64 + 1]), torch.full((1, DIM), 3.0))

    after = index_page_ref.read_keys(pages, BLOCK_TABLE, NUM_KEYS, DIM)
    changed = (before != after).any(-1).nonzero().tolist()
    assert changed == [[0, 65]]
    assert torch.equal(after[0, 65], torch.full((DIM,), 3.0))


def test_scores_add_only_positive_dots_of_each_head(generator: torch.Generator) -> None:
    q = torch.randn(2, 5, 4, DIM, generator=generator)
    keys = torch.randn(2, NUM_KEYS, DIM, generator=generator)
    weights = torch.randn(2, 5, 4, generator=generator)

    scores = index_page_ref.scores_ref(q, keys, weights, 0.25)

    b, t, s = 1, 3, 149
    expected = sum(weights[b, t, h] * max(0.25 * (q[b, t, h] @ keys[b, s]), torch.tensor(0.0)) for h in range(4))
    assert torch.allclose(scores[b, t, s], expected, atol=1e-5)


def test_scoring_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    q = torch.randn(1, 9, 4, DIM, generator=generator)
    keys = torch.randn(1, 70, DIM, generator=generator)
    weights = torch.randn(1, 9, 4, generator=generator)
    whole = index_page_ref.scores_ref(q, keys, weights, 0.25)
    monkeypatch.setattr(index_page_ref, "SCORE_CHUNK", 2 * 4 * 70)

    assert torch.allclose(index_page_ref.scores_ref(q, keys, weights, 0.25), whole, atol=1e-5)


def test_scores_that_are_no_numbers_rank_at_the_ends() -> None:
    q = torch.ones(1, 1, 1, 2)
    keys = torch.tensor([[[float("nan"), 1.0], [float("inf"), 1.0], [1.0, 1.0]]])

    scores = index_page_ref.scores_ref(q, keys, torch.ones(1, 1, 1), 1.0)

    assert scores.flatten().tolist() == [pytest.approx(-1e20), pytest.approx(1e20), 2.0]


def test_equal_scores_go_to_the_lower_index_whatever_the_length() -> None:
    for num_keys in (5, 64, 300):
        scores = torch.zeros(1, 1, num_keys)
        scores[0, 0, 3], scores[0, 0, 1] = 1.0, -0.0

        picks = index_page_ref.select_ref(scores, torch.tensor([[num_keys]]), 4)

        assert picks.flatten().tolist() == [3, 0, 1, 2]


def test_selection_equals_a_stable_sort(generator: torch.Generator) -> None:
    scores = torch.randint(-3, 4, (2, 6, 90), generator=generator).float() * 1e19

    picks = index_page_ref.select_ref(scores, torch.full((2, 6), 90), 17)

    assert torch.equal(picks, torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :17])


def test_one_query_picks_as_one_of_many_with_and_without_ties_among_the_best(generator: torch.Generator) -> None:
    scores = torch.randperm(90, generator=generator).float().expand(3, 1, 90).clone()
    scores[1] = scores[1].clamp(max=80.0)  # the best nine are equal
    scores[2] = torch.where(scores[2] == 78.0, 79.0, scores[2])  # rank 11 equals rank 12, the first that is left out

    for topk in (11, 90):
        alone = [index_page_ref.select_ref(scores[i : i + 1], None, topk) for i in range(3)]

        expected = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :topk]
        assert torch.equal(torch.cat(alone), expected)
        assert torch.equal(index_page_ref.select_ref(scores, None, topk), expected)


@pytest.mark.parametrize("values", [(0.0, -0.0), (1.9999999, -1.9999999), (1e20, -1e20, 0.0), (1e-45, -1e-45, 0.0)])
@pytest.mark.parametrize("num_visible", [None, 1, 700])
def test_ties_of_any_size_and_sign_go_to_the_lower_index(
    values: tuple[float, ...], num_visible: int | None, generator: torch.Generator
) -> None:
    scores = torch.tensor(values)[torch.randint(len(values), (2, 3, 900), generator=generator)]
    visible = None if num_visible is None else torch.full((2, 3), num_visible)

    picks = index_page_ref.select_ref(scores, visible, 64)

    seen = scores[..., :num_visible]
    expected = torch.sort(seen, dim=-1, descending=True, stable=True).indices[..., :64]
    assert torch.equal(picks[..., : expected.shape[-1]], expected)
    assert (picks[..., expected.shape[-1] :] == -1).all()


def test_keys_beyond_the_visible_ones_are_never_picked(generator: torch.Generator) -> None:
    scores = torch.full((1, 4, 10), -1e20)
    visible = torch.tensor([[0, 1, 3, 10]])

    picks = index_page_ref.select_ref(scores, visible, 4)

    assert picks[0].tolist() == [[-1] * 4, [0, -1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3]]


def test_fewer_keys_than_picks_give_as_many_picks_as_keys() -> None:
    assert index_page_ref.select_ref(torch.zeros(1, 1, 3), torch.tensor([[3]]), 8).shape == (1, 1, 3)


def test_bad_pages_are_refused_by_name() -> None:
    with pytest.raises(DtypeError, match="float16"):
        index_page_ref.empty_pages(1, DIM, torch.float16)
    pages = index_page_ref.empty_pages(7, DIM, torch.bfloat16)
    with pytest.raises(ShapeError, match="expected at least 4"):
        index_page_ref.read_keys(pages, BLOCK_TABLE, 193, DIM)
