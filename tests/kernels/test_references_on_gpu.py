"""A reference must be the same wherever it runs: what it rounds on a GPU has the bytes that it has on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import attention_cache_ref, fp8_block_ref, index_page_ref, mxfp4_ref, nvfp4_ref
from kernels.norm_ref import divided

QUANTISERS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "fp8 blocks": fp8_block_ref.encode,
    "fp8 rows": fp8_block_ref.encode_rows,
    "nvfp4": nvfp4_ref.encode,
    "mxfp4": mxfp4_ref.encode,
    "index keys": index_page_ref.quantise_keys,
    "attention keys": lambda keys: attention_cache_ref.quantise_keys(keys.flatten(0, -2)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", QUANTISERS)
def test_a_quantiser_gives_the_same_bytes_on_a_gpu(name: str, generator: torch.Generator) -> None:
    # bf16 numbers have few bits: many quotients lie exactly between two e4m3 numbers if the scale is right to its last.
    x = torch.randn(64, 512, generator=generator).bfloat16().float()

    here, there = QUANTISERS[name](x), QUANTISERS[name](x.cuda())

    for expected, found in zip(here, there, strict=True):
        assert torch.equal(found.cpu().flatten().view(torch.uint8), expected.flatten().view(torch.uint8))


def test_a_quotient_by_a_number_is_rounded_once() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))

    assert torch.equal(divided(x, 448.0), (x.double() / 448.0).float())
