from __future__ import annotations

import pytest
import torch

from kernels.errors import DtypeError, ShapeError
from kernels.experts_launch import check_routing

pytestmark = pytest.mark.interpreter


def check(ids: torch.Tensor, device: str) -> None:
    x, gates = torch.ones(2, 16, device=device), torch.ones(2, 3, device=device)
    check_routing(x, x, ids.int().to(device), gates, dim=16, num_experts=8)


@pytest.mark.parametrize("stray", [8, -2, 2**31 - 1])
def test_an_id_of_no_expert_is_refused_in_debug_and_left_to_the_mask_otherwise(
    stray: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.tensor([[0, 7, -1], [3, stray, 1]])
    monkeypatch.delenv("KERNELS_DEBUG", raising=False)
    check(ids, device)

    monkeypatch.setenv("KERNELS_DEBUG", "1")

    with pytest.raises(ShapeError, match=rf"expert ids: \[{stray}\], expected -1 or 0 to 7"):
        check(ids, device)


def test_minus_one_is_no_expert_by_name_and_passes_in_debug(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_DEBUG", "1")

    check(torch.tensor([[0, 7, -1], [-1, -1, -1]]), device)


def test_only_the_dtypes_that_a_kernel_names_pass(device: str) -> None:
    x, gates = torch.ones(2, 16, device=device), torch.ones(2, 3, device=device)

    with pytest.raises(DtypeError, match=r"tokens: torch\.float32, expected torch\.bfloat16$"):
        check_routing(x, x, gates.int(), gates, dim=16, num_experts=8, dtypes=(torch.bfloat16,))
