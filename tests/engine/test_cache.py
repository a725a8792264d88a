"""The cache: forks, pages, and the bounds that decoding must respect."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache import Rows, flat_rows, gather_rows, newest_rows
from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.errors import InputError
from engine.pages import PagedKeys, PagePool
from engine.settings import EngineSettings
from kernels.index_page_ref import PAGE_SIZE, read_keys
from tests.engine.data.tiny import CONFIG, prompts, weights

TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def engine() -> Engine:
    torch.set_num_threads(1)
    settings = EngineSettings(expert_quant="none", index_keys="bf16")
    return Engine(ModelConfig.from_dict(CONFIG), Tensors(weights(0), "tiny"), settings)


def test_forks_of_one_prompt_go_on_apart(engine: Engine) -> None:
    ids = prompts(5, batch=2)
    start = 90
    _, cache = engine.prefill(ids[:, :start], [])
    tails = prompts(6, batch=6)[:, :12]

    forked = cache.fork(3)
    forked_logits = [engine.decode(tails[:, step], forked) for step in range(12)]

    assert (forked.batch, forked.length, cache.length) == (6, start + 12, start)
    for row in range(6):
        whole = torch.cat((ids[row // 3, :start], tails[row]))[None]
        torch.testing.assert_close(forked_logits[-1][row], engine.forward(whole)[0, -1], atol=TOLERANCE, rtol=0)


def test_the_forked_cache_is_not_disturbed_by_its_forks(engine: Engine) -> None:
    ids = prompts(7)
    _, cache = engine.prefill(ids[:, :70], [])
    forked = cache.fork(2)
    for step in range(10):
        engine.decode(torch.tensor([step, 2 * step]), forked)

    after = [engine.decode(ids[:, 70 + step], cache) for step in range(5)]

    torch.testing.assert_close(after[-1][0], engine.forward(ids[:, :75])[0, -1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", ["fp8", "bf16", "fp32"])
def test_decoding_agrees_with_the_forward_in_every_key_format(kind: str) -> None:
    engine = Engine(
        ModelConfig.from_dict(CONFIG), Tensors(weights(0), "tiny"), EngineSettings(expert_quant="none", index_keys=kind)
    )
    ids = prompts(8)

    _, cache = engine.prefill(ids[:, :100], [])
    logits = [engine.decode(ids[:, position], cache) for position in range(100, 130)]

    full = engine.forward(ids[:, :130])
    torch.testing.assert_close(torch.stack(logits, 1), full[:, 100:], atol=TOLERANCE, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 150), min_size=1, max_size=5), st.integers(1, 3), st.integers(0, 80))
def test_pages_return_the_keys_in_order_whatever_the_chunks_and_forks(chunks: list[int], n: int, tail: int) -> None:
    generator = torch.Generator().manual_seed(sum(chunks))
    keys_BND = torch.randn(2, sum(chunks), 8, generator=generator)
    paged = PagedKeys(PagePool(8, torch.float32, "cpu"), torch.empty(2, 0, dtype=torch.int64))
    for chunk in keys_BND.split(chunks, 1):
        paged.append(chunk)

    forked = paged.fork(n)
    own = torch.randn(2 * n, tail, 8, generator=generator)
    forked.append(own)

    expected = torch.cat((keys_BND.repeat_interleave(n, 0), own), 1)
    assert torch.equal(read_keys(forked.pool.pages, forked.block_table_BP, forked.num_keys, 8), expected)
    assert torch.equal(read_keys(paged.pool.pages, paged.block_table_BP, paged.num_keys, 8), keys_BND)


def test_a_fork_shares_full_pages_and_copies_the_open_one() -> None:
    paged = PagedKeys(PagePool(8, torch.bfloat16, "cpu"), torch.empty(1, 0, dtype=torch.int64))
    paged.append(torch.zeros(1, 2 * PAGE_SIZE + 5, 8))

    forked = paged.fork(2)

    assert torch.equal(forked.block_table_BP[:, :2], paged.block_table_BP[:, :2].expand(2, -1))
    assert len({*forked.block_table_BP[:, 2].tolist(), *paged.block_table_BP[:, 2].tolist()}) == 3


def test_rows_grow_and_are_gathered_per_sequence() -> None:
    rows = Rows(torch.zeros(2, 0, 3))
    first, second = torch.rand(2, 5, 3), torch.rand(2, 4, 3)

    rows.append(first)
    rows.append(second)

    whole = torch.cat((first, second), 1)
    numbers = torch.tensor([[[8, 0]], [[3, -1]]])
    assert torch.equal(rows.all(), whole)
    assert torch.equal(rows.gather(numbers), gather_rows(whole, numbers))
    assert torch.equal(rows.gather(numbers)[0, 0], whole[0, [8, 0]])
    assert torch.equal(rows.take(numbers[:, 0].abs()), torch.stack((whole[0, [8, 0]], whole[1, [3, 1]])))


def test_rows_of_the_newest_are_those_of_their_numbers_whatever_was_asked_before() -> None:
    device = torch.device("cpu")
    for _ in range(2):
        for batch, num_rows, capacity, width in [
            (1, 3, 3, 8),
            (4, 3, 3, 8),
            (4, 9, 9, 8),
            (4, 5, 16, 5),
            (4, 1, 16, 1),
        ]:
            rows_BK = newest_rows(batch, num_rows, capacity, width, device)

            numbers_BPK = torch.arange(num_rows - width, num_rows).expand(batch, 1, width)
            assert torch.equal(rows_BK, flat_rows(torch.empty(batch, capacity, 2), numbers_BPK).squeeze(1))
            assert newest_rows(batch, num_rows, capacity, width, device) is rows_BK
    assert newest_rows(2, 3, 5, 4, device).tolist() == [[-1, 0, 1, 2], [-1, 5, 6, 7]]


def test_rows_of_a_lone_sequence_are_taken_at_their_numbers() -> None:
    rows = Rows(torch.zeros(1, 0, 3))
    rows.append(torch.rand(1, 9, 3))

    assert torch.equal(rows.take(torch.tensor([[7, 0, 2]])), rows.all()[:, [7, 0, 2]])


def test_misuse_is_named(engine: Engine) -> None:
    _, cache = engine.prefill(prompts(0)[:, :8], [])

    with pytest.raises(InputError, match="2 token ids for a cache of 1 sequences"):
        engine.decode(torch.tensor([1, 2]), cache)
    with pytest.raises(InputError, match="token ids from 0 to 512, expected 0 to 511"):
        engine.forward(torch.tensor([[0, 512]]))
    with pytest.raises(InputError, match="logits_at from 3 to 8, the prompt has 8 tokens"):
        engine.prefill(prompts(0)[:, :8], [3, 8])
    with pytest.raises(InputError, match=r"fork\(0\): expected at least 1"):
        cache.fork(0)
    with pytest.raises(InputError, match="expected 2 axes and at least one token"):
        engine.forward(torch.tensor([1, 2]))
