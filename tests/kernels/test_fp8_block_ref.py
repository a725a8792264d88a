from __future__ import annotations

import pytest
import torch

from kernels import fp8_block_ref
from kernels.errors import DtypeError, NumericsError, ShapeError
from kernels.fp8_block_ref import Fp8Experts
from tests.numerics import assert_close


@pytest.mark.parametrize("shape", [(128, 128), (1, 1), (129, 127), (300, 260)])
def test_odd_sizes_keep_a_smaller_last_block(shape: tuple[int, int], generator: torch.Generator) -> None:
    weights = torch.randn(*shape, generator=generator)

    values, scale = fp8_block_ref.encode(weights)

    assert values.dtype == torch.float8_e4m3fn
    assert values.shape == shape
    assert scale.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    assert_close(fp8_block_ref.decode(values, scale), weights, "fp8_block")


def test_a_block_is_scaled_by_its_own_largest_element() -> None:
    weights = torch.ones(130, 130)
    weights[128:, :128] = 1e-4
    weights[:128, 128:] = 1e4

    values, scale = fp8_block_ref.encode(weights)

    expected = torch.tensor([[1 / 448, 1e4 / 448], [1e-4 / 448, 1 / 448]])
    assert torch.allclose(scale, expected, rtol=1e-6)
    assert torch.equal(values.float(), torch.full((130, 130), 448.0))


def test_a_block_of_zeros_stays_zero() -> None:
    values, scale = fp8_block_ref.encode(torch.zeros(2, 5, 7))

    assert torch.equal(scale, torch.ones(2, 1, 1))
    assert torch.equal(fp8_block_ref.decode(values, scale), torch.zeros(2, 5, 7))


def test_bad_input_is_refused_by_name() -> None:
    values, scale = fp8_block_ref.encode(torch.ones(130, 4))

    with pytest.raises(ShapeError, match=r"scales of shape \(1, 1\) for 130 x 4: expected \(2, 1\)"):
        fp8_block_ref.decode(values, scale[:1])
    with pytest.raises(DtypeError, match="float8_e4m3fn"):
        fp8_block_ref.decode(values.float(), scale)
    with pytest.raises(NumericsError, match="finite"):
        fp8_block_ref.encode(torch.tensor([[float("inf")]]))


def test_a_row_is_scaled_by_its_own_128_columns() -> None:
    x = torch.ones(2, 300)
    x[0, 128:256], x[1, 256:] = 1e4, 0.0

    values, scale = fp8_block_ref.encode_rows(x)

    assert values.shape == (2, 300)
    assert torch.allclose(scale, torch.tensor([[1 / 448, 1e4 / 448, 1 / 448], [1 / 448, 1 / 448, 1.0]]))
    assert torch.allclose(fp8_block_ref.decode_rows(values, scale), x)


def test_rows_lose_what_e4m3_loses_and_do_not_influence_each_other(generator: torch.Generator) -> None:
    x = torch.randn(5, 200, generator=generator)

    decoded = fp8_block_ref.decode_rows(*fp8_block_ref.encode_rows(x))

    assert_close(decoded, x, "fp8_block")
    assert torch.equal(decoded[3:4], fp8_block_ref.decode_rows(*fp8_block_ref.encode_rows(x[3:4])))


def test_experts_whose_parts_do_not_fit_are_refused() -> None:
    (w13, w13_scale), (w2, w2_scale) = (
        fp8_block_ref.encode(torch.ones(2, *shape)) for shape in ((300, 140), (140, 150))
    )

    assert Fp8Experts(w13=w13, w13_scale=w13_scale, w2=w2, w2_scale=w2_scale).hidden == 150
    with pytest.raises(ShapeError, match=r"w13 of shape .*: expected \(2, 300, 140\)"):
        Fp8Experts(w13=w13[:, :-2], w13_scale=w13_scale, w2=w2, w2_scale=w2_scale)
    with pytest.raises(ShapeError, match=r"w2: scales of shape \(2, 1, 2\) .*: expected \(2, 2, 2\)"):
        Fp8Experts(w13=w13, w13_scale=w13_scale, w2=w2, w2_scale=w2_scale[:, 1:])
    with pytest.raises(DtypeError, match="w13_scale"):
        Fp8Experts(w13=w13, w13_scale=w13_scale.half(), w2=w2, w2_scale=w2_scale)
