"""Hyper-connections on a GPU, the pre-mix: z = RMS(flatten(X)) . fn^T, with X read once.

Contract: as `hyper_ref.premix_ref`, except that the factor of the RMS norm multiplies after the dot products. X is cut
into slices of SLICE numbers and every EACH of them are a group. Blocks of BLOCK_K add up to a slice, in order and from
zero, slices to a group and groups to z. `_mix_slice` takes one slice of a tile of tokens, or from WHOLE_FROM_TOKENS up
a whole group of them; `hyper_sum._add_slices` adds what is left. The order is the same either way, so a token's z does
not depend on the batch, and it is the same from run to run.
Precision, by name:
- "bf16x3": fn in three bf16 parts that together are fn to its last bit (`parts_of`), for X in bf16; each product is
  exact and the sums are fp32, so this is fp32 at the speed of the bf16 tensor cores;
- "tf32": X and fn rounded to 11 bits on the tensor cores; X in bf16 is exact in them, fn is not;
- "fp32": fp32 products off the tensor cores, bound by instructions and not by the bytes.
Live when: tensors lie on a GPU of sm_80 or newer. PRECISION names the branch of `_mix_slice`; under "bf16x3" `fn` is
the parts. UPCAST: they go into fp32 products, for the interpreter, whose bf16 dots are wrong. SLICES: the slices of a
program, 1 or EACH. OVERLAP: from sm_90 on a launch starts before the one ahead of it has ended and waits inside.
Cost: the bytes of X bound it from 1024 tokens up: 134 MB at 4096 tokens of 16384 numbers in bf16, 31 us at 4.3 TB/s.
Parts made in the call are eight small launches of torch more; whoever calls again keeps them.
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
from kernels.hyper_sum import _add_slices
from kernels.launch import launch

Precision = Literal["fp32", "tf32", "bf16x3"]
SLICE = 512
EACH = 4
# From here up tiles of 128 tokens, whose reads of fn cost half as much.
WIDE_FROM_TOKENS = 1024
# From here up a program takes a whole group: there are programs enough, and a quarter of the sums to write and read.
WHOLE_FROM_TOKENS = 4096
MOST_GROUPS_AT_ONCE = 16


def _slice_metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    tokens, k, m, fn = args["num_tokens"], args["K"], args["M"], args["fn"]
    size = tokens * k * args["streams"].element_size() + fn.numel() * fn.element_size() + 4 * grid[0] * tokens * (m + 1)
    name = f"hyper premix {tokens} x {k} x {m} {args['PRECISION']}"
    return {"name": name, "bytes": size, "flops": 2 * tokens * k * (m + 1)}


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
    SLICES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    first = tl.program_id(0) * (SLICE * SLICES)
    t_T = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    m_M = tl.arange(0, BLOCK_M)
    real_T = t_T < num_tokens
    row_T = streams + t_T.to(tl.int64) * row_stride
    slice_TM = tl.zeros([BLOCK_T, BLOCK_M], tl.float32)
    slice_T = tl.zeros([BLOCK_T], tl.float32)
    sum_TM = tl.zeros([BLOCK_T, BLOCK_M], tl.float32)
    sum_T = tl.zeros([BLOCK_T], tl.float32)
    for start in range(0, SLICE * SLICES, BLOCK_K):
        k_K = first + start + tl.arange(0, BLOCK_K)
        x_TK = tl.load(row_T[:, None] + k_K[None, :], mask=real_T[:, None] & (k_K < K)[None, :], other=0.0)
        wide_TK = x_TK.to(tl.float32)
        slice_T += tl.sum(wide_TK * wide_TK, axis=1)
        place_MK = fn + m_M[:, None] * K + k_K[None, :]
        real_MK = (m_M < M)[:, None] & (k_K < K)[None, :]
        fn_MK = tl.load(place_MK, mask=real_MK, other=0.0)
        if PRECISION == "bf16x3":
            middle_MK = tl.load(place_MK + M * K, mask=real_MK, other=0.0)
            low_MK = tl.load(place_MK + 2 * M * K, mask=real_MK, other=0.0)
            # The small parts first and each block from zero: a tensor core cuts off what does not fit the larger sum.
            if UPCAST:
                block_TM = tl.dot(wide_TK, tl.trans(low_MK.to(tl.float32)), input_precision="ieee")
                block_TM = tl.dot(wide_TK, tl.trans(middle_MK.to(tl.float32)), block_TM, input_precision="ieee")
                block_TM = tl.dot(wide_TK, tl.trans(fn_MK.to(tl.float32)), block_TM, input_precision="ieee")
            else:
                block_TM = tl.dot(x_TK, tl.trans(low_MK))
                block_TM = tl.dot(x_TK, tl.trans(middle_MK), block_TM)
                block_TM = tl.dot(x_TK, tl.trans(fn_MK), block_TM)
            slice_TM += block_TM
        elif PRECISION == "tf32":
            slice_TM = tl.dot(wide_TK, tl.trans(fn_MK), slice_TM, input_precision="tf32")
        else:
            slice_TM = tl.dot(wide_TK, tl.trans(fn_MK), slice_TM, input_precision="ieee")
        # Selected and not branched upon: Triton lets a branch read what the tensor core still adds to.
        ends = (start + BLOCK_K) % SLICE == 0
        sum_TM += tl.where(ends, slice_TM, 0.0)
        sum_T += tl.where(ends, slice_T, 0.0)
        slice_TM = tl.where(ends, 0.0, slice_TM)
        slice_T = tl.where(ends, 0.0, slice_T)
    place_T = tl.program_id(0).to(tl.int64) * num_tokens + t_T
    tl.store(squares + place_T, sum_T, mask=real_T)
    real_TM = real_T[:, None] & (m_M < M)[None, :]
    tl.store(dots + place_T[:, None] * M + m_M[None, :], sum_TM, mask=real_TM)


def parts_of(fn_MK: Tensor) -> Tensor:
    """The three parts [3, M, K] in bf16 of fn [M, K] in fp32: what "bf16x3" multiplies by, largest part first.

    Each part is what is left rounded to bf16, to the nearest; what a part leaves over is exact in fp32, and what the
    second leaves over fits the third. So they add up to fn to its last bit, but for a third part below bf16's smallest
    number.
    """
    high_MK = fn_MK.bfloat16()
    left_MK = fn_MK - high_MK.float()
    middle_MK = left_MK.bfloat16()
    return torch.stack((high_MK, middle_MK, (left_MK - middle_MK.float()).bfloat16()))


def premix(streams_TSD: Tensor, fn: Tensor, norm_eps: float, precision: Precision | None = None) -> Tensor:
    """z float32 [..., M] of streams [..., S, D] in bf16 or fp32.

    Args:
        fn: [M, K] in fp32, or for "bf16x3" its parts [3, M, K] in bf16; without them this call makes them.
        precision: by default fp32's: "bf16x3" for streams in bf16, "fp32" for streams in fp32.

    Raises:
        DtypeError: streams are not bf16 or fp32, fn is neither fp32 nor parts, or the precision asks for others.
        ShapeError: a size or a stride does not fit.
        DeviceError: the tensors are not all on one GPU.
    """
    require_device("hyper_premix", streams_TSD, fn)
    streams_TSD, lead = check_streams(streams_TSD)
    num_tokens, width = streams_TSD.shape[0], streams_TSD.shape[1] * streams_TSD.shape[2]
    half = streams_TSD.dtype == torch.bfloat16
    if precision is None:
        precision = "bf16x3" if half else "fp32"
    require(precision != "bf16x3" or half, DtypeError, "streams of a bf16x3 pre-mix", streams_TSD.dtype, "bf16")
    in_parts = fn.dtype == torch.bfloat16 and precision == "bf16x3"
    wanted = "fp32, or parts in bf16 for bf16x3"
    require(in_parts or fn.dtype == torch.float32, DtypeError, "hyper-connection matrix", fn.dtype, wanted)
    num_mixes, slices = fn.shape[-2], triton.cdiv(width, SLICE)
    shape = (3, num_mixes, width) if in_parts else (num_mixes, width)
    require(fn.shape == shape, ShapeError, "shape of the hyper-connection matrix", tuple(fn.shape), shape)
    require(fn.is_contiguous(), ShapeError, "strides of the hyper-connection matrix", fn.stride(), "contiguous")
    require(num_mixes <= 64, ShapeError, "mixing numbers", num_mixes, "at most 64")
    z = torch.empty(num_tokens, num_mixes, device=fn.device)
    if num_tokens == 0:
        return z.view(*lead, num_mixes)
    if precision == "bf16x3" and not in_parts:
        fn = parts_of(fn)
    wide = num_tokens >= WIDE_FROM_TOKENS and precision == "bf16x3"
    whole = num_tokens >= WHOLE_FROM_TOKENS and precision == "bf16x3"
    rows = triton.cdiv(slices, EACH) if whole else slices
    dots = torch.empty(rows, num_tokens, num_mixes, device=fn.device)
    squares = torch.empty(rows, num_tokens, device=fn.device)
    block_t = 128 if wide else 64
    overlap = overlaps(streams_TSD.device)
    launch(_mix_slice, (rows, triton.cdiv(num_tokens, block_t)))(
        streams_TSD,
        fn,
        dots,
        squares,
        num_tokens,
        streams_TSD.stride(0),
        K=width,
        M=num_mixes,
        PRECISION=precision,
        UPCAST=interpreting(),
        SLICE=SLICE,
        SLICES=EACH if whole else 1,
        BLOCK_T=block_t,
        BLOCK_K=64 if half else 32,
        BLOCK_M=max(16, triton.next_power_of_2(num_mixes)),
        num_warps=8 if wide else 4,
        num_stages=4,
        **overlapped(overlap),
    )
    each = 1 if whole else EACH
    launch(_add_slices, (triton.cdiv(num_tokens, 8),))(
        dots,
        squares,
        z,
        num_tokens,
        norm_eps,
        K=width,
        M=num_mixes,
        ROWS=rows,
        EACH=each,
        AT_ONCE=min(MOST_GROUPS_AT_ONCE, triton.cdiv(rows, each)),
        BLOCK_T=8,
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
