from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from kernels import nvfp4_ref
from kernels.errors import DtypeError, NumericsError, ShapeError
from tests.numerics import TOLERANCES, relative_error

MAGNITUDES = [
    Fraction(0),
    Fraction(1, 2),
    Fraction(1),
    Fraction(3, 2),
    Fraction(2),
    Fraction(3),
    Fraction(4),
    Fraction(6),
]


def e4m3_value(byte: int) -> Fraction:
    """The number a non-negative e4m3fn byte stands for, by the definition of the format."""
    exponent, mantissa = byte >> 3, byte & 7
    if exponent == 0:
        return Fraction(mantissa, 8) * Fraction(1, 64)
    return (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)


def test_every_code_with_every_scale_decodes_to_the_exact_product() -> None:
    scales = torch.arange(127, dtype=torch.uint8)  # 127 is NaN; scales are never negative
    codes = torch.arange(16, dtype=torch.uint8).expand(127, 16).contiguous()

    decoded = nvfp4_ref.decode(nvfp4_ref.pack(codes), scales[:, None].view(torch.float8_e4m3fn), torch.tensor(0.25))

    for byte in range(127):
        for code in range(16):
            sign = -1 if code >= 8 else 1
            exact = sign * MAGNITUDES[code & 7] * e4m3_value(byte) * Fraction(1, 4)
            assert Fraction(decoded[byte, code].item()) == exact


def test_rounding_is_to_nearest_with_ties_to_the_even_code() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    above = torch.nextafter(ties, torch.tensor(torch.inf))
    below = torch.nextafter(ties, torch.tensor(0.0))

    assert nvfp4_ref.e2m1_codes(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert nvfp4_ref.e2m1_codes(above).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert nvfp4_ref.e2m1_codes(below).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert nvfp4_ref.e2m1_codes(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]


def test_codes_saturate_at_six_and_zero_has_no_sign() -> None:
    values = torch.tensor([6.0, 7.0, 1e30, -1e30, 0.0, -0.0])

    assert nvfp4_ref.e2m1_codes(values).tolist() == [7, 7, 7, 15, 0, 0]


def test_the_low_nibble_is_the_even_element() -> None:
    packed = nvfp4_ref.pack(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8))

    assert packed.tolist() == [[0x21, 0x0F]]
    assert nvfp4_ref.unpack(packed).tolist() == [[1, 2, 15, 0]]


def test_grid_values_survive_a_round_trip_bit_for_bit(generator: torch.Generator) -> None:
    codes = torch.randint(0, 16, (40, 64), generator=generator, dtype=torch.uint8)
    codes[codes == 8] = 0  # -0 reads back as 0
    codes[:, ::16] = 7  # every block holds a 6, so its scale is the one it was made with
    scale = torch.randint(1, 127, (40, 4), generator=generator, dtype=torch.uint8)
    scale[0, 0] = 126  # the largest block fixes the global scale
    scale = scale.view(torch.float8_e4m3fn)
    weights = nvfp4_ref.decode(nvfp4_ref.pack(codes), scale, torch.tensor(2.0**-7))

    got_codes, got_scale, got_global = nvfp4_ref.encode(weights)

    assert got_global.item() == 2.0**-7
    assert torch.equal(got_scale.view(torch.uint8), scale.view(torch.uint8))
    assert torch.equal(nvfp4_ref.unpack(got_codes), codes)


def test_gaussian_weights_lose_less_than_the_format_allows(generator: torch.Generator) -> None:
    weights = torch.randn(3, 48, 64, generator=generator) * 0.02

    codes, scale, global_scale = nvfp4_ref.encode(weights)

    assert (codes.shape, scale.shape, global_scale.shape) == ((3, 48, 32), (3, 48, 4), (3,))
    assert relative_error(nvfp4_ref.decode(codes, scale, global_scale), weights) < TOLERANCES["nvfp4"][0]


def test_each_matrix_of_a_stack_is_encoded_as_if_alone(generator: torch.Generator) -> None:
    weights = torch.randn(3, 8, 32, generator=generator) * torch.tensor([1e-3, 1.0, 37.0])[:, None, None]

    stacked = nvfp4_ref.encode(weights)

    for expert in range(3):
        for whole, alone in zip(stacked, nvfp4_ref.encode(weights[expert]), strict=True):
            assert torch.equal(whole[expert].float(), alone.float())


@pytest.mark.parametrize("heavy_tail", [False, True], ids=["gaussian", "heavy tail"])
def test_four_over_six_loses_less_and_decodes_as_usual(heavy_tail: bool, generator: torch.Generator) -> None:
    weights = torch.randn(2, 256, 512, generator=generator) * 0.02
    if heavy_tail:
        weights = weights / torch.rand(256, 1, generator=generator).clamp_min(1e-3)

    plain = relative_error(nvfp4_ref.decode(*nvfp4_ref.encode(weights)), weights)
    better = relative_error(nvfp4_ref.decode(*nvfp4_ref.encode(weights, four_over_six=True)), weights)

    assert 0.05 < 1 - better / plain < 0.12


def test_four_over_six_takes_four_only_where_the_squared_error_falls() -> None:
    # One of the blocks is on the grid of 6, one on the grid of 4; of the third, both lose the same.
    six = [6.0, 1.0, 2.0, 3.0] + [0.0] * 12
    four = [6.0, 4.5, 1.5, 3.0] + [0.0] * 12
    weights = torch.tensor([six, four, [6.0] * 16])

    codes, scale, global_scale = nvfp4_ref.encode(weights, four_over_six=True)

    assert global_scale.item() == 6.0 / 1536
    assert scale.float().flatten().tolist() == [256.0, 384.0, 256.0]
    assert nvfp4_ref.unpack(codes)[:, 0].tolist() == [7, 6, 7]
    assert torch.equal(nvfp4_ref.decode(codes, scale, global_scale), weights)


def test_a_decoder_that_works_out_the_global_scale_again_is_wrong_by_1_75(generator: torch.Generator) -> None:
    weights = torch.randn(32, 64, generator=generator)
    codes, scale, global_scale = nvfp4_ref.encode(weights, four_over_six=True)
    worked_out = weights.abs().max() / 2688

    wrong, right = (nvfp4_ref.decode(codes, scale, factor) for factor in (worked_out, global_scale))

    assert torch.allclose(right, 1.75 * wrong)


def test_a_given_global_scale_is_kept_and_what_exceeds_it_saturates(generator: torch.Generator) -> None:
    weights = torch.randn(2, 8, 32, generator=generator)
    weights[1, 3, 5] = -100.0
    given = torch.tensor(2.0**-10)

    codes, scale, global_scale = nvfp4_ref.encode(weights, global_scale=given)

    assert global_scale.tolist() == [given, given]
    decoded = nvfp4_ref.decode(codes, scale, global_scale)
    assert decoded[1, 3, 5] == -2688 * given
    assert relative_error(decoded[0], weights[0]) < TOLERANCES["nvfp4"][0]
    assert torch.equal(nvfp4_ref.encode(weights[0], global_scale=given)[0], codes[0])


def test_zero_weights_decode_to_zero_without_nan() -> None:
    weights = torch.zeros(2, 32)
    weights[1, :16] = 3.0

    for matrix in (torch.zeros(2, 32), weights):
        assert torch.equal(nvfp4_ref.decode(*nvfp4_ref.encode(matrix)), matrix)


@pytest.mark.parametrize("shape", [(1, 1), (130, 3), (128, 4), (300, 17)])
def test_swizzled_scales_follow_the_128x4_formula_both_ways(shape: tuple[int, int]) -> None:
    rows, columns = shape
    scale = (torch.arange(rows * columns) % 127).to(torch.uint8).view(rows, columns).view(torch.float8_e4m3fn)

    flat = nvfp4_ref.swizzle(scale)

    padded_columns = -(-columns // 4) * 4
    for row in range(0, rows, 37):
        for column in range(columns):
            tile = (row // 128) * (padded_columns // 4) + column // 4
            offset = tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + column % 4
            assert flat.view(torch.uint8)[offset] == scale.view(torch.uint8)[row, column]
    back = nvfp4_ref.unswizzle(flat, rows, columns)
    assert torch.equal(back.view(torch.uint8), scale.view(torch.uint8))


def test_a_stack_is_swizzled_matrix_by_matrix_and_decodes_the_same(generator: torch.Generator) -> None:
    weights = torch.randn(2, 3, 130, 48, generator=generator)

    codes, linear, global_scale = nvfp4_ref.encode(weights)
    swizzled_codes, swizzled, _ = nvfp4_ref.encode(weights, swizzled=True)

    assert swizzled.shape == (2, 3, nvfp4_ref.swizzled_length(130, 3))
    assert torch.equal(swizzled[1, 2].view(torch.uint8), nvfp4_ref.swizzle(linear[1, 2]).view(torch.uint8))
    decoded = nvfp4_ref.decode(swizzled_codes, swizzled, global_scale, swizzled=True)
    assert torch.equal(decoded, nvfp4_ref.decode(codes, linear, global_scale))


def test_bad_weights_are_refused_by_name() -> None:
    with pytest.raises(ShapeError, match="multiple of 16"):
        nvfp4_ref.encode(torch.ones(2, 24))
    with pytest.raises(NumericsError, match="finite"):
        nvfp4_ref.encode(torch.tensor([[float("nan")] * 16]))
    with pytest.raises(ShapeError, match="multiple of 16"):
        nvfp4_ref.encode(torch.ones(0, 32))
    for bad in (0.0, -1.0, float("inf"), 1e38):
        with pytest.raises(NumericsError, match="expected positive numbers"):
            nvfp4_ref.encode(torch.ones(2, 32), global_scale=torch.tensor(bad))
    with pytest.raises(DtypeError, match=r"global scale of torch\.float64"):
        nvfp4_ref.encode(torch.ones(2, 32), global_scale=torch.tensor(1.0, dtype=torch.float64))
    with pytest.raises(ShapeError, match="broadcasts to"):
        nvfp4_ref.encode(torch.ones(3, 2, 32), global_scale=torch.ones(2))
    codes, scale, global_scale = nvfp4_ref.encode(torch.ones(2, 32))
    with pytest.raises(DtypeError, match="uint8"):
        nvfp4_ref.decode(codes.int(), scale, global_scale)
    with pytest.raises(ShapeError, match="one scale per 8 code bytes"):
        nvfp4_ref.decode(codes, scale[:, :1], global_scale)
    with pytest.raises(ShapeError, match="expected 512"):
        nvfp4_ref.unswizzle(nvfp4_ref.swizzle(scale)[:-1], 2, 2)
