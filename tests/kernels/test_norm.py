from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.errors import DeviceError, DtypeError, ShapeError
from kernels.norm import norm, rotate
from kernels.norm_ref import norm_ref, rotate_ref
from tests.numerics import assert_close, poisoned

EPS = 1e-6
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a launcher allocates is NaN until a kernel writes it."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device) -> Tensor:
        return poisoned(*shape, dtype=dtype, device=str(device))

    monkeypatch.setattr(torch, "empty", empty)


def draw(generator: torch.Generator, device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (3 * torch.randn(*shape, generator=generator)).to(dtype).to(device)


def draw_turns(generator: torch.Generator, device: str, *shape: int) -> Tensor:
    angle = 6.3 * torch.rand(*shape, generator=generator)
    return torch.complex(angle.cos(), angle.sin()).to(device)


def as_rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 as a kernel rounds it to `dtype`, in fp32: the interpreter cuts off where a GPU rounds to the nearest."""
    if dtype == torch.float32 or not x.is_cpu:
        return x.to(dtype).float()
    return (x.contiguous().view(torch.int32) & -65536).view(torch.float32)


def assert_rounded_alike(
    out: Tensor, x: Tensor, weight: Tensor | None, turns: Tensor | None, rows: slice = slice(None)
) -> None:
    """fp32 within the order of a sum; in bf16 nearly every number has the bits of the reference's two roundings."""
    expected = as_rounded(norm_ref(x.float(), EPS, weight), x.dtype)
    if turns is not None:
        expected = as_rounded(rotate_ref(expected, turns), x.dtype)
    assert out.dtype == x.dtype
    if x.dtype == torch.float32:
        assert_close(out[rows], expected[rows], "fp32")
        return
    assert_close(out[rows], expected[rows], "bf16_key")
    # Without the rounding between norm and rotation a third of the rotated channels would differ.
    assert (out.float() != expected)[rows].sum() <= 1 + 0.01 * out[rows].numel()


@pytest.mark.interpreter
@DTYPES
@pytest.mark.parametrize(
    ("rows", "width", "pairs", "weighed"),
    [
        (1, 4096, 0, True),
        (3, 16, 8, True),
        (3, 512, 0, False),
        (63, 48, 8, False),
        (63, 192, 32, True),
        (129, 128, 32, True),
        (129, 512, 32, False),
        (1, 1040, 8, True),
    ],
)
def test_rows_are_normalised_weighed_and_rotated_with_the_roundings_of_the_reference(
    rows: int,
    width: int,
    pairs: int,
    weighed: bool,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: str,
) -> None:
    x = draw(generator, device, rows, width, dtype=dtype)
    weight = draw(generator, device, width) if weighed else None
    turns = draw_turns(generator, device, rows, pairs) if pairs else None

    assert_rounded_alike(norm(x, EPS, weight, turns), x, weight, turns)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("lead", "own"),
    [
        ((2, 3, 5), (1, 3, 1)),
        ((2, 3, 5), (2, 3, 1)),
        ((2, 3, 5), (3, 1)),
        ((2, 1, 5), (1, 1, 1)),
        ((2, 3, 5), (2, 3, 5)),
        ((2, 3), (3,)),
        ((5,), ()),
        ((), ()),
    ],
)
def test_sequences_and_heads_may_share_their_turns(
    lead: tuple[int, ...], own: tuple[int, ...], generator: torch.Generator, device: str
) -> None:
    x, turns = draw(generator, device, *lead, 32), draw_turns(generator, device, *own, 8)

    turned = norm(x, EPS, turns=turns)

    assert_close(turned, norm_ref(x, EPS, turns=turns), "fp32")
    # Back again, by turns that are conjugate without having been written so.
    assert_close(rotate(turned, turns.conj()), norm_ref(x, EPS), "fp32")


@pytest.mark.interpreter
@DTYPES
def test_a_rotation_alone_works_in_place_and_leaves_the_other_channels(
    dtype: torch.dtype, generator: torch.Generator, device: str
) -> None:
    x, turns = draw(generator, device, 2, 3, 35, 48, dtype=dtype), draw_turns(generator, device, 1, 3, 1, 8)
    expected = as_rounded(rotate_ref(x.float(), turns), dtype)
    given = x.clone()

    rotated = rotate(x, turns)

    assert rotated is x
    assert torch.equal(x[..., :32], given[..., :32])
    assert_close(x, expected, "fp32" if dtype == torch.float32 else "bf16_key")


@pytest.mark.interpreter
def test_rows_of_a_wider_product_and_every_fourth_turn_are_read_where_they_lie(
    generator: torch.Generator, device: str
) -> None:
    product, table = draw(generator, device, 2, 3, 200), draw_turns(generator, device, 12, 8)
    x = product[..., 48:112]

    out = norm(x, EPS, turns=table[::4])

    assert out.is_contiguous()
    assert_close(out, norm_ref(x, EPS, turns=table[::4]), "fp32")


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning")
def test_eps_counts_and_rows_of_zeros_nan_and_infinity_come_out_as_of_the_reference(
    generator: torch.Generator, device: str
) -> None:
    x, turns = draw(generator, device, 6, 48), draw_turns(generator, device, 6, 8)
    x[0], x[1, 3], x[2, 45], x[3, 3], x[4, 45] = 0, torch.nan, torch.nan, torch.inf, -torch.inf

    for eps in (EPS, 0.25, 0.0):
        for given in (None, turns):
            out, expected = norm(x, eps, None, given), norm_ref(x, eps, None, given)

            torch.testing.assert_close(out, expected, equal_nan=True)
    assert not norm(x, EPS)[0].any()


@pytest.mark.interpreter
def test_a_row_alone_or_among_others_gets_the_same_bits(generator: torch.Generator, device: str) -> None:
    for width in (64, 512, 4096):
        x, turns = draw(generator, device, 9, width), draw_turns(generator, device, 9, 8)

        out = norm(x, EPS, turns=turns)

        for row in (0, 5, 8):
            some = slice(row, row + 1)
            assert torch.equal(norm(x[some], EPS, turns=turns[some]), out[some])


@pytest.mark.interpreter
def test_no_rows_are_no_launch(device: str) -> None:
    x, turns = torch.zeros(2, 0, 4, 32, device=device), torch.zeros(0, 1, 8, dtype=torch.complex64, device=device)

    assert norm(x, EPS, turns=turns).shape == x.shape
    assert rotate(x, turns) is x


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(generator: torch.Generator, device: str) -> None:
    x, turns = draw(generator, device, 2, 3, 32), draw_turns(generator, device, 2, 3, 8)
    weight = torch.ones(32, device=device)

    with pytest.raises(DtypeError, match=r"rows of a norm: torch\.float16"):
        norm(x.half(), EPS)
    with pytest.raises(ShapeError, match=r"width of a norm: \(1, 8193\)"):
        norm(torch.zeros(1, 8193, device=device), EPS)
    with pytest.raises(ShapeError, match="strides of a norm's rows"):
        norm(x.mT, EPS)
    with pytest.raises(DtypeError, match="weight of a norm"):
        norm(x, EPS, weight.bfloat16())
    with pytest.raises(ShapeError, match=r"weight of a norm: \(31,\), expected \(32,\)"):
        norm(x, EPS, weight[:31])
    with pytest.raises(ShapeError, match="stride of a norm's weight: 2"):
        norm(x, EPS, torch.ones(64, device=device)[::2])
    with pytest.raises(DtypeError, match="turns"):
        norm(x, EPS, turns=turns.real)
    for wrong in (turns[:, :2], turns[:1, :, :0], draw_turns(generator, device, 2, 3, 17), turns[None]):
        with pytest.raises(ShapeError, match="turns"):
            norm(x, EPS, turns=wrong)
    with pytest.raises(ShapeError, match="turns"):
        rotate(draw(generator, device, 2, 3, 4, 32), draw_turns(generator, device, 2, 1, 4, 8))
    with pytest.raises(ShapeError, match="in place"):
        rotate(x[:, ::2], turns[:, ::2])
    with pytest.raises(DeviceError, match="expected one device"):
        norm(x, EPS, weight.to("meta"))


@pytest.mark.interpreter
def test_dispatch_says_what_it_picked_and_launched(generator: torch.Generator, device: str) -> None:
    choices: list[dispatch.Choice] = []
    x, turns = draw(generator, device, 3, 32), draw_turns(generator, device, 3, 8)

    for requested in ("reference", "triton"):
        dispatch.norm(x, EPS, turns=turns, requested=requested, record=choices.append)
        dispatch.rotate(x.clone(), turns, requested=requested, record=choices.append)

    assert [(choice.op, choice.file) for choice in choices] == [
        ("norm", "kernels/norm_ref.py"),
        ("rotate", "kernels/norm_ref.py"),
        ("norm", "kernels/norm.py"),
        ("rotate", "kernels/norm.py"),
    ]
    launches = [launch for choice in choices for launch in choice.launches]
    assert [(launch.name, launch.constants["NORM"]) for launch in launches] == [("_norm", True), ("_norm", False)]


def test_on_a_cpu_dispatch_gives_the_bits_of_the_reference(generator: torch.Generator) -> None:
    x, turns = draw(generator, "cpu", 3, 32), draw_turns(generator, "cpu", 3, 8)

    assert torch.equal(dispatch.norm(x, EPS, turns=turns), norm_ref(x, EPS, turns=turns))
    assert torch.equal(dispatch.rotate(x.clone(), turns), rotate_ref(x.clone(), turns))


@pytest.mark.gpu
@DTYPES
@pytest.mark.parametrize("tokens", [1, 3, 63, 129, 4096])
@pytest.mark.parametrize(
    ("heads", "width", "pairs", "weighed"),
    [(0, 4096, 0, True), (0, 7168, 0, True), (0, 1536, 0, True), (0, 512, 32, True), (64, 512, 32, False)],
)
def test_production_rows_are_normalised_and_rotated_repeatably(
    tokens: int,
    heads: int,
    width: int,
    pairs: int,
    weighed: bool,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    lead = (tokens, heads) if heads else (tokens,)
    x = draw(generator, "cuda", *lead, width, dtype=dtype)
    weight = draw(generator, "cuda", width) if weighed else None
    turns = draw_turns(generator, "cuda", *((tokens, 1) if heads else (tokens,)), pairs) if pairs else None

    out = norm(x, EPS, weight, turns)

    assert_rounded_alike(out, x, weight, turns)
    assert torch.equal(out, norm(x, EPS, weight, turns))


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_a_decode_and_in_a_prefill(generator: torch.Generator) -> None:
    for width in (128, 512, 1536, 4096):
        x = draw(generator, "cuda", 4097, width, dtype=torch.bfloat16)
        weight, turns = draw(generator, "cuda", width), draw_turns(generator, "cuda", 4097, 32)
        wider = torch.cat((x, x), -1)[:, width:]
        out = norm(x, EPS, weight, turns)

        assert torch.equal(norm(wider, EPS, weight, turns), out)
        for some in (slice(0, 1), slice(7, 70), slice(0, 1024), slice(4096, 4097)):
            assert torch.equal(norm(x[some], EPS, weight, turns[some]), out[some])


@pytest.mark.gpu
@DTYPES
def test_index_queries_of_a_prefill_are_rotated_in_place(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = draw(generator, "cuda", 2, 1025, 64, 128, dtype=dtype)
    turns = draw_turns(generator, "cuda", 1, 1025, 1, 32)
    given = x.clone()

    rotate(x, turns)

    expected = rotate_ref(given.clone(), turns)
    assert torch.equal(x[..., :64], given[..., :64])
    assert_close(x, expected, "fp32" if dtype == torch.float32 else "bf16_key")
    if dtype == torch.bfloat16:
        assert (x != expected).sum() <= 1e-3 * x.numel()
