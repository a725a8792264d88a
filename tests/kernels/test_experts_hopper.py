"""The fused experts on a real GPU: against fp32 dequantised weights, with every allocation poisoned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from kernels import nvfp4_ref
from kernels.errors import DeviceError, DtypeError, ShapeError
from kernels.experts_ref import experts_ref
from kernels.nvfp4_layout import HopperExperts, Nvfp4Experts, repack, round_global_scales
from tests.numerics import assert_close

if TYPE_CHECKING:
    from kernels.experts_hopper import Tile

pytestmark = pytest.mark.gpu
NUM_EXPERTS, TOPK = 9, 3
# What `choose_tile` picks, and neighbours.
TILES = [
    {"block_t": 8, "num_warps": 4, "x_columns": 256, "stages": 4, "prefetch_chunk": True, "overlap": True},
    {"block_t": 8, "num_warps": 8, "x_columns": 256, "stages": 2},
    {"block_t": 16, "num_warps": 4, "x_columns": 256, "stages": 3, "prefetch_chunk": True},
    {"block_t": 32, "num_warps": 8, "x_columns": 128, "stages": 4, "prefetch_chunk": True, "tail_t": 16},
    {"block_t": 64, "num_warps": 8, "stages": 5, "tail_t": 16, "max_registers": 128},
    {"block_t": 64, "num_warps": 8, "stages": 5, "tail_t": 16, "extra_t": 16, "max_registers": 128},
    {"block_t": 128, "num_warps": 8, "tail_t": 32, "extra_t": 16, "max_registers": 128},
    {"block_t": 128, "num_warps": 8, "tail_t": 32, "max_registers": 128},
    {"block_t": 128, "num_warps": 16, "x_columns": 128, "stages": 3, "tail_t": 32},
]
PREFILL = TILES[6]
DEFAULTS = {"x_columns": 64, "stages": 4, "prefetch_chunk": False}


@pytest.fixture(autouse=True)
def _poison_every_allocation() -> Iterator[None]:
    """torch.empty gives NaN and the largest integers in here."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def made(fields: dict[str, int | bool]) -> Tile:
    from kernels.experts_hopper import Tile

    return Tile(**{**DEFAULTS, **fields})  # type: ignore[arg-type]


def make(
    generator: torch.Generator, num_tokens: int, dim: int = 320, hidden: int = 176
) -> tuple[Nvfp4Experts, Tensor, Tensor, Tensor]:
    w13 = nvfp4_ref.encode(torch.randn(NUM_EXPERTS, 2 * hidden, dim, generator=generator).cuda() * dim**-0.5)
    w2 = nvfp4_ref.encode(torch.randn(NUM_EXPERTS, dim, hidden, generator=generator).cuda() * hidden**-0.5)
    names = ("w13_codes", "w13_scale", "w13_global", "w2_codes", "w2_scale", "w2_global")
    weights = Nvfp4Experts(**dict(zip(names, (*w13, *w2), strict=True)))
    x = (3 * torch.randn(num_tokens, dim, generator=generator)).cuda().bfloat16()
    scores = torch.randn(num_tokens, NUM_EXPERTS - 1, generator=generator)  # the last expert stays without a token
    gates, ids = scores.topk(TOPK)
    return weights, x, ids.int().cuda(), gates.softmax(-1).cuda()


def reference(weights: Nvfp4Experts, x: Tensor, ids: Tensor, gates: Tensor, limit: float | None) -> Tensor:
    w13 = nvfp4_ref.decode(weights.w13_codes, weights.w13_scale, weights.w13_global)
    w2 = nvfp4_ref.decode(weights.w2_codes, weights.w2_scale, weights.w2_global)
    return experts_ref(x, w13, w2, ids, gates, limit)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 3, 63, 129, 450])
def test_the_layer_is_within_bf16_of_fp32_weights(
    num_tokens: int, tile: dict[str, int | bool], generator: torch.Generator
) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, ids, gates = make(generator, num_tokens)

    out = experts_hopper(x, repack(weights), ids, gates, 2.0, tile=made(tile))

    assert_close(out, reference(weights, x, ids, gates, 2.0), "bf16_layer")


@pytest.mark.parametrize("tile", TILES[4:], ids=str)
@pytest.mark.parametrize(
    "rows",
    [(127, 128, 129, 0, 143, 144, 145, 160), (161, 15, 16, 17, 0, 63, 79, 81), (256, 273, 288, 289, 0, 305, 31, 33)],
    ids=str,
)
def test_experts_whose_rows_just_fit_a_tile_or_just_do_not(
    rows: tuple[int, ...], tile: dict[str, int | bool], generator: torch.Generator
) -> None:
    from kernels.experts_hopper import experts_hopper

    flat = torch.cat([torch.full((count,), expert) for expert, count in enumerate(rows)])
    flat = torch.cat((flat, torch.full((-len(flat) % TOPK,), -1)))
    ids = flat[torch.randperm(len(flat), generator=generator)].view(-1, TOPK).int().cuda()
    weights, x, _, gates = make(generator, len(ids))
    packed = repack(weights)

    out = experts_hopper(x, packed, ids, gates, 2.0, tile=made(tile))

    assert_close(out, reference(weights, x, ids, gates, 2.0), "bf16_layer")
    for _ in range(3):
        assert torch.equal(experts_hopper(x, packed, ids, gates, 2.0, tile=made(tile)), out)


def test_a_row_gets_the_same_bits_from_a_tile_of_any_width(generator: torch.Generator) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, _, gates = make(generator, 144)
    packed, ids = repack(weights), torch.full((144, TOPK), -1, dtype=torch.int32).cuda()
    ids[:, 0] = 3

    whole = experts_hopper(x, packed, ids, gates, 2.0, tile=made(PREFILL))

    for part in (slice(0, 32), slice(0, 128), slice(16, 144)):
        assert torch.equal(
            experts_hopper(x[part], packed, ids[part], gates[part], 2.0, tile=made(PREFILL)), whole[part]
        )


def test_all_tokens_on_one_expert_and_ids_that_are_no_expert(generator: torch.Generator) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, ids, gates = make(generator, 70)
    packed = repack(weights)
    for expert in (0, NUM_EXPERTS - 1):
        ids[:] = expert
        assert_close(experts_hopper(x, packed, ids, gates, None), reference(weights, x, ids, gates, None), "bf16_layer")
    ids[::2, 1], ids[1::2, 2], ids[5] = -1, NUM_EXPERTS, -7
    assert_close(experts_hopper(x, packed, ids, gates, None), reference(weights, x, ids, gates, None), "bf16_layer")
    assert torch.equal(
        experts_hopper(x[:1], packed, torch.full_like(ids[:1], -1), gates[:1], None), torch.zeros_like(x[:1])
    )


def test_the_factor_multiplies_once(generator: torch.Generator) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, ids, gates = make(generator, 33)
    packed = repack(weights)

    plain, scaled = (experts_hopper(x, packed, ids, gates, 10.0, factor=factor) for factor in (None, 2.0))

    assert torch.equal(scaled, plain * 2.0)


def test_the_same_input_gives_the_same_bits(generator: torch.Generator) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, ids, gates = make(generator, 500)
    packed = repack(weights)
    first = experts_hopper(x, packed, ids, gates, 10.0)

    for _ in range(5):
        assert torch.equal(experts_hopper(x, packed, ids, gates, 10.0), first)


def test_a_token_gets_the_same_bits_in_any_batch_of_one_tile_size(generator: torch.Generator) -> None:
    from kernels.experts_hopper import Tile, experts_hopper

    weights, x, ids, gates = make(generator, 129)
    packed, tile = repack(weights), Tile(block_t=16, num_warps=4, x_columns=256, stages=3, prefetch_chunk=True)

    whole = experts_hopper(x, packed, ids, gates, 10.0, tile=tile)

    for part in (slice(0, 1), slice(40, 57), slice(0, 128)):
        assert torch.equal(experts_hopper(x[part], packed, ids[part], gates[part], 10.0, tile=tile), whole[part])


def test_a_nan_stays_in_its_token_and_is_not_clamped_away(generator: torch.Generator) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, ids, gates = make(generator, 33)
    packed = repack(weights)
    clean = experts_hopper(x, packed, ids, gates, 2.0)
    x[4, 5] = float("nan")

    out = experts_hopper(x, packed, ids, gates, 2.0)

    assert out[4].isnan().all()
    assert torch.equal(torch.cat((out[:4], out[5:])), torch.cat((clean[:4], clean[5:])))


def test_global_scales_through_bf16_are_those_of_the_reference(generator: torch.Generator) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, ids, gates = make(generator, 33)
    rounded = round_global_scales(weights, torch.bfloat16)

    out = experts_hopper(x, round_global_scales(repack(weights), torch.bfloat16), ids, gates, 2.0)

    assert torch.equal(out, experts_hopper(x, repack(rounded), ids, gates, 2.0))
    assert_close(out, reference(rounded, x, ids, gates, 2.0), "bf16_layer")


def test_an_id_of_no_expert_is_refused_in_debug(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, ids, gates = make(generator, 4)
    ids[1, 0] = NUM_EXPERTS
    monkeypatch.setenv("KERNELS_DEBUG", "1")

    with pytest.raises(ShapeError, match=r"expert ids: \[9\], expected -1 or 0 to 8"):
        experts_hopper(x, repack(weights), ids, gates, None)


def test_bad_input_is_refused_before_launch(generator: torch.Generator) -> None:
    from kernels.experts_hopper import experts_hopper

    weights, x, ids, gates = make(generator, 4)
    packed: HopperExperts = repack(weights)

    with pytest.raises(DtypeError, match="tokens"):
        experts_hopper(x.float(), packed, ids, gates, None)
    with pytest.raises(DtypeError, match="expert ids"):
        experts_hopper(x, packed, ids.long(), gates, None)
    with pytest.raises(ShapeError, match="token width"):
        experts_hopper(x[:, :-16], packed, ids, gates, None)
    with pytest.raises(ShapeError, match="routing"):
        experts_hopper(x, packed, ids, gates[:, :-1], None)
    with pytest.raises(DeviceError, match="one device"):
        experts_hopper(x.cpu(), packed, ids, gates, None)
