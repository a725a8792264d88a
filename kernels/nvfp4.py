"""NVFP4 decode on a GPU, and what encode shares with it: one program per run of a matrix's blocks.

Contract: as `nvfp4_ref.decode`, bit for bit: the two scales are multiplied first, then the code's value, in fp32; bf16
is that number rounded once. A word of codes (eight, half a block) becomes 16 bytes of bf16 in one thread.
Live when: tensors lie on a GPU of sm_80 or newer. SWIZZLED: scale addresses follow the 128x4 order of COLUMNS columns;
otherwise they are the block's number, and one compilation serves every width.
Floor: 0.5 + 1/16 bytes read and 2 (bf16) or 4 (fp32) written per weight, at copy bandwidth.
"""

# N rows, K columns, E matrices; a tile has B blocks of 16 columns, W words of codes, C codes a word.

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import interpreting, require, require_device
from kernels.errors import DtypeError, ShapeError
from kernels.launch import launch
from kernels.nvfp4_ref import BLOCK, expand_global_scale, swizzled_length

DECODE_BLOCKS = 256


@triton.jit
def scale_place(block, COLUMNS: tl.constexpr, SWIZZLED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the scale of a matrix's block lies among its scales; block = row * COLUMNS + column."""
    if SWIZZLED:
        row = block // COLUMNS
        column = block % COLUMNS
        tile = (row >> 7) * ((COLUMNS + 3) // 4) + (column >> 2)
        return tile * 512 + (row & 31) * 16 + ((row >> 5) & 3) * 4 + (column & 3)
    else:
        return block


def _metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What a profiler is told of one launch; a multiply by the value and one by 2^126 per weight."""
    moved = sum(args[name].numel() * args[name].element_size() for name in ("words", "scales", "global_scale_E", "out"))
    return {"name": "nvfp4_decode", "bytes": moved, "flops": 2 * args["out"].numel()}


@triton.jit(launch_metadata=_metadata)
def _decode(  # type: ignore[no-untyped-def]
    words,
    scales,
    global_scale_E,
    out,
    num_blocks,
    num_tiles,
    scale_stride,
    COLUMNS: tl.constexpr,
    SWIZZLED: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    matrix = (tl.program_id(0) // num_tiles).to(tl.int64)
    first = tl.program_id(0) % num_tiles * BLOCKS
    # Only where a tile starts needs 64 bits.
    start = matrix * num_blocks + first
    w_W = tl.arange(0, 2 * BLOCKS)
    c_C = tl.arange(0, 8)
    real_W = first + w_W // 2 < num_blocks
    word_W = tl.load(words + start * 2 + w_W, mask=real_W, other=0)
    place_W = scale_place(first + w_W // 2, COLUMNS, SWIZZLED)
    scale_W = tl.load(scales + matrix * scale_stride + place_W, mask=real_W, other=0)
    scale_W = scale_W.to(tl.float8e4nv, bitcast=True).to(tl.float32) * tl.load(global_scale_E + matrix)
    code_WC = word_W[:, None] >> (c_C * 4)[None, :]
    # The magnitude's bits across fp32's exponent and mantissa are e2m1 * 2^-126, the smallest of them a subnormal.
    value_WC = (((code_WC & 8) << 28) | ((code_WC & 7) << 22)).to(tl.float32, bitcast=True) * 8.507059173023462e37
    value_WC = (value_WC * scale_W[:, None]).to(out.dtype.element_ty)
    tl.store(out + start * 16 + (w_W * 8)[:, None] + c_C[None, :], value_WC, mask=real_W[:, None])


def decode(
    codes: Tensor,
    block_scale: Tensor,
    global_scale: Tensor,
    *,
    swizzled: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The values [..., N, K], fp32 or bf16, of codes uint8 [..., N, K/2]; see `nvfp4_ref.decode`.

    Args:
        block_scale: float8_e4m3fn [..., N, K/16]; or [..., flat], each matrix in the 128x4 order, when swizzled.
        global_scale: fp32 that broadcasts to [...].

    Raises:
        DtypeError, ShapeError, DeviceError: before the launch.
    """
    require_device("nvfp4 decode", codes, block_scale, global_scale)
    require(codes.dtype == torch.uint8, DtypeError, "NVFP4 codes", codes.dtype, "uint8")
    require(
        block_scale.dtype == torch.float8_e4m3fn, DtypeError, "NVFP4 block scales", block_scale.dtype, "float8_e4m3fn"
    )
    require(dtype in (torch.float32, torch.bfloat16), DtypeError, "NVFP4 decoded", dtype, "float32 or bfloat16")
    require(
        codes.ndim >= 2 and codes.shape[-1] % (BLOCK // 2) == 0,
        ShapeError,
        "NVFP4 codes",
        tuple(codes.shape),
        f"[..., N, K/2] with K a multiple of {BLOCK}",
    )
    *stack, rows, columns = *codes.shape[:-1], codes.shape[-1] * 2 // BLOCK
    expected = (*stack, swizzled_length(rows, columns)) if swizzled else (*stack, rows, columns)
    require(block_scale.shape == expected, ShapeError, "NVFP4 block scales", tuple(block_scale.shape), expected)
    require(codes.is_contiguous(), ShapeError, "NVFP4 codes' strides", codes.stride(), "contiguous codes")
    require(block_scale.is_contiguous(), ShapeError, "NVFP4 scales' strides", block_scale.stride(), "contiguous scales")
    require(codes.data_ptr() % 4 == 0, ShapeError, "NVFP4 codes' address", codes.data_ptr(), "a multiple of 4")
    global_scale_E = expand_global_scale(global_scale, torch.Size((*stack, rows, columns)), check=False).contiguous()
    # The interpreter's cast to bf16 truncates, so there torch casts.
    written = torch.float32 if interpreting() else dtype
    out = torch.empty(*stack, rows, columns * BLOCK, dtype=written, device=codes.device)
    if out.numel():
        num_tiles = triton.cdiv(rows * columns, DECODE_BLOCKS)
        launch(_decode, (math.prod(stack) * num_tiles,))(
            codes.view(torch.int32),
            block_scale.view(torch.uint8),
            global_scale_E,
            out,
            rows * columns,
            num_tiles,
            math.prod(expected[len(stack) :]),
            COLUMNS=columns if swizzled else 0,
            SWIZZLED=swizzled,
            BLOCKS=DECODE_BLOCKS,
            num_warps=4,
        )
    return out.to(dtype)
