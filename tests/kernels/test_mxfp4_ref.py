from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from kernels import mxfp4_ref, nvfp4_ref
from kernels.errors import DtypeError, NumericsError, ShapeError


def test_every_code_with_every_scale_byte_decodes_to_the_exact_product() -> None:
    codes = nvfp4_ref.pack(torch.arange(16, dtype=torch.uint8).repeat(2)).expand(254, 16).contiguous()
    scales = torch.arange(254, dtype=torch.uint8).view(torch.float8_e8m0fnu)[:, None]

    decoded = mxfp4_ref.decode(codes, scales)

    magnitudes = [Fraction(value) for value in nvfp4_ref.E2M1_VALUES]
    for byte in range(252):  # the two largest overflow fp32 with the larger codes
        for code in range(16):
            exact = magnitudes[code & 7] * Fraction(2) ** (byte - 127) * (-1 if code >= 8 else 1)
            assert Fraction(decoded[byte, code].item()) == exact


def test_the_scale_is_the_smallest_power_of_two_that_does_not_saturate() -> None:
    largest = torch.tensor([6.0, 6.0001, 3.0, 3.0001, 0.375, 1e-3, 0.0])
    w_NK = torch.zeros(7, 32)
    w_NK[:, 4] = largest

    _, scale = mxfp4_ref.encode(w_NK)

    assert scale.float()[:, 0].tolist() == [1.0, 2.0, 0.5, 1.0, 0.0625, 2.0**-12, 1.0]


def test_what_is_representable_comes_back_and_the_rest_within_half_a_step() -> None:
    w_NK = torch.randn(40, 96, generator=torch.Generator().manual_seed(0)) * 0.02

    once = mxfp4_ref.decode(*mxfp4_ref.encode(w_NK))
    twice = mxfp4_ref.decode(*mxfp4_ref.encode(once))

    assert torch.equal(once, twice)
    scale = mxfp4_ref.encode(w_NK)[1].float().repeat_interleave(32, -1)
    # Steps of the grid are 0.5, 1 and 2, so the largest error is 1 of the scale.
    assert bool(((once - w_NK).abs() <= scale).all())
    assert bool(((once - w_NK).abs()[w_NK.abs() <= 2 * scale] <= 0.25 * scale[w_NK.abs() <= 2 * scale]).all())


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ShapeError, match="multiple of 32"):
        mxfp4_ref.encode(torch.zeros(4, 48))
    with pytest.raises(NumericsError, match="NaN or infinite"):
        mxfp4_ref.encode(torch.full((1, 32), torch.inf))
    codes, scale = mxfp4_ref.encode(torch.zeros(4, 64))
    with pytest.raises(DtypeError, match="expected uint8 and float8_e8m0fnu"):
        mxfp4_ref.decode(codes, scale.float())
    with pytest.raises(ShapeError, match="one scale per 16 code bytes"):
        mxfp4_ref.decode(codes, scale[:, :1])
