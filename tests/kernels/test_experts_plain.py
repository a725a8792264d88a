"""Experts over bf16 and FP8 block weights against the reference on the same weights, every allocation poisoned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels import fp8_block_ref
from kernels.errors import DeviceError, DtypeError, ShapeError
from kernels.experts_plain import Tile, bf16_experts, choose_tile, fp8_experts
from kernels.experts_ref import experts_ref, fp8_experts_ref
from kernels.fp8_block_ref import Fp8Experts
from tests.numerics import assert_close, relative_error

NUM_EXPERTS, TOPK = 5, 2
KINDS = ["bf16", "w8a16", "w8a8"]
# Of W8A8 a reference that adds in another order rounds a hidden value here and there to the neighbouring e4m3 number.
INTERPRETED = {"bf16": "fp32", "w8a16": "fp32", "w8a8": "e4m3_step"}
ON_GPU = {"bf16": "bf16_layer", "w8a16": "bf16_layer", "w8a8": "fp8_layer"}


@pytest.fixture(autouse=True)
def _poison_every_allocation() -> Iterator[None]:
    """torch.empty gives NaN and the largest integers in here."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


class Layer:
    """Random weights of one kind, and the kernel and the reference over them."""

    def __init__(self, kind: str, generator: torch.Generator, device: str, dim: int = 144, hidden: int = 72) -> None:
        self.kind, self.device, self.dim, self.generator = kind, device, dim, generator
        w13 = torch.randn(NUM_EXPERTS, 2 * hidden, dim, generator=generator) * dim**-0.5
        w2 = torch.randn(NUM_EXPERTS, dim, hidden, generator=generator) * hidden**-0.5
        self.plain = w13.bfloat16().to(device), w2.bfloat16().to(device)
        # Blocks of unlike sizes, so that a scale taken from a neighbour shows.
        w13[:, :128] *= 4.0
        w13[..., 128:] *= 0.25
        names = ("w13", "w13_scale", "w2", "w2_scale")
        parts = (*fp8_block_ref.encode(w13), *fp8_block_ref.encode(w2))
        self.blocks = Fp8Experts(**{name: part.to(device) for name, part in zip(names, parts, strict=True)})

    def tokens(self, num_tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        x = 3 * torch.randn(num_tokens, self.dim, generator=self.generator)
        scores = torch.randn(num_tokens, NUM_EXPERTS - 1, generator=self.generator)  # the last expert stays idle
        gates, ids = scores.topk(TOPK)
        return x.to(self.device, dtype), ids.int().to(self.device), gates.softmax(-1).to(self.device)

    def run(
        self, x: Tensor, ids: Tensor, gates: Tensor, limit: float | None, factor: float | None = None,
        tile: Tile | None = None,
    ) -> Tensor:  # fmt: skip
        if self.kind == "bf16":
            return bf16_experts(x, *self.plain, ids, gates, limit, factor=factor, tile=tile)
        rounded = self.kind == "w8a8"
        return fp8_experts(x, self.blocks, ids, gates, limit, quantise_activations=rounded, factor=factor, tile=tile)

    def reference(self, x: Tensor, ids: Tensor, gates: Tensor, limit: float | None) -> Tensor:
        if self.kind == "bf16":
            return experts_ref(x, *self.plain, ids, gates, limit)
        rounded = self.kind == "w8a8"
        return fp8_experts_ref(x, self.blocks, ids, gates, limit, quantise_activations=rounded)


@pytest.mark.interpreter
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_fp32_tokens_equal_the_reference(kind: str, num_tokens: int, generator: torch.Generator, device: str) -> None:
    layer = Layer(kind, generator, device)
    x, ids, gates = layer.tokens(num_tokens)

    out = layer.run(x, ids, gates, 2.0)

    assert_close(out, layer.reference(x, ids, gates, 2.0), INTERPRETED[kind])


@pytest.mark.interpreter
@pytest.mark.parametrize("kind", KINDS)
def test_no_limit_all_tokens_on_one_expert_and_ids_that_are_no_expert(kind: str, device: str) -> None:
    layer = Layer(kind, torch.Generator().manual_seed(0), device)
    x, ids, gates = layer.tokens(11)
    ids[:] = 2
    assert_close(layer.run(x, ids, gates, None), layer.reference(x, ids, gates, None), INTERPRETED[kind])

    ids[::2, 0], ids[1::2, 1], ids[7] = -1, NUM_EXPERTS, -9

    assert_close(layer.run(x, ids, gates, None), layer.reference(x, ids, gates, None), INTERPRETED[kind])


@pytest.mark.interpreter
@pytest.mark.parametrize("kind", ["bf16", "w8a8"])
def test_the_factor_multiplies_once_and_a_nan_stays_in_its_token(kind: str, device: str) -> None:
    layer = Layer(kind, torch.Generator().manual_seed(0), device)
    x, ids, gates = layer.tokens(3)
    plain = layer.run(x, ids, gates, 10.0)
    x[1, 5] = float("nan")

    scaled = layer.run(x, ids, gates, 10.0, factor=2.0)

    assert torch.equal(scaled[::2], plain[::2] * 2.0)
    assert scaled[1].isnan().all()


@pytest.mark.interpreter
def test_tiles_beyond_the_first_group_of_eight_and_a_last_group_that_is_smaller(device: str) -> None:
    layer = Layer("bf16", torch.Generator().manual_seed(0), device, dim=48, hidden=24)
    x, ids, gates = layer.tokens(64)

    out = layer.run(x, ids, gates, 2.0, tile=Tile(block_t=16, block_r=32, num_warps=4, stages=2))

    assert_close(out, layer.reference(x, ids, gates, 2.0), "fp32")


@pytest.mark.interpreter
def test_quantising_the_activations_changes_the_result_by_what_e4m3_loses(device: str) -> None:
    x, ids, gates = Layer("w8a8", torch.Generator().manual_seed(0), device).tokens(1)

    w8a8, w8a16 = (
        Layer(kind, torch.Generator().manual_seed(0), device).run(x, ids, gates, 2.0) for kind in ("w8a8", "w8a16")
    )

    assert 0.01 < relative_error(w8a8, w8a16) < 0.1


@pytest.mark.interpreter
@pytest.mark.parametrize("kind", ["bf16", "w8a8"])
def test_bad_input_is_refused_before_launch(kind: str, device: str) -> None:
    layer = Layer(kind, torch.Generator().manual_seed(0), device)
    x, ids, gates = layer.tokens(4)

    with pytest.raises(DtypeError, match=r"tokens: torch\.float16, expected torch\.bfloat16 or torch\.float32"):
        layer.run(x.half(), ids, gates, None)
    with pytest.raises(ShapeError, match=r"tokens: \(4, 1, 144\), expected \[T, D\]"):
        layer.run(x[:, None], ids, gates, None)
    with pytest.raises(DtypeError, match="expert ids"):
        layer.run(x, ids.long(), gates, None)
    with pytest.raises(DtypeError, match="routing weights"):
        layer.run(x, ids, gates.half(), None)
    with pytest.raises(ShapeError, match="token width: 128, expected 144"):
        layer.run(x[:, :-16], ids, gates, None)
    with pytest.raises(ShapeError, match="routing"):
        layer.run(x, ids, gates[:, :-1], None)
    assert layer.run(x[:0], ids[:0], gates[:0], None).shape == (0, 144)


@pytest.mark.interpreter
def test_weights_that_do_not_fit_are_refused(device: str) -> None:
    layer = Layer("bf16", torch.Generator().manual_seed(0), device)
    x, ids, gates = layer.tokens(4)
    w13, w2 = layer.plain

    with pytest.raises(DtypeError, match=r"w13: torch\.float32, expected bfloat16"):
        bf16_experts(x, w13.float(), w2, ids, gates, None)
    with pytest.raises(ShapeError, match="strides of w2"):
        bf16_experts(x, w13, w2.transpose(1, 2), ids, gates, None)
    with pytest.raises(ShapeError, match=r"weights w13: \(5, 142, 144\), expected \(5, 144, 144\)"):
        bf16_experts(x, w13[:, 2:].contiguous(), w2, ids, gates, None)


def test_a_tile_follows_the_mean_number_of_rows_of_an_expert() -> None:
    means = (1, 20, 500)

    assert [choose_tile(256 * mean, 256, fp8=False, rounded=False).block_t for mean in means] == [16, 64, 128]
    assert [choose_tile(256 * mean, 256, fp8=True, rounded=True).block_t for mean in means] == [16, 64, 64]
    # What has to become bf16 first keeps the narrower tile for longer.
    assert [choose_tile(256 * 64, 256, fp8=fp8, rounded=False).block_t for fp8 in (False, True)] == [128, 64]
    portable = [choose_tile(256 * mean, 256, fp8=True, rounded=False, portable=True) for mean in means]
    assert {tile.block_r for tile in portable} == {64}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 3, 63, 129, 700])
@pytest.mark.parametrize(("dim", "hidden"), [(320, 176), (1024, 512)])
def test_bf16_tokens_stay_within_bf16_of_the_reference(
    kind: str, num_tokens: int, dim: int, hidden: int, generator: torch.Generator
) -> None:
    layer = Layer(kind, generator, "cuda", dim, hidden)
    x, ids, gates = layer.tokens(num_tokens, torch.bfloat16)

    out = layer.run(x, ids, gates, 2.0)

    assert out.dtype == torch.bfloat16
    assert_close(out, layer.reference(x, ids, gates, 2.0), ON_GPU[kind])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_too_all_on_one_expert_strays_and_nan(kind: str, generator: torch.Generator) -> None:
    layer = Layer(kind, generator, "cuda", 320, 176)
    x, ids, gates = layer.tokens(300, torch.bfloat16)
    ids[:] = NUM_EXPERTS - 1
    assert_close(layer.run(x, ids, gates, None), layer.reference(x, ids, gates, None), ON_GPU[kind])

    ids[::2, 0], ids[1::2, 1], ids[7] = -1, NUM_EXPERTS, -9
    x[4, 5] = float("nan")

    out, reference = layer.run(x, ids, gates, 2.0), layer.reference(x, ids, gates, 2.0)
    assert out[4].isnan().all()
    out[4], reference[4] = 0, 0
    assert_close(out, reference, ON_GPU[kind])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_input_gives_the_same_bits_and_one_tile_gives_them_in_any_batch(
    kind: str, generator: torch.Generator
) -> None:
    layer = Layer(kind, generator, "cuda", 320, 176)
    x, ids, gates = layer.tokens(129, torch.bfloat16)
    tile = Tile(block_t=16, block_r=128, num_warps=4, stages=4)
    first, fixed = layer.run(x, ids, gates, 10.0), layer.run(x, ids, gates, 10.0, tile=tile)

    for _ in range(3):
        assert torch.equal(layer.run(x, ids, gates, 10.0), first)
    for part in (slice(0, 1), slice(40, 57), slice(0, 128)):
        assert torch.equal(layer.run(x[part], ids[part], gates[part], 10.0, tile=tile), fixed[part])


@pytest.mark.gpu
def test_tensors_on_two_devices_are_refused(generator: torch.Generator) -> None:
    layer = Layer("bf16", generator, "cuda")
    x, ids, gates = layer.tokens(4)

    with pytest.raises(DeviceError, match="one device"):
        layer.run(x.cpu(), ids, gates, None)
