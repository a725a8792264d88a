from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import fp8_block_ref
from kernels.errors import DtypeError
from kernels.fp8_rows import quantise_rows


def check(x: Tensor, device: str) -> None:
    values, scales = quantise_rows(x.to(device))

    expected_values, expected_scales = fp8_block_ref.encode_rows(x)
    assert torch.equal(scales.cpu(), expected_scales)
    assert torch.equal(values.cpu().view(torch.uint8), expected_values.view(torch.uint8))


@pytest.mark.interpreter
@pytest.mark.parametrize("shape", [(1, 1), (3, 127), (7, 300), (2, 2176)])
def test_bytes_and_scales_equal_the_reference(shape: tuple[int, int], generator: torch.Generator, device: str) -> None:
    x = torch.randn(*shape, generator=generator) * torch.logspace(-5, 3, shape[1])
    x[-1, : shape[1] // 2] = 0.0

    check(x, device)


@pytest.mark.interpreter
def test_every_e4m3_number_midpoint_and_neighbour_rounds_to_nearest_even(device: str) -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    edges = torch.cat((numbers, (numbers[1:] + numbers[:-1]) / 2))
    edges = torch.cat((edges, edges.nextafter(torch.tensor(0.0)), edges[:-1].nextafter(torch.tensor(448.0))))
    # 448 in every group makes its scale exactly 1.
    x = torch.full((8 * ((len(edges) + 126) // 127 + 1), 128), 448.0)
    x[: len(edges) // 127, 1:] = edges[: len(edges) // 127 * 127].view(-1, 127)
    x[len(edges) // 127, 1 : 1 + len(edges) % 127] = edges[len(edges) // 127 * 127 :]

    check(x, device)
    check(-x, device)


@pytest.mark.interpreter
def test_a_group_with_nan_or_infinity_gets_scale_nan_and_its_neighbours_do_not(device: str) -> None:
    x = torch.ones(3, 256)
    x[0, 5], x[1, 200] = float("nan"), float("-inf")

    _, scales = quantise_rows(x.to(device))

    assert scales.isnan().tolist() == [[True, False], [False, True], [False, False]]
    assert fp8_block_ref.encode_rows(x)[1].isnan().tolist() == scales.isnan().tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_the_bytes_are_the_same(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn(257, 7168, generator=generator) * torch.logspace(-6, 4, 7168)
    x[::3, :128] = 0.0

    check(x.to(dtype), "cuda")


@pytest.mark.interpreter
def test_other_dtypes_are_refused(device: str) -> None:
    with pytest.raises(DtypeError, match=r"rows: torch\.float16, expected bfloat16 or float32"):
        quantise_rows(torch.ones(1, 128, dtype=torch.float16, device=device))
