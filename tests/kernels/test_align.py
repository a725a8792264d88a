from __future__ import annotations

import pytest
import torch

from kernels.align import align


def check(ids: torch.Tensor, num_experts: int, block_t: int, device: str, extra_t: int = 0) -> None:
    tiles = align(ids.to(device), num_experts, block_t, extra_t)

    flat = ids.flatten().long()
    valid = (flat >= 0) & (flat < num_experts)
    key = torch.where(valid, flat, num_experts)
    expected = torch.argsort(key, stable=True)[: int(valid.sum())]
    assert torch.equal(tiles.sorted_rows[: len(expected)].cpu().long(), expected)
    covered: list[int] = []
    for expert, start, end in zip(tiles.expert.tolist(), tiles.start.tolist(), tiles.end.tolist(), strict=True):
        if expert >= 0:
            assert 0 < end - start <= block_t + extra_t
            assert (flat[expected[start:end]] == expert).all()
            covered.extend(range(start, end))
    assert covered == list(range(len(expected)))


@pytest.mark.interpreter
@pytest.mark.parametrize(("tokens", "block_t"), [(2, 8), (63, 8), (129, 16)])
def test_every_row_lands_in_one_tile_of_its_expert(
    tokens: int, block_t: int, generator: torch.Generator, device: str
) -> None:
    check(torch.randint(0, 11, (tokens, 3), generator=generator, dtype=torch.int32), 11, block_t, device)


@pytest.mark.interpreter
def test_many_rows_are_counted_by_several_programs(generator: torch.Generator, device: str) -> None:
    check(torch.randint(0, 6, (400, 3), generator=generator, dtype=torch.int32), 6, 64, device)


@pytest.mark.interpreter
def test_all_rows_on_one_expert_and_ids_that_are_no_expert(generator: torch.Generator, device: str) -> None:
    check(torch.full((40, 2), 3, dtype=torch.int32), 8, 16, device)
    check(torch.randint(-1, 9, (40, 2), generator=generator, dtype=torch.int32), 8, 16, device)
    check(torch.full((4, 2), -1, dtype=torch.int32), 8, 16, device)


@pytest.mark.interpreter
def test_a_tile_grows_only_where_that_saves_its_expert_one(device: str) -> None:
    expected = {0: [], 1: [1], 16: [16], 17: [17], 20: [20], 21: [16, 5], 33: [17, 16], 39: [20, 19], 40: [20, 20],
                41: [16, 16, 9], 52: [20, 16, 16]}  # fmt: skip
    ids = torch.cat([torch.full((rows,), expert) for expert, rows in enumerate(expected)]).int()

    tiles = align(ids.view(-1, 1).to(device), len(expected), 16, 4)

    sizes: dict[int, list[int]] = {expert: [] for expert in range(len(expected))}
    for expert, start, end in zip(tiles.expert.tolist(), tiles.start.tolist(), tiles.end.tolist(), strict=True):
        if expert >= 0:
            sizes[expert].append(end - start)
    assert list(sizes.values()) == list(expected.values())
    check(ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))].view(-1, 1), 11, 16, device, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [16384, 4097])
def test_a_prefill_of_256_experts_is_sorted(tokens: int, generator: torch.Generator) -> None:
    check(torch.randint(0, 256, (tokens, 6), generator=generator, dtype=torch.int32), 256, 128, "cuda", 16)
