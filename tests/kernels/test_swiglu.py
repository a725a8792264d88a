from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels import swiglu as module
from kernels.errors import DtypeError, NumericsError, ShapeError
from kernels.experts_ref import swiglu_ref
from kernels.swiglu import swiglu
from tests.numerics import poisoned, relative_error

LIMIT = 10.0
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a launcher allocates is NaN until a kernel writes it."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device) -> Tensor:
        return poisoned(*shape, dtype=dtype, device=str(device))

    monkeypatch.setattr(torch, "empty", empty)


def draw(generator: torch.Generator, device: str, tokens: int, hidden: int, dtype: torch.dtype) -> Tensor:
    """Gate and up numbers of which one in eight lies beyond the limit."""
    return (6.5 * torch.randn(tokens, 2 * hidden, generator=generator)).to(device, dtype)


def units_apart(out: Tensor, ref: Tensor) -> int:
    """The most units in the last place of bf16 between two numbers of the same place."""
    bits = torch.stack((out, ref)).view(torch.int16).int()
    places = torch.where(bits < 0, -(bits & 0x7FFF), bits)
    return int((places[0] - places[1]).abs().max())


def assert_as_the_reference(out: Tensor, gate_up: Tensor, limit: float | None) -> None:
    """On the device of `gate_up`, and on a CPU, whose exponential is another."""
    for ref in (swiglu_ref(gate_up, limit), swiglu_ref(gate_up.cpu(), limit)):
        assert (out.dtype, out.shape) == (ref.dtype, ref.shape)
        if out.dtype == torch.bfloat16:
            assert units_apart(out.cpu(), ref.cpu()) <= 1
        assert relative_error(out, ref) < (1e-3 if out.dtype == torch.bfloat16 else 1e-6)


@pytest.mark.interpreter
@DTYPES
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 16), (1, 2056), (3, 2056), (63, 48), (129, 16)])
def test_the_activation_is_that_of_the_reference(
    tokens: int, hidden: int, dtype: torch.dtype, generator: torch.Generator, device: str
) -> None:
    gate_up = draw(generator, device, tokens, hidden, dtype)

    for limit in (LIMIT, None):
        assert_as_the_reference(swiglu(gate_up, limit), gate_up, limit)


@pytest.mark.interpreter
def test_rows_may_lie_apart(generator: torch.Generator, device: str) -> None:
    wide = draw(generator, device, 3, 40, torch.float32)

    assert torch.equal(swiglu(wide[:, 16:], LIMIT), swiglu(wide[:, 16:].contiguous(), LIMIT))


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@DTYPES
@pytest.mark.parametrize("limit", [LIMIT, 0.5, None])
def test_what_is_no_number_or_infinite_stays_as_in_the_reference(
    limit: float | None, dtype: torch.dtype, device: str
) -> None:
    some = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.5, -1.5, 11.0, -11.0, 88.5, -88.5, -3e38, 3e38])
    pairs = torch.cartesian_prod(some, some).T.flatten()[None].to(device, dtype)

    out, ref = swiglu(pairs, limit), swiglu_ref(pairs, limit)

    assert torch.equal(out.isnan(), ref.isnan())
    assert 13 < int(out.isnan().sum()) < 80
    infinite = out.isinf()
    assert torch.equal(infinite, ref.isinf())
    assert torch.equal(out[infinite], ref[infinite])
    finite = out.isfinite()
    assert relative_error(out[finite], ref[finite]) < 1e-6


@pytest.mark.interpreter
def test_the_limit_holds_gate_from_above_and_up_on_both_sides(device: str) -> None:
    gate_up = torch.tensor([[50.0, 2.0, 2.0, -50.0, 3.0, 50.0, -50.0, 3.0]], device=device)

    found = swiglu(gate_up, 4.0)

    silu = torch.nn.functional.silu(torch.tensor([4.0, 2.0, 2.0, -50.0]))
    torch.testing.assert_close(found[0].cpu(), silu * torch.tensor([3.0, 4.0, -4.0, 3.0]))


@pytest.mark.interpreter
@pytest.mark.parametrize("shape", [(0, 32), (3, 0)])
def test_nothing_is_no_launch(shape: tuple[int, int], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "launch", None)

    assert swiglu(torch.zeros(shape, device=device), LIMIT).shape == (shape[0], shape[1] // 2)


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(device: str) -> None:
    rows = torch.zeros(3, 32, device=device)

    with pytest.raises(DtypeError, match=r"gate and up: torch\.float16, expected bf16 or fp32"):
        swiglu(rows.half(), LIMIT)
    with pytest.raises(ShapeError, match=r"gate and up: \(3, 31\)"):
        swiglu(rows[:, 1:], LIMIT)
    with pytest.raises(ShapeError, match=r"gate and up: \(1, 3, 32\)"):
        swiglu(rows[None], LIMIT)
    with pytest.raises(ShapeError, match=r"strides of gate and up: \(1, 3\)"):
        swiglu(torch.zeros(32, 3, device=device).T, LIMIT)
    for limit in (-1.0, float("nan")):
        with pytest.raises(NumericsError, match="swiglu_limit"):
            swiglu(rows, limit)


@pytest.mark.interpreter
def test_a_pick_names_the_kernel_that_ran(device: str, generator: torch.Generator) -> None:
    choices: list[dispatch.Choice] = []
    gate_up = draw(generator, device, 3, 48, torch.float32)

    for requested in ("triton", "reference"):
        dispatch.swiglu(gate_up, LIMIT, requested=requested, record=choices.append)

    assert [(choice.op, choice.file) for choice in choices] == [
        ("swiglu", "kernels/swiglu.py"),
        ("swiglu", "kernels/experts_ref.py"),
    ]
    assert [[launch.name for launch in choice.launches] for choice in choices] == [["_swiglu"], []]


@DTYPES
def test_on_a_cpu_auto_gives_the_bits_of_fp32_rounded_once(dtype: torch.dtype, generator: torch.Generator) -> None:
    gate_up = draw(generator, "cpu", 5, 48, dtype)

    found = dispatch.swiglu(gate_up, LIMIT)

    assert torch.equal(found, swiglu_ref(gate_up.float(), LIMIT).to(dtype))


@pytest.mark.gpu
@DTYPES
@pytest.mark.parametrize("tokens", [1, 63, 4096])
@pytest.mark.parametrize("hidden", [2048, 2056, 1041])
def test_a_gpu_gives_the_bits_that_torch_gives_there(
    tokens: int, hidden: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    gate_up = draw(generator, "cuda", tokens, hidden, dtype)

    for limit in (LIMIT, None):
        out = swiglu(gate_up, limit)
        assert_as_the_reference(out[:64], gate_up[:64], limit)
        assert torch.equal(out, swiglu_ref(gate_up, limit))
        assert torch.equal(out, swiglu(gate_up, limit))
