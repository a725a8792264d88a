from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import dispatch, nvfp4, nvfp4_amax, nvfp4_codes, nvfp4_encode, nvfp4_ref
from kernels.errors import DtypeError, NumericsError, ShapeError
from kernels.launch import heard

E4M3_NUMBERS = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
# Fp32 weights are plain up to a global scale of 2^-9, so that the first of these takes the short arithmetic.
TWO_ARITHMETICS = (2.0**-10, 1.0)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "swizzled": {"swizzled": True},
    "four over six": {"four_over_six": True},
    "given": {"global_scale": torch.tensor(3e-5)},  # smaller than the weights want, so some saturate
    "all": {"four_over_six": True, "swizzled": True, "global_scale": torch.tensor(2e-4)},
}


@pytest.fixture(autouse=True)
def _poison_every_allocation() -> Iterator[None]:
    """torch.empty gives NaN and the largest integers in here."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def raw(tensor: Tensor) -> Tensor:
    """A tensor's bytes, so that -0 is not 0 and NaN equals itself."""
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).cpu()


def assert_same_bytes(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for name, ours, theirs in zip(("codes", "block scales", "global scale"), got, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        differing = int((raw(ours) != raw(theirs)).sum())
        assert differing == 0, f"{differing} of {raw(ours).numel()} bytes of the {name} differ"


def assert_encodes_as_the_reference(w_NK: Tensor, device: str, **options: Any) -> None:
    if (given := options.get("global_scale")) is not None:
        options["global_scale"] = given.to(device)
    got = nvfp4_encode.encode(w_NK.to(device), **options)
    assert_same_bytes(got, nvfp4_ref.encode(w_NK.to(device), **options))


def with_zeros_and_outliers(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    w_NK = torch.randn(shape, generator=generator) * 0.02
    w_NK.view(-1)[::333] = 3.0
    w_NK[..., 0, :] = 0.0
    w_NK[..., -1, ::2] = -0.0
    return w_NK


def every_block_scale(spread: int) -> Tensor:
    """Blocks whose scale, at a global scale of 1, is each e4m3 number and midpoint, and `spread` floats around them."""
    midpoints = (E4M3_NUMBERS[1:] + E4M3_NUMBERS[:-1]) / 2
    exact = 6 * torch.cat((E4M3_NUMBERS, midpoints, torch.tensor([2.0**-11, 2.0**-10, 448, 900])))
    around = exact.view(torch.int32)[:, None] + torch.arange(-spread, spread + 1)
    w_NK = torch.zeros(around.numel(), 16)
    w_NK[:, 5] = around.int().view(torch.float32).flatten()
    return w_NK


def next_to_every_boundary(global_scale_E: Tensor, numbers_N: Tensor = E4M3_NUMBERS) -> Tensor:
    """[E, 2 N, 16]: under every block scale two blocks of the boundaries between codes and a neighbour of each."""
    step_EN = global_scale_E[:, None] * numbers_N.to(global_scale_E.device).repeat(2)
    edges_ENC = step_EN[..., None] * torch.tensor(nvfp4_ref.E2M1_EDGES, device=global_scale_E.device)
    w_ENK = torch.cat((6 * step_EN[..., None], -edges_ENC, torch.zeros_like(step_EN[..., None]), edges_ENC), -1)
    bits_ENK = w_ENK.view(torch.int32)
    bits_ENK[:, : len(numbers_N), 9:] += 1
    bits_ENK[:, len(numbers_N) :, 9:] -= 1
    return w_ENK


def prefers_four(w_NK: Tensor, global_scale: Tensor) -> Tensor:
    """Which rows of one block the reference encodes with 4 as the largest code, [N]."""
    _, scale_N1, _ = nvfp4_ref.encode(w_NK, four_over_six=True, global_scale=global_scale)
    return scale_N1[:, 0].float() != nvfp4_ref.encode(w_NK, global_scale=global_scale)[1][:, 0].float()


def next_to_equal_errors(global_scale: Tensor, generator: torch.Generator) -> Tensor:
    """[N, 16]: blocks whose fourth weight is where the reference's choice of a scale changes, and floats around it."""
    w_NK = torch.randn(256, 16, generator=generator) * global_scale * 400
    w_NK[:, 0] = w_NK.abs().amax(-1)
    low_N, high_N = torch.zeros(256, dtype=torch.int32), w_NK[:, 0].clone().view(torch.int32)
    w_NK[:, 3] = 0.0
    at_low_N = prefers_four(w_NK, global_scale)
    for _ in range(32):
        middle_N = low_N + (high_N - low_N) // 2
        w_NK[:, 3] = middle_N.view(torch.float32)
        as_low_N = prefers_four(w_NK, global_scale) == at_low_N
        low_N, high_N = torch.where(as_low_N, middle_N, low_N), torch.where(as_low_N, high_N, middle_N)
    around_NC = low_N[:, None] + torch.tensor([-300, -30, -3, 0, 1, 4, 31, 301])
    w_NCK = w_NK[:, None].repeat(1, around_NC.shape[1], 1)
    w_NCK[..., 3] = around_NC.int().view(torch.float32)
    return w_NCK.flatten(0, 1)


def smallest_under_the_largest_steps(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The smallest weights beside a large one, under the largest global scale that leaves them plain and twice that."""
    global_scale_E = torch.tensor([1.0, 2.0]) * (2.0**7 if dtype == torch.bfloat16 else 2.0**-9)
    w_ENK = torch.full((2, 3, 16), -(2.0**-133) if dtype == torch.bfloat16 else -(2.0**-149))
    w_ENK[..., 0] = 6 * 448 * global_scale_E[:, None]
    return w_ENK.to(dtype), global_scale_E


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("global_scale", [0.25, 0.0123, 1e-38])
def test_every_code_with_every_scale_byte_decodes_bit_for_bit(
    dtype: torch.dtype, global_scale: float, device: str
) -> None:
    codes = nvfp4_ref.pack(torch.arange(16, dtype=torch.uint8)).expand(127, 8).contiguous()
    scale = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)[:, None]
    parts = [part.to(device) for part in (codes, scale, torch.tensor(global_scale))]

    decoded = nvfp4.decode(*parts, dtype=dtype)

    assert torch.equal(raw(decoded), raw(nvfp4_ref.decode(*parts, dtype=dtype)))


@pytest.mark.interpreter
@pytest.mark.parametrize("swizzled", [False, True], ids=["linear", "swizzled"])
@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (129, 80), (2, 3, 63, 32), (0, 4, 32)])
def test_decoding_equals_the_reference(shape: tuple[int, ...], swizzled: bool, device: str) -> None:
    w_NK = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02
    parts = [part.to(device) for part in nvfp4_ref.encode(w_NK, swizzled=swizzled)]

    decoded = nvfp4.decode(*parts, swizzled=swizzled)

    assert decoded.shape == shape
    assert torch.equal(raw(decoded), raw(nvfp4_ref.decode(*parts, swizzled=swizzled)))


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_encoding_gives_the_bytes_of_the_reference(
    options: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str
) -> None:
    for shape in ((3, 48), (2, 130, 48)):
        assert_encodes_as_the_reference(with_zeros_and_outliers(shape, generator).to(dtype), device, **options)


@pytest.mark.interpreter
def test_a_stack_longer_than_a_program_and_one_without_matrices_encode(device: str) -> None:
    rows = nvfp4_encode.PROGRAM_BLOCKS // 4 + 1
    w_NK = torch.randn(2, rows, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    w_NK[:, -1] *= 8  # the largest element is the last

    assert_encodes_as_the_reference(w_NK, device)
    assert_encodes_as_the_reference(torch.zeros(0, 4, 32), device)


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_launches_that_search_the_next_ones_matrices_find_the_scale_of_each(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator, device: str
) -> None:
    monkeypatch.setattr(nvfp4_encode, "SEARCHING_PROGRAMS", 4)
    monkeypatch.setattr(nvfp4_encode, "SEARCHING_PROGRAM_BLOCKS", 128)
    w_ENK = (torch.randn(5, 34, 64, generator=generator) * torch.arange(1, 6)[:, None, None]).to(dtype)
    for matrix, row, column in ((0, 3, 2), (1, 33, 63), (2, 0, 0), (3, 31, 62), (4, 32, 1)):
        w_ENK[matrix, row, column] = -(20.0 + matrix)

    with heard() as launches:
        assert_encodes_as_the_reference(w_ENK, device, four_over_six=True)

    # A matrix has one tile of 128 blocks and one of 8, so two matrices make a launch.
    assert [launch.name for launch in launches] == ["amax", "_encode", "_encode", "_encode"]
    w_ENK[4, 33, 63] = float("nan")
    with pytest.raises(NumericsError, match="NaN or infinite values"):
        nvfp4_encode.encode(w_ENK.to(device), four_over_six=True)


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_block_scales_round_as_the_reference_next_to_every_e4m3_number_and_midpoint(device: str) -> None:
    for power in TWO_ARITHMETICS:
        for four_over_six in (False, True):
            options = {"global_scale": torch.tensor(power), "four_over_six": four_over_six}
            assert_encodes_as_the_reference(every_block_scale(1) * power, device, **options)


@pytest.mark.interpreter
def test_codes_round_as_the_reference_next_to_every_boundary(device: str) -> None:
    global_scale_E = torch.tensor([0.25, 0.0123, 3e-5, 17.0, 1.3e-3, 1e-9])

    assert_encodes_as_the_reference(next_to_every_boundary(global_scale_E), device, global_scale=global_scale_E)


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_better_of_two_scales_is_the_references_next_to_equal_errors(
    generator: torch.Generator, device: str
) -> None:
    for power in TWO_ARITHMETICS:
        global_scale = torch.tensor(1.3 * power)
        w_NK = next_to_equal_errors(global_scale, generator)
        assert 0.3 < prefers_four(w_NK, global_scale).float().mean() < 0.7

        assert_encodes_as_the_reference(w_NK, device, four_over_six=True, global_scale=global_scale)


@pytest.mark.interpreter
@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels keep what was called")
def test_usual_weights_take_the_short_arithmetic(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    w_NK = torch.randn(130, 48, generator=generator) * 0.02
    monkeypatch.setattr(nvfp4_encode, "exact_codes", None)

    for w in (w_NK, w_NK.bfloat16()):
        for four_over_six in (False, True):
            assert_encodes_as_the_reference(w, "cpu", four_over_six=four_over_six)


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_smallest_weights_keep_their_sign_as_long_as_in_the_reference(dtype: torch.dtype, device: str) -> None:
    w_ENK, global_scale_E = smallest_under_the_largest_steps(dtype)

    assert_encodes_as_the_reference(w_ENK, device, global_scale=global_scale_E)


@pytest.mark.interpreter
@pytest.mark.parametrize("global_scale", [None, 1e-40, 0.01, 3.0, 1e20])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_magnitude_of_fp32_changes_a_byte(global_scale: float | None, device: str) -> None:
    magnitude_E = torch.tensor([3e-44, 1e-40, 1e-30, 1.0, 1e30, 1e37])
    w_ENK = torch.randn(6, 32, generator=torch.Generator().manual_seed(0)) * magnitude_E[:, None, None]
    w_ENK[:, 3] = torch.tensor([-1e-45, 3e-45]).repeat(16)  # quotients that fall to zero lose their sign

    for four_over_six in (False, True):
        given = None if global_scale is None else torch.tensor(global_scale)
        assert_encodes_as_the_reference(w_ENK, device, four_over_six=four_over_six, global_scale=given)


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels have fused multiply-adds of their own")
def test_the_quotient_by_fused_multiply_adds_gives_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    from triton.runtime import interpreter

    def fused(self: Any, x: Any, y: Any, z: Any) -> Any:
        exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(exact.astype(np.float32), z.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fma", fused)

    def last_bit_off(step_B: Any, FMA: Any) -> Any:
        inverse_B = nvfp4_codes.tl.div_rn(1.0, step_B).to(nvfp4_codes.tl.int32, bitcast=True)
        return (inverse_B + (inverse_B & 1)).to(nvfp4_codes.tl.float32, bitcast=True)

    monkeypatch.setattr(nvfp4_encode, "interpreting", lambda: False)
    monkeypatch.setattr(nvfp4_encode, "rough_inverse", last_bit_off)
    larger = nvfp4_amax._larger
    monkeypatch.setattr(nvfp4_amax, "_larger", lambda largest, word, BF16, _: larger(largest, word, BF16, False))
    for power in TWO_ARITHMETICS:
        global_scale_E = (torch.rand(4, generator=generator) + 0.01) * power
        assert_encodes_as_the_reference(next_to_every_boundary(global_scale_E), "cpu", global_scale=global_scale_E)
        assert_encodes_as_the_reference(every_block_scale(1) * power, "cpu", global_scale=torch.tensor(power))
    for magnitude in (3e-44, 1e-30, 1.0, 1e3, 1e30):
        w_NK = with_zeros_and_outliers((5, 48), generator) * magnitude
        assert_encodes_as_the_reference(w_NK, "cpu", four_over_six=True)
    for dtype in (torch.float32, torch.bfloat16):
        w_ENK, global_scale_E = smallest_under_the_largest_steps(dtype)
        assert_encodes_as_the_reference(w_ENK, "cpu", global_scale=global_scale_E)


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_weights_that_are_no_numbers_are_refused_where_they_are_checked(
    value: float, dtype: torch.dtype, device: str
) -> None:
    w_NK = torch.ones(2, 3, 32, dtype=dtype, device=device)
    w_NK[1, 2, 31] = value

    for given in (None, torch.tensor(1.0, device=device)):
        with pytest.raises(NumericsError, match="NaN or infinite values"):
            nvfp4_encode.encode(w_NK, global_scale=given)
    sound = nvfp4_encode.encode(w_NK, check=False)
    assert_same_bytes(tuple(part[:1] for part in sound), nvfp4_ref.encode(w_NK[:1]))
    assert_encodes_as_the_reference(w_NK[:1], device, global_scale=torch.tensor(1.0), check=False)


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(device: str) -> None:
    w_NK = torch.ones(4, 32, device=device)
    codes, scale, global_scale = nvfp4_encode.encode(w_NK)

    with pytest.raises(DtypeError, match="float16"):
        nvfp4_encode.encode(w_NK.half())
    with pytest.raises(ShapeError, match="multiple of 16"):
        nvfp4_encode.encode(w_NK[:, :24].contiguous())
    with pytest.raises(ShapeError, match="2147483648, expected at most 2147450880"):
        nvfp4_encode.encode(torch.empty(2**16, 2**15, device="meta"))
    with pytest.raises(ShapeError, match="contiguous"):
        nvfp4_encode.encode(torch.ones(32, 16, device=device).T)
    with pytest.raises(ShapeError, match="broadcasts to"):
        nvfp4_encode.encode(w_NK, global_scale=torch.ones(3, device=device))
    with pytest.raises(ShapeError, match="multiple of 4"):
        nvfp4_encode.encode(torch.ones(65, dtype=torch.bfloat16, device=device)[1:].view(4, 16))
    for bad in (0.0, -1.0, float("nan"), 1e38):
        with pytest.raises(NumericsError, match="expected positive numbers"):
            nvfp4_encode.encode(w_NK, global_scale=torch.tensor(bad, device=device))
    with pytest.raises(DtypeError, match="uint8"):
        nvfp4.decode(codes.int(), scale, global_scale)
    with pytest.raises(DtypeError, match="float8_e4m3fn"):
        nvfp4.decode(codes, scale.view(torch.uint8), global_scale)
    with pytest.raises(DtypeError, match="float16, expected float32 or bfloat16"):
        nvfp4.decode(codes, scale, global_scale, dtype=torch.float16)
    with pytest.raises(ShapeError, match=r"\(4, 1\), expected \(4, 2\)"):
        nvfp4.decode(codes, scale[:, :1], global_scale)
    with pytest.raises(ShapeError, match=r"expected \(512,\)"):
        nvfp4.decode(codes, scale, global_scale, swizzled=True)
    with pytest.raises(ShapeError, match="contiguous codes"):
        nvfp4.decode(codes.T.contiguous().T, scale, global_scale)
    shifted = torch.zeros(65, dtype=torch.uint8, device=device)[1:].view(4, 16)
    with pytest.raises(ShapeError, match="multiple of 4"):
        nvfp4.decode(shifted, scale, global_scale)


def test_dispatch_on_a_cpu_takes_the_reference_with_every_option() -> None:
    choices: list[dispatch.Choice] = []
    w_NK = torch.randn(2, 130, 48)
    options: dict[str, Any] = {"four_over_six": True, "global_scale": torch.tensor(2e-3), "swizzled": True}

    parts = dispatch.nvfp4_encode(w_NK, **options, record=choices.append)
    decoded = dispatch.nvfp4_decode(*parts, swizzled=True, dtype=torch.bfloat16, record=choices.append)

    assert_same_bytes(parts, nvfp4_ref.encode(w_NK, **options))
    assert torch.equal(decoded, nvfp4_ref.decode(*parts, swizzled=True, dtype=torch.bfloat16))
    assert [(choice.op, choice.file) for choice in choices] == [
        ("nvfp4_encode", "kernels/nvfp4_ref.py"),
        ("nvfp4_decode", "kernels/nvfp4_ref.py"),
    ]


@pytest.mark.gpu
def test_dispatch_on_a_gpu_takes_the_kernels() -> None:
    choices: list[dispatch.Choice] = []

    parts = dispatch.nvfp4_encode(torch.randn(3, 48, device="cuda"), record=choices.append)
    dispatch.nvfp4_decode(*parts, record=choices.append)

    assert [choice.file for choice in choices] == ["kernels/nvfp4_encode.py", "kernels/nvfp4.py"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shape", [(3, 1024, 4096), (2, 63, 7168), (129, 2048), (1, 16)])
def test_production_sizes_round_trip_as_in_the_reference_and_repeat(
    shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype, generator: torch.Generator
) -> None:
    w_NK = with_zeros_and_outliers(shape, generator).to(dtype).cuda()
    options = {name: value.cuda() if isinstance(value, Tensor) else value for name, value in options.items()}
    swizzled = options.get("swizzled", False)

    parts = nvfp4_encode.encode(w_NK, **options)

    assert_same_bytes(parts, nvfp4_ref.encode(w_NK, **options))
    assert_same_bytes(nvfp4_encode.encode(w_NK, **options), parts)
    for out in (torch.float32, torch.bfloat16):
        decoded = nvfp4.decode(*parts, swizzled=swizzled, dtype=out)
        assert torch.equal(raw(decoded), raw(nvfp4_ref.decode(*parts, swizzled=swizzled, dtype=out)))


@pytest.mark.gpu
@pytest.mark.parametrize("four_over_six", [False, True])
def test_codes_and_scales_of_many_divisors_round_as_divisions_do(
    four_over_six: bool, generator: torch.Generator
) -> None:
    for power in TWO_ARITHMETICS:
        global_scale_E = (torch.rand(2**14, generator=generator) + 0.5) * power
        options = {"global_scale": global_scale_E, "four_over_six": four_over_six}
        assert_encodes_as_the_reference(next_to_every_boundary(global_scale_E), "cuda", **options)
        options["global_scale"] = torch.tensor(power)
        assert_encodes_as_the_reference(every_block_scale(40) * power, "cuda", **options)


@pytest.mark.gpu
def test_codes_round_as_divisions_do_under_every_mantissa_of_a_step() -> None:
    for bits_E in torch.arange(2**23, dtype=torch.int32, device="cuda").split(2**20):
        for power in TWO_ARITHMETICS:
            global_scale_E = (bits_E | 0x3F800000).view(torch.float32) * power
            w_ENK = next_to_every_boundary(global_scale_E, torch.ones(1))
            assert_encodes_as_the_reference(w_ENK, "cuda", global_scale=global_scale_E)


@pytest.mark.gpu
def test_a_stack_of_more_than_2_to_the_31_elements_is_addressed_right() -> None:
    w_NK = torch.randn(3, 2**15, 2**15, dtype=torch.bfloat16, device="cuda")

    codes, scale, global_scale = nvfp4_encode.encode(w_NK)
    decoded = nvfp4.decode(codes, scale, global_scale, dtype=torch.bfloat16)

    last = (codes[2, -64:], scale[2, -64:], global_scale[2])
    assert_same_bytes(last, nvfp4_ref.encode(w_NK[2, -64:], global_scale=global_scale[2]))
    assert torch.equal(decoded[2, -64:], nvfp4_ref.decode(*last, dtype=torch.bfloat16))
    assert bool(torch.isfinite(decoded).all())
