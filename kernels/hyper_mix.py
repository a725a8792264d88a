"""Hyper-connections on a GPU, the pre-mix: z = RMS(flatten(X)) . fn^T, with X read once.

Contract: as `hyper_ref.premix_ref`, except that the factor of the RMS norm multiplies after the dot products. X is cut
into slices of SLICE numbers; `_mix_slice` takes one slice of a tile of tokens to its dot products and its sum of
squares, `_add_slices` adds the slices in their order. Slices and the order inside one never follow from the number of
tokens, so a token's z does not depend on the batch, and it is the same from run to run.
Precision, by name:
- "bf16x3": fn in three bf16 parts that together are fn to its last bit, for X in bf16; each product is exact and the
  sums are fp32, so this is fp32 at the speed of the bf16 tensor cores;
- "tf32": X and fn rounded to 11 bits on the tensor cores; X in bf16 is exact in them, fn is not;
- "fp32": fp32 products off the tensor cores, bound by instructions and not by the bytes.
Live when: tensors lie on a GPU of sm_80 or newer. PRECISION names the branch of `_mix_slice`. UPCAST: the parts of
"bf16x3" go into fp32 products, for the interpreter, whose bf16 dots are wrong. OVERLAP: from sm_90 on a launch starts
before the one ahead of it has ended and waits inside.
Cost: the bytes of X bound it from 1024 tokens up: 134 MB at 4096 tokens of 16384 numbers in bf16, 31 us at 4.3 TB/s.
Shared memory is as busy: X passes it five times (in, squares, three products), fn twice and its parts three times.
"""

# T tokens, S streams, D model dim, K = S * D, M mixing numbers.

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from kernels.checks import interpreting, overlapped, overlaps, require, require_device
from kernels.errors import DtypeError, ShapeError
from kernels.launch import launch

Precision = Literal["fp32", "tf32", "bf16x3"]
SLICE = 512
# From here up tiles of 128 tokens: fn, which every tile reads, then costs a quarter of the bytes of X and not half.
WIDE_FROM_TOKENS = 1024
MOST_AT_ONCE = 32


def _slice_metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    tokens, k, m = args["num_tokens"], args["K"], args["M"]
    slices = triton.cdiv(k, args["SLICE"])
    size = tokens * k * args["streams"].element_size() + 4 * m * k + 4 * slices * tokens * (m + 1)
    name = f"hyper premix {tokens} x {k} x {m} {args['PRECISION']}"
    return {"name": name, "bytes": size, "flops": 2 * tokens * k * (m + 1)}


def _add_metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    tokens, m, slices = args["num_tokens"], args["M"], args["SLICES"]
    size = 4 * tokens * (slices * (m + 1) + m)
    return {"name": f"hyper premix sum {tokens} x {slices}", "bytes": size, "flops": tokens * slices * (m + 1)}


@triton.jit(launch_metadata=_slice_metadata, do_not_specialize=["num_tokens"])
def _mix_slice(  # type: ignore[no-untyped-def]
    streams,
    fn,
    dots,
    squares,
    num_tokens,
    row_stride,
    K: tl.constexpr,
    M: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    first = tl.program_id(0) * SLICE
    t_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    m_M = tl.arange(0, BLOCK_M)
    real_T = t_T < num_tokens
    row_T = streams + t_T.to(tl.int64) * row_stride
    dot_TM = tl.zeros([BLOCK_T, BLOCK_M], tl.float32)
    rest_TM = tl.zeros([BLOCK_T, BLOCK_M], tl.float32)
    square_T = tl.zeros([BLOCK_T], tl.float32)
    for start in range(0, SLICE, BLOCK_K):
        k_K = first + start + tl.arange(0, BLOCK_K)
        x_TK = tl.load(row_T[:, None] + k_K[None, :], mask=real_T[:, None] & (k_K < K)[None, :], other=0.0)
        fn_MK = tl.load(fn + m_M[:, None] * K + k_K[None, :], mask=(m_M < M)[:, None] & (k_K < K)[None, :], other=0.0)
        wide_TK = x_TK.to(tl.float32)
        square_T += tl.sum(wide_TK * wide_TK, axis=1)
        if PRECISION == "bf16x3":
            # What a part leaves over is exact in fp32, and what the second leaves over fits the third.
            high_MK = fn_MK.to(tl.bfloat16)
            left_MK = fn_MK - high_MK.to(tl.float32)
            middle_MK = left_MK.to(tl.bfloat16)
            low_MK = (left_MK - middle_MK.to(tl.float32)).to(tl.bfloat16)
            if UPCAST:
                dot_TM = tl.dot(wide_TK, tl.trans(high_MK.to(tl.float32)), dot_TM, input_precision="ieee")
                rest_TM = tl.dot(wide_TK, tl.trans(middle_MK.to(tl.float32)), rest_TM, input_precision="ieee")
                rest_TM = tl.dot(wide_TK, tl.trans(low_MK.to(tl.float32)), rest_TM, input_precision="ieee")
            else:
                # A sum of their own for the small parts: tensor cores cut off what does not fit the larger sum.
                dot_TM = tl.dot(x_TK, tl.trans(high_MK), dot_TM)
                rest_TM = tl.dot(x_TK, tl.trans(middle_MK), rest_TM)
                rest_TM = tl.dot(x_TK, tl.trans(low_MK), rest_TM)
        elif PRECISION == "tf32":
            dot_TM = tl.dot(wide_TK, tl.trans(fn_MK), dot_TM, input_precision="tf32")
        else:
            dot_TM = tl.dot(wide_TK, tl.trans(fn_MK), dot_TM, input_precision="ieee")
    place_T = tl.program_id(0).to(tl.int64) * num_tokens + t_T
    tl.store(squares + place_T, square_T, mask=real_T)
    real_TM = real_T[:, None] & (m_M < M)[None, :]
    tl.store(dots + place_T[:, None] * M + m_M[None, :], dot_TM + rest_TM, mask=real_TM)


@triton.jit(launch_metadata=_add_metadata, do_not_specialize=["num_tokens"])
def _add_slices(  # type: ignore[no-untyped-def]
    dots,
    squares,
    z,
    num_tokens,
    norm_eps,
    K: tl.constexpr,
    M: tl.constexpr,
    SLICES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    t_T = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    m_M = tl.arange(0, BLOCK_M)
    real_T = t_T < num_tokens
    real_TM = real_T[:, None] & (m_M < M)[None, :]
    place_TM = t_T[:, None] * M + m_M[None, :]
    dot_TM = tl.zeros([BLOCK_T, BLOCK_M], tl.float32)
    square_T = tl.zeros([BLOCK_T], tl.float32)
    # Unrolled, so that many slices are on their way at once.
    for first in range(0, SLICES, AT_ONCE):
        for i in tl.static_range(AT_ONCE):
            row = (first + i) * num_tokens.to(tl.int64)
            real = first + i < SLICES
            dot_TM += tl.load(dots + row * M + place_TM, mask=real_TM & real, other=0.0)
            square_T += tl.load(squares + row + t_T, mask=real_T & real, other=0.0)
    tl.store(z + place_TM, dot_TM * tl.rsqrt(square_T / K + norm_eps)[:, None], mask=real_TM)


def premix(streams_TSD: Tensor, fn_MK: Tensor, norm_eps: float, precision: Precision | None = None) -> Tensor:
    """z float32 [..., M] of streams [..., S, D] in bf16 or fp32.

    Args:
        precision: by default fp32's: "bf16x3" for streams in bf16, "fp32" for streams in fp32.

    Raises:
        DtypeError: streams are not bf16 or fp32, fn is not fp32, or the precision asks for other streams.
        ShapeError: a size or a stride does not fit.
        DeviceError: the tensors are not all on one GPU.
    """
    require_device("hyper_premix", streams_TSD, fn_MK)
    streams_TSD, lead = check_streams(streams_TSD)
    num_tokens, width = streams_TSD.shape[0], streams_TSD.shape[1] * streams_TSD.shape[2]
    half = streams_TSD.dtype == torch.bfloat16
    if precision is None:
        precision = "bf16x3" if half else "fp32"
    require(precision != "bf16x3" or half, DtypeError, "streams of a bf16x3 pre-mix", streams_TSD.dtype, "bf16")
    require(fn_MK.dtype == torch.float32, DtypeError, "hyper-connection matrix", fn_MK.dtype, "fp32")
    require(fn_MK.shape[-1] == width, ShapeError, "width of the hyper-connection matrix", fn_MK.shape[-1], width)
    require(fn_MK.is_contiguous(), ShapeError, "strides of the hyper-connection matrix", fn_MK.stride(), "contiguous")
    num_mixes, slices = fn_MK.shape[0], triton.cdiv(width, SLICE)
    require(num_mixes <= 64, ShapeError, "mixing numbers", num_mixes, "at most 64")
    z = torch.empty(num_tokens, num_mixes, device=fn_MK.device)
    if num_tokens == 0:
        return z.view(*lead, num_mixes)
    dots = torch.empty(slices, num_tokens, num_mixes, device=fn_MK.device)
    squares = torch.empty(slices, num_tokens, device=fn_MK.device)
    wide = num_tokens >= WIDE_FROM_TOKENS and precision == "bf16x3"
    block_t = 128 if wide else 64
    overlap = overlaps(streams_TSD.device)
    launch(_mix_slice, (slices, triton.cdiv(num_tokens, block_t)))(
        streams_TSD,
        fn_MK,
        dots,
        squares,
        num_tokens,
        streams_TSD.stride(0),
        K=width,
        M=num_mixes,
        PRECISION=precision,
        UPCAST=interpreting(),
        SLICE=SLICE,
        BLOCK_T=block_t,
        BLOCK_K=64 if half else 32,
        BLOCK_M=max(16, triton.next_power_of_2(num_mixes)),
        num_warps=8 if wide else 4,
        num_stages=4,
        **overlapped(overlap),
    )
    launch(_add_slices, (triton.cdiv(num_tokens, 16),))(
        dots,
        squares,
        z,
        num_tokens,
        norm_eps,
        K=width,
        M=num_mixes,
        SLICES=slices,
        AT_ONCE=min(MOST_AT_ONCE, triton.next_power_of_2(slices)),
        BLOCK_T=16,
        BLOCK_M=triton.next_power_of_2(num_mixes),
        num_warps=4,
        **overlapped(overlap),
    )
    return z.view(*lead, num_mixes)


def check_streams(streams: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Streams [..., S, D] as [T, S, D] and the leading sizes.

    Raises:
        DtypeError: they are not bf16 or fp32.
        ShapeError: one token's streams do not lie together, or D is no multiple of 16.
    """
    require(streams.dtype in (torch.bfloat16, torch.float32), DtypeError, "streams", streams.dtype, "bf16 or fp32")
    num_streams, dim = streams.shape[-2:]
    require(num_streams in (2, 4), ShapeError, "streams of a token", num_streams, "2 or 4")
    require(dim % 16 == 0, ShapeError, "model dim", dim, "a multiple of 16")
    together = streams.stride(-1) == 1 and streams.stride(-2) == dim
    require(together, ShapeError, "strides of streams", streams.stride(), f"(..., {dim}, 1)")
    return streams.reshape(-1, num_streams, dim), tuple(streams.shape[:-2])
