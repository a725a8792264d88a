"""NVFP4 encode on a GPU: the largest magnitude of every matrix, then codes and block scales.

Contract: as `nvfp4_ref.encode`, byte for byte for finite weights; the arithmetic is `nvfp4_codes`' and
`nvfp4_round`'s.
Live when: tensors lie on a GPU of sm_80 or newer. `nvfp4_amax` runs unless the global scale is given and nothing is
checked. FOUND: the global scale comes from that pass, otherwise from the caller. SEARCH: a launch looks through the
matrices of the next one as well, as long stacks do with four over six. FOUR_OVER_SIX: a second scale and the errors of
both run. BF16: weights are the upper halves of fp32. FMA: as in `nvfp4_codes`. SWIZZLED: as in `nvfp4`.
Floor: 2 (bf16) or 4 (fp32) bytes read and 0.5 + 1/16 written per weight, at copy bandwidth. Finding the global scale
reads the weights once more, from memory where they exceed the L2 cache.
"""

# N rows, K columns, E matrices; a tile has B blocks, each of two halves of L = 8 elements and so of P = 2 words.

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import interpreting, require, require_device
from kernels.errors import DtypeError, NumericsError, ShapeError
from kernels.launch import launch
from kernels.nvfp4 import scale_place
from kernels.nvfp4_amax import largest, search
from kernels.nvfp4_codes import better_scale, plain, plain_codes, rough_inverse
from kernels.nvfp4_ref import (
    BLOCK,
    E2M1_MAX,
    E4M3_MAX,
    E4M3_MAX_FOUR_OVER_SIX,
    expand_global_scale,
    swizzled_length,
)
from kernels.nvfp4_round import block_scale, exact_codes, scale_byte

PROGRAM_BLOCKS = 1024
# With four over six a launch of about so many programs looks through the matrices of the next one as well. They are
# shorter, as the next launch waits for the last.
SEARCHING_PROGRAM_BLOCKS = 512
SEARCHING_PROGRAMS = 2**16
SEARCHED_WORDS = tl.constexpr(128)  # at a time, 16 bytes a thread
INFINITY_BITS = 0x7F800000
MAX_REGISTERS = 80  # so 24 warps of `_encode` share a multiprocessor
FOUR_OVER_SIX_REGISTERS = 72  # 28 warps, 4 % faster than 24
# Of one matrix: the last program's places, those beyond the matrix too, stay within 32 bits.
MAX_ELEMENTS = 2**31 - 2 * PROGRAM_BLOCKS * BLOCK


@triton.jit
def _half_blocks(words, real_B, BF16: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight weights at each pointer, in fp32."""
    NUM_WORDS: tl.constexpr = 4 if BF16 else 8
    word_BW = tl.load(words[:, None] + tl.arange(0, NUM_WORDS)[None, :], mask=real_B[:, None], other=0)
    if BF16:
        # bf16 is the upper half of fp32.
        word_BW = tl.reshape(tl.join(word_BW << 16, word_BW & -0x10000), (word_BW.shape[0], 8))
    return word_BW.to(tl.float32, bitcast=True)


def _encode_metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What a profiler is told of one launch; a quotient counts as five operations, the rounding as three, a rough error
    as five."""
    num_blocks, encoded = args["num_blocks"], grid[0] // args["num_tiles"]
    searched = min(encoded, max(0, args["num_matrices"] - args["first_matrix"] - encoded)) if args["SEARCH"] else 0
    moved = encoded * (args["scale_stride"] + num_blocks * 8 + 4)
    moved += (encoded + searched) * num_blocks * (32 if args["BF16"] else 64)
    flops = 2 * 5 + 5 + 3 if args["FOUR_OVER_SIX"] else 5 + 3
    return {"name": "nvfp4_encode", "bytes": moved, "flops": flops * 16 * num_blocks * encoded}


@triton.jit(launch_metadata=_encode_metadata, do_not_specialize=["first_matrix", "num_matrices"])
def _encode(  # type: ignore[no-untyped-def]
    w_words,
    amax_bits_E,
    words,
    scales,
    global_scale_E,
    first_matrix,
    num_matrices,
    num_blocks,
    num_tiles,
    scale_stride,
    DIVISOR: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOUND: tl.constexpr,
    SEARCH: tl.constexpr,
    FOUR_OVER_SIX: tl.constexpr,
    SWIZZLED: tl.constexpr,
    BF16: tl.constexpr,
    FMA: tl.constexpr,
    BLOCKS: tl.constexpr,
    STEPS: tl.constexpr,
):
    matrix = (first_matrix + tl.program_id(0) // num_tiles).to(tl.int64)
    first = tl.program_id(0) % num_tiles * (BLOCKS * STEPS)
    # Only where a program starts needs 64 bits.
    HALF: tl.constexpr = 4 if BF16 else 8
    if SEARCH:
        searched = matrix + tl.num_programs(0) // num_tiles
        if searched < num_matrices:
            PASSES: tl.constexpr = BLOCKS * STEPS * 2 * HALF // SEARCHED_WORDS
            searched_words = w_words + (searched * num_blocks + first) * (2 * HALF)
            bits = largest(searched_words, (num_blocks - first) * (2 * HALF), BF16, FMA, SEARCHED_WORDS, PASSES)
            tl.atomic_max(amax_bits_E + searched, bits, sem="relaxed")
    w_words += (matrix * num_blocks + first) * (2 * HALF)
    words += (matrix * num_blocks + first) * 2
    scales += matrix * scale_stride
    if FOUND:
        amax = tl.load(amax_bits_E + matrix).to(tl.float32, bitcast=True)
        global_scale = tl.div_rn(amax, DIVISOR)
        global_scale = tl.where(global_scale == 0.0, 1.0, global_scale)
        if first == 0:
            tl.store(global_scale_E + matrix, global_scale)
    else:
        global_scale = tl.load(global_scale_E + matrix)
    # A power of two that brings the global scale to 2^45, or as near as it can: then no product below is cut short.
    unit_bits = tl.minimum(299 - (global_scale.to(tl.int32, bitcast=True) >> 23), 254) << 23
    unit = unit_bits.to(tl.float32, bitcast=True)
    for step in range(tl.minimum(tl.cdiv(num_blocks - first, BLOCKS), STEPS)):
        b_B = step * BLOCKS + tl.arange(0, BLOCKS)
        real_B = first + b_B < num_blocks
        # Two halves, so that one thread can hold a whole block in 16-byte words.
        low_BL = _half_blocks(w_words + b_B * (2 * HALF), real_B, BF16)
        high_BL = _half_blocks(w_words + b_B * (2 * HALF) + HALF, real_B, BF16)
        amax_B = tl.maximum(tl.max(tl.abs(low_BL), axis=1), tl.max(tl.abs(high_BL), axis=1))
        scale_B, step_B = block_scale(amax_B * unit, global_scale, unit, 6.0, FMA)
        inverse_B = rough_inverse(step_B, FMA)
        short_B = plain(amax_B, step_B, global_scale, BF16)
        if FOUR_OVER_SIX:
            # Steps with 4 as the largest code are no smaller, so blocks that are plain with 6 are plain with 4.
            four_scale_B, four_step_B = block_scale(amax_B * unit, global_scale, unit, 4.0, FMA)
            four_inverse_B = rough_inverse(four_step_B, FMA)
            four_B, sure_B = better_scale(low_BL, high_BL, step_B, inverse_B, four_step_B, four_inverse_B)
            short_B = short_B & sure_B
        if tl.min(short_B.to(tl.int32), axis=0) == 1:
            if FOUR_OVER_SIX:
                step_B = tl.where(four_B, four_step_B, step_B)
                inverse_B = tl.where(four_B, four_inverse_B, inverse_B)
            low_word_B, high_word_B = plain_codes(low_BL, high_BL, step_B, inverse_B, FMA)
        else:
            low_word_B, high_word_B, error_B = exact_codes(low_BL, high_BL, step_B, unit, FMA)
            if FOUR_OVER_SIX:
                four_low_word_B, four_high_word_B, four_error_B = exact_codes(low_BL, high_BL, four_step_B, unit, FMA)
                four_B = four_error_B < error_B
                low_word_B = tl.where(four_B, four_low_word_B, low_word_B)
                high_word_B = tl.where(four_B, four_high_word_B, high_word_B)
        if FOUR_OVER_SIX:
            scale_B = tl.where(four_B, four_scale_B, scale_B)
        word_BP = tl.join(low_word_B, high_word_B)
        tl.store(words + (b_B * 2)[:, None] + tl.arange(0, 2)[None, :], word_BP, mask=real_B[:, None])
        tl.store(scales + scale_place(first + b_B, COLUMNS, SWIZZLED), scale_byte(scale_B), mask=real_B)


def encode(
    w_NK: Tensor,
    *,
    four_over_six: bool = False,
    global_scale: Tensor | None = None,
    swizzled: bool = False,
    check: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes uint8, block scales float8_e4m3fn and global scales fp32 of fp32 or bf16 weights; see `nvfp4_ref.encode`.

    Args:
        check: refuse NaN and infinite weights and global scales that are no positive numbers. It waits for the GPU,
            and where the global scale is given it reads the weights once more; without it a call only launches.

    Raises:
        DtypeError, ShapeError, DeviceError: before any launch.
        NumericsError: `check` found something.
    """
    require_device("nvfp4 encode", w_NK, *(() if global_scale is None else (global_scale,)))
    require(
        w_NK.dtype in (torch.float32, torch.bfloat16), DtypeError, "NVFP4 weight", w_NK.dtype, "float32 or bfloat16"
    )
    require(
        w_NK.ndim >= 2 and 0 not in w_NK.shape[-2:] and w_NK.shape[-1] % BLOCK == 0,
        ShapeError,
        "NVFP4 weight",
        tuple(w_NK.shape),
        f"[..., N, K] with K a multiple of {BLOCK}",
    )
    require(w_NK.is_contiguous(), ShapeError, "NVFP4 weight's strides", w_NK.stride(), "a contiguous weight")
    *stack, rows, columns = *w_NK.shape[:-1], w_NK.shape[-1] // BLOCK
    num_elements = rows * columns * BLOCK
    require(
        num_elements <= MAX_ELEMENTS, ShapeError, "NVFP4 weights of a matrix", num_elements, f"at most {MAX_ELEMENTS}"
    )
    require(w_NK.data_ptr() % 4 == 0, ShapeError, "NVFP4 weight's address", w_NK.data_ptr(), "a multiple of 4")
    bf16, device, num_matrices = w_NK.dtype == torch.bfloat16, w_NK.device, math.prod(stack)
    w_words = w_NK.view(torch.int32)
    if global_scale is None:
        global_scale_E = torch.empty(stack, dtype=torch.float32, device=device)
    else:
        global_scale_E = expand_global_scale(global_scale, w_NK.shape, check=check).contiguous()
    scale_shape = (swizzled_length(rows, columns),) if swizzled else (rows, columns)
    codes = torch.empty(*stack, rows, columns * (BLOCK // 2), dtype=torch.uint8, device=device)
    # Rows and columns that only fill a tile of the swizzled order have no block to write them.
    padded = swizzled and scale_shape[0] != rows * columns
    scales = (torch.zeros if padded else torch.empty)((*stack, *scale_shape), dtype=torch.uint8, device=device)
    amax_bits_E = None
    searching = four_over_six and global_scale is None
    program_blocks = SEARCHING_PROGRAM_BLOCKS if searching else PROGRAM_BLOCKS
    num_tiles = triton.cdiv(rows * columns, program_blocks)
    # Four over six is bound by its instructions and a search by memory: a launch searches the next one's matrices.
    span = triton.cdiv(SEARCHING_PROGRAMS, num_tiles) if searching else num_matrices
    if num_matrices and (global_scale is None or check):
        amax_bits_E = torch.zeros(num_matrices, dtype=torch.int32, device=device)
        search(w_words, amax_bits_E, min(span, num_matrices), rows * columns, bf16)
    # Two blocks of a tile for each of 128 threads. With both candidates one for each of a warp's, so that few blocks
    # share the long arithmetic of one whose errors are all but equal.
    tile_blocks, num_warps = (32, 1) if four_over_six else (256, 4)
    for first_matrix in range(0, num_matrices, max(span, 1)):
        launch(_encode, (min(span, num_matrices - first_matrix) * num_tiles,))(
            w_words,
            amax_bits_E,
            codes.view(torch.int32),
            scales,
            global_scale_E,
            first_matrix,
            num_matrices,
            rows * columns,
            num_tiles,
            math.prod(scale_shape),
            DIVISOR=E2M1_MAX * (E4M3_MAX_FOUR_OVER_SIX if four_over_six else E4M3_MAX),
            COLUMNS=columns if swizzled else 0,
            FOUND=global_scale is None,
            SEARCH=searching and num_matrices > span,
            FOUR_OVER_SIX=four_over_six,
            SWIZZLED=swizzled,
            BF16=bf16,
            FMA=not interpreting(),
            BLOCKS=tile_blocks,
            STEPS=program_blocks // tile_blocks,
            num_warps=num_warps,
            maxnreg=FOUR_OVER_SIX_REGISTERS if four_over_six else MAX_REGISTERS,
            # The reference rounds every product before it adds.
            enable_fp_fusion=False,
        )
    if check and amax_bits_E is not None:
        finite = bool((amax_bits_E < INFINITY_BITS).all())
        require(finite, NumericsError, "NVFP4 weight", "NaN or infinite values", "finite ones")
    return codes, scales.view(torch.float8_e4m3fn), global_scale_E
