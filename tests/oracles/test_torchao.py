"""NVFP4 against torchao: the swizzled order of block scales, and the decoder."""

from __future__ import annotations

import pytest
import torch

from kernels import nvfp4_ref

pytest.importorskip("torchao")


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (1, 1), (130, 5), (256, 64), (64, 8), (300, 33)])
def test_block_scales_are_swizzled_alike_both_ways(rows: int, columns: int) -> None:
    from torchao.prototype.mx_formats.utils import from_blocked, to_blocked

    linear = torch.randint(0, 256, (rows, columns), generator=torch.Generator().manual_seed(rows)).to(torch.uint8)

    ours, theirs = nvfp4_ref.swizzle(linear), to_blocked(linear)

    assert torch.equal(ours, theirs.flatten())
    assert torch.equal(nvfp4_ref.unswizzle(theirs.flatten(), rows, columns), linear)
    assert torch.equal(from_blocked(ours, rows, columns), linear)


@pytest.mark.parametrize("factor", [0.25, 0.0123, 1e-5])
def test_every_code_with_every_scale_byte_decodes_to_the_same_bits(factor: float) -> None:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    codes = nvfp4_ref.pack(torch.arange(16, dtype=torch.uint8)).expand(256, 8).contiguous()
    scale = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)[:, None]
    theirs = NVFP4Tensor(codes, scale, 16, torch.float32, per_tensor_scale=torch.tensor(factor))

    ours = nvfp4_ref.decode(codes, scale, torch.tensor(factor))

    expected = theirs.dequantize(torch.float32)
    finite = ~expected.isnan()
    assert int(finite.sum()) == 254 * 16  # bytes 127 and 255 are NaN
    assert torch.equal(ours.isnan(), expected.isnan())
    assert torch.equal(ours[finite].view(torch.int32), expected[finite].view(torch.int32))
