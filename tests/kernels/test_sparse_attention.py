from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import attention_cache_ref, dispatch, sparse_attention_ref
from kernels.errors import DtypeError, ShapeError
from kernels.sparse_attention import (
    BATCH_INVARIANT_SPLIT,
    choose_split,
    sparse_attention,
    sparse_attention_rows,
)
from tests.numerics import assert_close

# Rows of each cache.
ROWS = 192


@pytest.fixture(autouse=True)
def _poison_every_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty gives NaN in here; only floats are allocated by it."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: empty(*shape, **options).fill_(torch.nan))


def gathered(
    generator: torch.Generator,
    device: str,
    *,
    queries: int = 2,
    heads: int = 3,
    dim: int = 32,
    candidates: int = 65,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Query 1 has no candidate at all; what does not count is NaN."""
    q = torch.randn(queries, heads, dim, generator=generator)
    entries = torch.randn(queries, candidates, dim, generator=generator)
    valid = torch.rand(queries, candidates, generator=generator) > 0.3
    valid[1:2] = False
    entries[~valid] = torch.nan
    sinks = torch.randn(heads, generator=generator)
    return q.to(device, dtype), entries.to(device, dtype), valid.to(device), sinks.to(device), dim**-0.5


def rows(
    generator: torch.Generator,
    device: str,
    *,
    queries: int = 3,
    heads: int = 3,
    dim: int = 128,
    window: int = 5,
    picks: int = 70,
    cache: str = "plain",
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor, float]:
    """Rows -1 and beyond the cache among them, and query 1 with none; no entry cache without picks."""
    caches = []
    for _ in range(2):
        keys = torch.randn(ROWS, dim, generator=generator)
        if cache == "packed":
            pages = attention_cache_ref.empty_key_pages(ROWS // 64, dim)
            attention_cache_ref.write_rows(pages, torch.randperm(ROWS, generator=generator), keys)
            # Unused bytes hold what would be an infinite scale.
            start = 64 * attention_cache_ref.data_bytes(dim)
            pages[:, start : start + 64 * 8].unflatten(1, (64, 8))[..., dim // 64 - 1 :] = 135
            caches.append(pages.to(device))
        else:
            caches.append(keys.to(device, dtype))
    q = torch.randn(queries, heads, dim, generator=generator).to(device, dtype)
    numbers = [
        torch.randint(-30, ROWS + 30, (queries, n), generator=generator, dtype=torch.int32) for n in (window, picks)
    ]
    for number in numbers:
        number[1:2] = -1
    sinks = torch.randn(heads, generator=generator).to(device)
    window_rows, entry_rows = (number.to(device) for number in numbers)
    if picks == 0:
        return q, caches[0], window_rows, None, None, sinks, dim**-0.5
    return q, caches[0], window_rows, caches[1], entry_rows, sinks, dim**-0.5


def rotation(generator: torch.Generator, device: str, queries: int, pairs: int) -> sparse_attention_ref.Rotation:
    angle = torch.rand(queries, pairs, generator=generator) * 6.3
    return angle.cos().to(device), angle.sin().to(device)


def expected(q: Tensor, entries: Tensor, valid: Tensor, *rest: Any, **options: Any) -> Tensor:
    """The reference on entries without NaN, which it would multiply by a probability of 0."""
    return sparse_attention_ref.sparse_attention_ref(
        q, entries.masked_fill(~valid[..., None], 0.0), valid, *rest, **options
    )


@pytest.mark.interpreter
@pytest.mark.parametrize("split_size", [None, 64], ids=["whole", "split"])
@pytest.mark.parametrize(("queries", "candidates"), [(1, 1), (2, 63), (3, 129), (1, 0)])
def test_gathered_entries_give_the_references_output(
    queries: int, candidates: int, split_size: int | None, generator: torch.Generator, device: str
) -> None:
    arguments = gathered(generator, device, queries=queries, candidates=candidates)
    size = max(64, -(-candidates // 64) * 64) if split_size is None else split_size

    out = sparse_attention(*arguments, split_size=size)

    assert_close(out, expected(*arguments), "fp32_merge")
    assert torch.equal(out[1:2], torch.zeros_like(out[1:2]))


@pytest.mark.interpreter
@pytest.mark.parametrize("cache", ["plain", "packed"])
@pytest.mark.parametrize(("window", "picks", "split_size"), [(5, 70, 64), (5, 70, 192), (70, 0, 128)])
def test_rows_of_two_caches_are_gathered_and_the_output_rotated_back(
    window: int, picks: int, split_size: int, cache: str, generator: torch.Generator, device: str
) -> None:
    arguments = rows(generator, device, window=window, picks=picks, cache=cache)
    options: dict[str, Any] = {"rotation": rotation(generator, device, 3, 32)}

    out = sparse_attention_rows(*arguments, split_size=split_size, **options)

    assert_close(out, sparse_attention_ref.sparse_attention_rows_ref(*arguments, **options), "fp32_merge")
    assert torch.equal(out[1], torch.zeros_like(out[1]))


@pytest.mark.interpreter
@pytest.mark.parametrize("sink", [-1e4, 1e4])
def test_a_sink_far_from_the_logits_overflows_nothing(sink: float, generator: torch.Generator, device: str) -> None:
    q, entries, valid, sinks, scale = gathered(generator, device)
    sinks = torch.full_like(sinks, sink)

    for split_size in (64, 128):  # two parts, and one
        out = sparse_attention(q, entries, valid, sinks, scale, split_size=split_size)

        assert_close(out, expected(q, entries, valid, sinks, scale), "fp32_merge")


@pytest.mark.interpreter
def test_with_a_fixed_split_a_query_has_the_same_bits_in_any_batch(generator: torch.Generator, device: str) -> None:
    q, window, window_rows, entries, entry_rows, sinks, scale = rows(generator, device, dim=16, picks=200)
    assert entry_rows is not None

    batch = sparse_attention_rows(
        q, window, window_rows, entries, entry_rows, sinks, scale, split_size=BATCH_INVARIANT_SPLIT
    )
    alone = sparse_attention_rows(
        q[2:], window, window_rows[2:], entries, entry_rows[2:], sinks, scale, split_size=BATCH_INVARIANT_SPLIT
    )

    assert torch.equal(alone[0], batch[2])


def test_splits_fill_the_device_and_one_is_enough_when_the_queries_do() -> None:
    sizes = {programs: choose_split(programs, 640) for programs in (1, 16, 64, 66, 67, 4096)}

    assert sizes == {1: 64, 16: 128, 64: 320, 66: 320, 67: 640, 4096: 640}
    assert choose_split(16, 2176) == 320
    # What is merged takes longer than so few blocks, unless there are many parts.
    assert [choose_split(programs, 640, whole_blocks=10) for programs in (16, 64)] == [128, 640]
    assert choose_split(64, 704, whole_blocks=10) == 384
    assert choose_split(0, 0) == 64


@pytest.mark.parametrize("split_size", [None, 64])
def test_dispatch_says_which_attention_ran(split_size: int | None, generator: torch.Generator) -> None:
    choices: list[dispatch.Choice] = []
    arguments = rows(generator, "cpu", dim=16)
    clean = gathered(generator, "cpu")
    clean[1].nan_to_num_()
    options: dict[str, Any] = {"split_size": split_size, "requested": "reference", "record": choices.append}

    by_rows = dispatch.sparse_attention_rows(*arguments, **options)
    by_entries = dispatch.sparse_attention(*clean, **options)

    assert_close(by_rows, sparse_attention_ref.sparse_attention_rows_ref(*arguments), "fp32_merge")
    assert_close(by_entries, sparse_attention_ref.sparse_attention_ref(*clean), "fp32_merge")
    assert [(choice.op, choice.file) for choice in choices] == [
        ("sparse_attention_rows", "kernels/sparse_attention_ref.py"),
        ("sparse_attention", "kernels/sparse_attention_ref.py"),
    ]


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(generator: torch.Generator, device: str) -> None:
    q, entries, valid, sinks, scale = gathered(generator, device)

    with pytest.raises(DtypeError, match=r"queries: torch\.float16"):
        sparse_attention(q.half(), entries, valid, sinks, scale)
    with pytest.raises(DtypeError, match=r"keys for torch\.bfloat16 queries: torch\.float32"):
        sparse_attention(q.bfloat16(), entries, valid, sinks, scale)
    with pytest.raises(DtypeError, match=r"valid: torch\.float32"):
        sparse_attention(q, entries, valid.float(), sinks, scale)
    with pytest.raises(DtypeError, match=r"output: torch\.float16"):
        sparse_attention(q, entries, valid, sinks, scale, out_dtype=torch.float16)
    with pytest.raises(ShapeError, match="entries"):
        sparse_attention(q, entries[:1], valid, sinks, scale)
    with pytest.raises(ShapeError, match="sinks"):
        sparse_attention(q, entries, valid, sinks[:2], scale)
    with pytest.raises(ShapeError, match="split size: 65, expected a multiple of 64"):
        sparse_attention(q, entries, valid, sinks, scale, split_size=65)
    with pytest.raises(ShapeError, match="head dim: 24"):
        sparse_attention(q[..., :24], entries[..., :24], valid, sinks, scale)
    with pytest.raises(ShapeError, match="rotation"):
        sparse_attention(q, entries, valid, sinks, scale, rotation=(sinks[None], sinks[None]))


@pytest.mark.interpreter
def test_bad_caches_are_refused_before_launch(generator: torch.Generator, device: str) -> None:
    q, window, window_rows, entries, entry_rows, sinks, scale = rows(generator, device)
    assert entries is not None
    assert entry_rows is not None
    shifted = torch.zeros(ROWS * 128 + 1, device=device)[1:].view(ROWS, 128)
    pages = attention_cache_ref.empty_key_pages(1, 128, device)

    with pytest.raises(ShapeError, match="both or none"):
        sparse_attention_rows(q, window, window_rows, entries, None, sinks, scale)
    with pytest.raises(DtypeError, match=r"window rows: torch\.float32"):
        sparse_attention_rows(q, window, window_rows.float(), entries, entry_rows, sinks, scale)
    with pytest.raises(DtypeError, match=r"entry rows: torch\.int64"):
        sparse_attention_rows(q, window, window_rows, entries, entry_rows.long(), sinks, scale)
    with pytest.raises(DtypeError, match=r"entry cache: torch\.bfloat16"):
        sparse_attention_rows(q, window, window_rows, entries.bfloat16(), entry_rows, sinks, scale)
    with pytest.raises(ShapeError, match="entry rows"):
        sparse_attention_rows(q, window, window_rows, entries, entry_rows[:2], sinks, scale)
    with pytest.raises(ShapeError, match=r"cache: \(192, 64\)"):
        sparse_attention_rows(q, window[:, :64].contiguous(), window_rows, None, None, sinks, scale)
    with pytest.raises(ShapeError, match="cache strides"):
        sparse_attention_rows(q, window.T.contiguous().T, window_rows, None, None, sinks, scale)
    with pytest.raises(ShapeError, match="cache address"):
        sparse_attention_rows(q, shifted, window_rows, None, None, sinks, scale)
    with pytest.raises(ShapeError, match="packed keys of head dim 64"):
        sparse_attention_rows(q[..., :64], pages, window_rows, None, None, sinks, scale)


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["plain", "packed"])
@pytest.mark.parametrize(
    ("queries", "heads", "picks"),
    [
        # Blocks of 64 heads have a kernel of their own on Hopper; the others do not.
        *((1, 64, 512), (3, 64, 63), (64, 64, 512), (129, 128, 512), (2, 64, 0)),
        *((3, 48, 63), (129, 112, 512), (3, 16, 2048), (5, 8, 0)),
    ],
    ids=str,
)
def test_bf16_queries_on_tensor_cores_stay_within_bf16(
    queries: int, heads: int, picks: int, cache: str, generator: torch.Generator
) -> None:
    arguments = rows(
        generator,
        "cuda",
        queries=queries,
        heads=heads,
        dim=512,
        window=128,
        picks=picks,
        cache=cache,
        dtype=torch.bfloat16,
    )
    options: dict[str, Any] = {"rotation": rotation(generator, "cuda", queries, 32), "out_dtype": torch.bfloat16}
    reference = sparse_attention_ref.sparse_attention_rows_ref(*arguments, rotation=options["rotation"])

    for split_size in (None, BATCH_INVARIANT_SPLIT, 1 << 12):
        out = sparse_attention_rows(*arguments, split_size=split_size, **options)

        assert_close(out, reference, "bf16_dot")
        assert torch.equal(out, sparse_attention_rows(*arguments, split_size=split_size, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("split_size", [None, 64, 1 << 12])
@pytest.mark.parametrize(("queries", "candidates"), [(1, 1), (3, 63), (2, 129), (64, 640)])
def test_gathered_bf16_entries_stay_within_bf16(
    queries: int, candidates: int, split_size: int | None, generator: torch.Generator
) -> None:
    arguments = gathered(
        generator, "cuda", queries=queries, heads=64, dim=512, candidates=candidates, dtype=torch.bfloat16
    )

    out = sparse_attention(*arguments, split_size=split_size, out_dtype=torch.bfloat16)

    assert_close(out, expected(*arguments), "bf16_dot")


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["plain", "packed"])
def test_full_width_fp32_queries_are_exact_on_a_gpu(cache: str, generator: torch.Generator) -> None:
    arguments = rows(generator, "cuda", queries=3, heads=64, dim=512, window=128, picks=129, cache=cache)

    out = sparse_attention_rows(*arguments)

    assert_close(out, sparse_attention_ref.sparse_attention_rows_ref(*arguments), "fp32_merge")


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["plain", "packed"])
def test_on_a_gpu_too_a_query_has_the_same_bits_in_any_batch(cache: str, generator: torch.Generator) -> None:
    q, window, window_rows, entries, entry_rows, sinks, scale = rows(
        generator, "cuda", heads=64, dim=512, window=128, picks=400, cache=cache, dtype=torch.bfloat16
    )
    assert entry_rows is not None
    options: dict[str, Any] = {"split_size": BATCH_INVARIANT_SPLIT, "out_dtype": torch.bfloat16}

    batch = sparse_attention_rows(q, window, window_rows, entries, entry_rows, sinks, scale, **options)
    alone = sparse_attention_rows(q[2:], window, window_rows[2:], entries, entry_rows[2:], sinks, scale, **options)

    assert torch.equal(alone[0], batch[2])


@pytest.mark.gpu
@pytest.mark.parametrize("sink", [-1e4, 1e4])
@pytest.mark.parametrize("cache", ["plain", "packed"])
def test_a_far_sink_and_large_queries_overflow_nothing_on_a_gpu(
    cache: str, sink: float, generator: torch.Generator
) -> None:
    q, window, window_rows, entries, entry_rows, _, scale = rows(
        generator, "cuda", heads=64, dim=512, window=128, picks=100, cache=cache, dtype=torch.bfloat16
    )
    # Of the first heads every candidate weighs alike, of the last ones one has nearly all the weight.
    exponents = torch.arange(64, device="cuda")[:, None] * 2 - 64
    q = (q.float() * torch.exp2(exponents.clamp(-60, 4).float())).bfloat16()
    arguments = (q, window, window_rows, entries, entry_rows, torch.full((64,), sink, device="cuda"), scale)

    for split_size in (64, 1 << 12):
        out = sparse_attention_rows(*arguments, split_size=split_size)

        assert_close(out, sparse_attention_ref.sparse_attention_rows_ref(*arguments), "bf16_dot")


@pytest.mark.gpu
def test_a_packed_rotary_channel_too_large_for_fp16_shows(generator: torch.Generator) -> None:
    """Infinite or NaN where its row counts, and nowhere else."""
    q, pages, window_rows, _, _, sinks, scale = rows(
        generator, "cuda", heads=64, dim=512, window=70, picks=0, cache="packed", dtype=torch.bfloat16
    )
    keys = attention_cache_ref.read_rows(pages, torch.arange(ROWS, device="cuda"), 512)
    keys[7, -1] = 1e5
    attention_cache_ref.write_rows(pages, torch.arange(ROWS, device="cuda"), keys)
    window_rows[0, 3] = 7
    window_rows[2][window_rows[2] == 7] = 8

    out = sparse_attention_rows(q, pages, window_rows, None, None, sinks, scale)

    assert not out[0].isfinite().all()
    assert bool(out[1:].isfinite().all())


@pytest.mark.gpu
@pytest.mark.parametrize("place", [0, 40], ids="place{}".format)  # on Hopper the halves of a block of 64 come apart
@pytest.mark.parametrize("heads", [16, 64])
def test_every_code_under_every_scale_is_decoded_exactly(heads: int, place: int, device: str) -> None:
    """One candidate a query: the output is its key, as the sink has no weight."""
    pages = attention_cache_ref.empty_key_pages(4, 512, device)
    data = pages[:, : 64 * 576].view(4, 64, 576)
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    codes[127], codes[255] = 0, 0  # NaN
    data[..., :448] = (codes.view(4, 64, 1) + torch.zeros(448, dtype=torch.uint8, device=device)).contiguous()
    exponents = (127 + torch.tensor([-13, -9, -5, -1, 0, 4, 7], device=device)).to(torch.uint8)
    pages[:, 64 * 576 : 64 * 584].view(4, 64, 8)[..., :7] = exponents
    numbers = torch.arange(256, device=device).view(256, 1)
    rows = torch.nn.functional.pad(numbers, (place, 0), value=-1)
    q = torch.zeros(256, heads, 512, dtype=torch.bfloat16, device=device)
    sinks = torch.full((heads,), -1e4, device=device)

    out = sparse_attention_rows(q, pages, rows, None, None, sinks, 1.0)

    assert torch.equal(out, attention_cache_ref.read_rows(pages, numbers, 512).expand(256, heads, 512))
