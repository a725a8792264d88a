from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import hyper, hyper_mix
from kernels.errors import DtypeError, ShapeError
from kernels.hyper_mix import Precision, parts_of, premix
from kernels.hyper_ref import premix_ref
from kernels.hyper_site_ref import read_ref, write_ref
from tests.numerics import assert_close, poisoned, relative_error

EPS = 1e-6


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a launcher allocates is NaN until a kernel writes it."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device) -> Tensor:
        return poisoned(*shape, dtype=dtype, device=str(device))

    monkeypatch.setattr(torch, "empty", empty)


def draw(
    generator: torch.Generator, device: str, *lead: int, streams: int = 4, dim: int = 32, mixes: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Streams, layer output, fn, base and scale, fp32."""
    mixes = (2 + streams) * streams if mixes is None else mixes
    x = 3 * torch.randn(*lead, streams, dim, generator=generator)
    output = torch.randn(*lead, dim, generator=generator)
    fn = torch.randn(mixes, streams * dim, generator=generator) * (streams * dim) ** -0.5
    base, scale = torch.randn(mixes, generator=generator), torch.tensor([0.5, 0.7, 1.3])
    return x.to(device), output.to(device), fn.to(device), base.to(device), scale.to(device)


def exact_z(streams: Tensor, fn: Tensor) -> Tensor:
    flat = streams.double().flatten(-2)
    return flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + EPS) @ fn.double().T


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("tokens", "streams", "dim", "mixes"), [(1, 4, 160, 24), (3, 2, 16, 8), (65, 4, 16, 24), (2, 4, 144, 4)]
)
def test_mixing_numbers_equal_the_reference(
    dtype: torch.dtype, tokens: int, streams: int, dim: int, mixes: int, generator: torch.Generator, device: str
) -> None:
    x, _, fn, _, _ = draw(generator, device, tokens, streams=streams, dim=dim, mixes=mixes)

    z = premix(x.to(dtype), fn, EPS)

    assert_close(z, premix_ref(x.to(dtype), fn, EPS), "fp32" if device == "cpu" else "fp32_tensor_core")


@pytest.mark.interpreter
def test_three_bf16_parts_keep_every_bit_of_fn(device: str) -> None:
    # One stream number is 1, all others are 0: z is a column of fn, times the root of K.
    fn = torch.tensor([1 + 2.0**-23, 1 - 2.0**-24, -3.0e-5 * (1 + 2.0**-20), 7.0]).to(device)[:, None].repeat(1, 64)
    x = torch.zeros(1, 4, 16, dtype=torch.bfloat16, device=device)
    x[0, 1, 3] = 1

    z = premix(x, fn, 1e-30, "bf16x3")

    # Two parts would keep 16 bits of 24; what is allowed is the last bit of the root.
    assert ((z[0] / 8 - fn[:, 0]) / fn[:, 0]).abs().max() <= 2.0**-22
    assert torch.equal(parts_of(fn).double().sum(0), fn.double())


@pytest.mark.interpreter
def test_parts_made_ahead_and_parts_made_in_the_call_give_the_same_bits(
    generator: torch.Generator, device: str
) -> None:
    x, _, fn, _, _ = draw(generator, device, 3)

    z = premix(x.bfloat16(), parts_of(fn), EPS)

    assert torch.equal(z, premix(x.bfloat16(), fn, EPS))


@pytest.mark.interpreter
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_a_precision_may_be_named(precision: Precision, generator: torch.Generator, device: str) -> None:
    x, _, fn, _, _ = draw(generator, device, 3)

    for streams in (x, x.bfloat16()):
        assert_close(premix(streams, fn, EPS, precision), exact_z(streams, fn), precision)


@pytest.mark.interpreter
def test_a_token_alone_or_among_others_gets_the_same_bits(generator: torch.Generator, device: str) -> None:
    x, _, fn, _, _ = draw(generator, device, 67)

    z = premix(x, fn, EPS)

    for token in (0, 66):
        assert torch.equal(premix(x[token : token + 1], fn, EPS), z[token : token + 1])


@pytest.mark.interpreter
@pytest.mark.parametrize("dim", [1024, 1040, 32], ids=["two_groups", "a_slice_and_a_bit_more", "a_quarter_of_a_slice"])
def test_a_program_of_a_whole_group_gives_the_bits_of_programs_of_one_slice(
    dim: int, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator, device: str
) -> None:
    x, _, fn, _, _ = draw(generator, device, 5, dim=dim)
    x, parts = x.bfloat16(), parts_of(fn)
    slices = premix(x, parts, EPS)
    monkeypatch.setattr(hyper_mix, "WHOLE_FROM_TOKENS", 5)
    monkeypatch.setattr(hyper_mix, "WIDE_FROM_TOKENS", 5)

    groups = premix(x, parts, EPS)

    assert torch.equal(groups, slices)
    assert_close(groups, exact_z(x, fn), "fp32" if device == "cpu" else "fp32_tensor_core")


@pytest.mark.interpreter
def test_more_groups_than_are_added_at_once_are_added_in_turn(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator, device: str
) -> None:
    x, _, fn, _, _ = draw(generator, device, 2, dim=1552)
    z = premix(x, fn, EPS)
    monkeypatch.setattr(hyper_mix, "MOST_GROUPS_AT_ONCE", 3)

    assert torch.equal(premix(x, fn, EPS), z)


@pytest.mark.interpreter
@pytest.mark.parametrize(("streams", "dim", "iters"), [(4, 32, 20), (2, 48, 1), (4, 1040, 2)])
def test_a_site_reads_and_writes_as_the_reference(
    streams: int, dim: int, iters: int, generator: torch.Generator, device: str
) -> None:
    x, output, fn, base, scale = draw(generator, device, 2, 1, streams=streams, dim=dim)
    z = premix_ref(x, fn, EPS)

    read, write = hyper.read(x, z, base, scale, EPS), hyper.write(x, output, z, base, scale, iters, EPS)

    assert_close(read, read_ref(x, z, base, scale, EPS), "fp32")
    assert_close(write, write_ref(x, output, z, base, scale, iters, EPS), "fp32")


@pytest.mark.interpreter
def test_one_program_takes_several_blocks_of_a_token_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator, device: str
) -> None:
    monkeypatch.setattr(hyper, "BLOCK_D", 16)
    monkeypatch.setattr(hyper, "WIDE_FROM_TOKENS", 3)
    x, output, fn, base, scale = draw(generator, device, 3, dim=80)
    z = premix_ref(x, fn, EPS)

    write = hyper.write(x, output, z, base, scale, 2, EPS)

    assert torch.equal(write[:1], hyper.write(x[:1], output[:1], z[:1], base, scale, 2, EPS))
    assert_close(write, write_ref(x, output, z, base, scale, 2, EPS), "fp32")


@pytest.mark.interpreter
def test_the_positions_that_go_on_are_read_in_place_and_the_head_only_reads(
    generator: torch.Generator, device: str
) -> None:
    x, _, fn, base, scale = draw(generator, device, 2, 5, mixes=4)
    last = x[:, -1:]

    z = premix(last, fn, EPS)

    assert_close(z, premix_ref(last, fn, EPS), "fp32")
    assert_close(hyper.read(last, z, base, scale[:1], EPS), read_ref(last, z, base, scale[:1], EPS), "fp32")


@pytest.mark.interpreter
def test_streams_in_bf16_stay_in_bf16(generator: torch.Generator, device: str) -> None:
    x, output, fn, base, scale = draw(generator, device, 3)
    x, output = x.bfloat16(), output.bfloat16()
    z = premix_ref(x, fn, EPS)

    read, write = hyper.read(x, z, base, scale, EPS), hyper.write(x, output, z, base, scale, 4, EPS)

    # The interpreter cuts off where a GPU rounds to the nearest.
    assert read.dtype == write.dtype == torch.bfloat16
    assert relative_error(read, read_ref(x, z, base, scale, EPS)) < 2.0**-7
    assert relative_error(write, write_ref(x, output, z, base, scale, 4, EPS)) < 2.0**-7


@pytest.mark.interpreter
def test_no_tokens_are_no_launch(device: str) -> None:
    x, z, base, scale = (torch.zeros(*shape, device=device) for shape in ((0, 2, 4, 32), (0, 2, 24), (24,), (3,)))

    assert premix(x, torch.zeros(24, 128, device=device), EPS).shape == (0, 2, 24)
    assert hyper.read(x, z, base, scale, EPS).shape == (0, 2, 32)
    assert hyper.write(x, x[:, :, 0], z, base, scale, 20, EPS).shape == (0, 2, 4, 32)


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(generator: torch.Generator, device: str) -> None:
    x, output, fn, base, scale = draw(generator, device, 3)
    z = torch.zeros(3, 24, device=device)

    with pytest.raises(DtypeError, match="float16"):
        premix(x.half(), fn, EPS)
    with pytest.raises(DtypeError, match="bf16x3"):
        premix(x, fn, EPS, "bf16x3")
    with pytest.raises(DtypeError, match="matrix"):
        premix(x, fn.bfloat16(), EPS)
    with pytest.raises(DtypeError, match="matrix"):
        premix(x, parts_of(fn), EPS)
    with pytest.raises(DtypeError, match="matrix"):
        premix(x.bfloat16(), parts_of(fn), EPS, "tf32")
    with pytest.raises(ShapeError, match=r"matrix: \(24, 128\), expected \(3, 24, 128\)"):
        premix(x.bfloat16(), fn.bfloat16(), EPS)
    with pytest.raises(ShapeError, match=r"matrix: \(24, 64\), expected \(24, 128\)"):
        premix(x, fn[:, :64].contiguous(), EPS)
    with pytest.raises(ShapeError, match="strides of streams"):
        premix(x.transpose(-1, -2).contiguous().transpose(-1, -2), fn, EPS)
    with pytest.raises(ShapeError, match="streams of a token: 3"):
        premix(x[:, :3], fn, EPS)
    with pytest.raises(ShapeError, match="multiple of 16"):
        premix(x[..., :24].contiguous(), fn, EPS)
    with pytest.raises(ShapeError, match="mixing numbers: 23"):
        hyper.read(x, z[:, :23], base, scale, EPS)
    with pytest.raises(ShapeError, match="mixing numbers z"):
        hyper.read(x, z[:2], base, scale, EPS)
    with pytest.raises(DtypeError, match="base"):
        hyper.read(x, z, base.double(), scale, EPS)
    with pytest.raises(ShapeError, match="layer output"):
        hyper.write(x, output[:2], z, base, scale, 20, EPS)
    with pytest.raises(ShapeError, match="scales"):
        hyper.write(x, output, z, base, scale[:1], 20, EPS)
    with pytest.raises(ShapeError, match="iterations: 0"):
        hyper.write(x, output, z, base, scale, 0, EPS)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 3, 63, 129, 1025, 4096])
@pytest.mark.parametrize("dim", [4096, 7168])
def test_production_streams_are_mixed_within_their_precision_and_repeatably(
    tokens: int, dim: int, generator: torch.Generator
) -> None:
    x, _, fn, _, _ = draw(generator, "cuda", tokens, dim=dim)
    streams = x.bfloat16()
    expected = exact_z(streams, fn)

    z = premix(streams, fn, EPS)

    assert_close(z, expected, "fp32_tensor_core")
    assert torch.equal(z, premix(streams, fn, EPS))
    assert_close(premix(streams, fn, EPS, "tf32"), expected, "tf32")
    assert_close(premix(streams, fn, EPS, "fp32"), expected, "fp32")


@pytest.mark.gpu
def test_a_token_has_the_same_bits_in_a_decode_and_in_a_prefill(generator: torch.Generator) -> None:
    x, output, fn, base, scale = draw(generator, "cuda", 4097, dim=4096)
    x, output, parts = x.bfloat16(), output.bfloat16(), parts_of(fn)
    assert len(x) >= max(hyper_mix.WHOLE_FROM_TOKENS, hyper_mix.WIDE_FROM_TOKENS, hyper.WIDE_FROM_TOKENS)
    z = premix(x, parts, EPS)
    write = hyper.write(x, output, z, base, scale, 20, EPS)

    ends = (slice(0, 1), slice(0, 63), slice(0, 64), slice(0, 1024), slice(1000, 1064), slice(4096, 4097))
    for some in ends:
        assert torch.equal(premix(x[some], parts, EPS), z[some])
        assert torch.equal(hyper.write(x[some], output[some], z[some], base, scale, 20, EPS), write[some])


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 63, 129, 4096])
@pytest.mark.parametrize("dim", [4096, 7168])
def test_production_streams_are_read_and_written_within_one_rounding(
    tokens: int, dim: int, generator: torch.Generator
) -> None:
    x, output, fn, base, scale = draw(generator, "cuda", tokens, dim=dim)
    x, output = x.bfloat16(), output.bfloat16()
    z = premix_ref(x, fn, EPS)

    read, write = hyper.read(x, z, base, scale, EPS), hyper.write(x, output, z, base, scale, 20, EPS)

    assert_close(read, read_ref(x.float(), z, base, scale, EPS), "bf16_key")
    assert_close(write, write_ref(x.float(), output, z, base, scale, 20, EPS), "bf16_key")
    assert torch.equal(write, hyper.write(x, output, z, base, scale, 20, EPS))
