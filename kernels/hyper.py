"""Hyper-connections on a GPU, what follows the pre-mix: a layer's input, and the new streams, one launch each.

Contract: as `hyper_site_ref.read_ref` and `write_ref`: fp32 inside, one rounding to the streams' dtype. Every program
of `_write` makes its token's comb itself, one number a lane, four shuffles an iteration. A token's result does not
depend on the batch.
Live when: tensors lie on a GPU of sm_80 or newer. ITERS > 1: the loop of `_sinkhorn` runs. OVERLAP: from sm_90 on a
launch starts before the one ahead of it has ended and waits inside.
Cost: bytes alone. 4096 tokens of 4 x 4096 in bf16: read 168 MB, 39 us at 4.3 TB/s; write 302 MB, 70 us. A Sinkhorn of
20 iterations is 600 instructions a warp, most of them waiting for the one before: with one program a token and six of
them on a multiprocessor it hides behind the others' bytes, at one token it is most of the time.
"""

# T tokens, S streams, D model dim, M = (2 + S) * S mixing numbers, or S at the head.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from kernels.checks import overlapped, overlaps, require, require_device
from kernels.errors import DtypeError, ShapeError
from kernels.hyper_mix import check_streams
from kernels.launch import launch

BLOCK_D = 1024
# From here up one program of `_write` takes more columns of its token, so that fewer make the same comb.
WIDE_FROM_TOKENS, BLOCKS_EACH = 256, 8


def _read_metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    tokens, s, d = grid[0], args["S"], args["D"]
    size = tokens * ((s + 1) * d * args["streams"].element_size() + 4 * s)
    return {"name": f"hyper read {tokens} x {s} x {d}", "bytes": size, "flops": 2 * tokens * s * d}


def _write_metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    tokens, s, d = grid[0], args["S"], args["D"]
    size = tokens * (d * (2 * s * args["streams"].element_size() + args["output"].element_size()) + 4 * (s + 1) * s)
    return {"name": f"hyper write {tokens} x {s} x {d}", "bytes": size, "flops": 2 * tokens * s * (s + 1) * d}


@triton.jit(launch_metadata=_read_metadata)
def _read(  # type: ignore[no-untyped-def]
    streams,
    z,
    base,
    scale,
    out,
    eps,
    row_stride,
    z_stride,
    S: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    t = tl.program_id(0).to(tl.int64)
    d_D = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    real_D = d_D < D
    read_D = tl.zeros([BLOCK_D], tl.float32)
    for s in tl.static_range(S):
        x_D = tl.load(streams + t * row_stride + s * D + d_D, mask=real_D, other=0.0).to(tl.float32)
        pre = tl.sigmoid(tl.load(scale) * tl.load(z + t * z_stride + s) + tl.load(base + s)) + eps
        read_D += pre * x_D
    tl.store(out + t * D + d_D, read_D.to(out.dtype.element_ty), mask=real_D)


@triton.jit
def _sinkhorn(logit_JK, eps, ITERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A doubly stochastic matrix: row softmax, then columns, then ITERS - 1 times rows and columns."""
    comb_JK = tl.exp(logit_JK - tl.max(logit_JK, axis=1)[:, None])
    comb_JK = comb_JK / tl.sum(comb_JK, axis=1)[:, None] + eps
    comb_JK = comb_JK / (tl.sum(comb_JK, axis=0)[None, :] + eps)
    for _ in range(ITERS - 1):
        comb_JK = comb_JK / (tl.sum(comb_JK, axis=1)[:, None] + eps)
        comb_JK = comb_JK / (tl.sum(comb_JK, axis=0)[None, :] + eps)
    return comb_JK


@triton.jit(launch_metadata=_write_metadata)
def _write(  # type: ignore[no-untyped-def]
    streams,
    output,
    z,
    base,
    scale_3,
    out,
    eps,
    row_stride,
    output_stride,
    z_stride,
    S: tl.constexpr,
    D: tl.constexpr,
    ITERS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    t = tl.program_id(0).to(tl.int64)
    s_S = tl.arange(0, S)
    post_S = 2.0 * tl.sigmoid(tl.load(scale_3 + 1) * tl.load(z + t * z_stride + S + s_S) + tl.load(base + S + s_S))
    place_JK = 2 * S + s_S[:, None] * S + s_S[None, :]
    logit_JK = tl.load(scale_3 + 2) * tl.load(z + t * z_stride + place_JK) + tl.load(base + place_JK)
    comb_JK = _sinkhorn(logit_JK, eps, ITERS)
    first = tl.program_id(1) * COLUMNS
    for start in range(first, first + COLUMNS, BLOCK_D):
        d_D = start + tl.arange(0, BLOCK_D)
        real_D = d_D < D
        x_JD = tl.load(streams + t * row_stride + s_S[:, None] * D + d_D[None, :], mask=real_D[None, :], other=0.0)
        output_D = tl.load(output + t * output_stride + d_D, mask=real_D, other=0.0).to(tl.float32)
        # What of comb and post a k needs is the same for all columns: the compiler takes it out of the loop.
        for k in tl.static_range(S):
            post = tl.sum(tl.where(s_S == k, post_S, 0.0), axis=0)
            column_J = tl.sum(tl.where(s_S[None, :] == k, comb_JK, 0.0), axis=1)
            new_D = tl.sum(column_J[:, None] * x_JD.to(tl.float32), axis=0) + post * output_D
            tl.store(out + (t * S + k) * D + d_D, new_D.to(out.dtype.element_ty), mask=real_D)


def read(streams_TSD: Tensor, z_TM: Tensor, base_M: Tensor, scale: Tensor, eps: float) -> Tensor:
    """The layer's input [..., D] of streams [..., S, D] and z [..., M], in the streams' dtype.

    Raises:
        DtypeError: streams are not bf16 or fp32, or z, base or scale not fp32.
        ShapeError: a size or a stride does not fit.
        DeviceError: the tensors are not all on one GPU.
    """
    require_device("hyper_read", streams_TSD, z_TM, base_M, scale)
    streams_TSD, lead = check_streams(streams_TSD)
    num_tokens, num_streams, dim = streams_TSD.shape
    z_TM = _check_mixes(z_TM, base_M, scale, lead, (num_streams, (2 + num_streams) * num_streams))
    out = torch.empty(num_tokens, dim, dtype=streams_TSD.dtype, device=z_TM.device)
    if num_tokens:
        block_d = min(BLOCK_D, triton.next_power_of_2(dim))
        launch(_read, (num_tokens, triton.cdiv(dim, block_d)))(
            streams_TSD,
            z_TM,
            base_M,
            scale,
            out,
            eps,
            streams_TSD.stride(0),
            z_TM.stride(0),
            S=num_streams,
            D=dim,
            BLOCK_D=block_d,
            num_warps=4,
            **overlapped(overlaps(out.device)),
        )
    return out.view(*lead, dim)


def write(
    streams_TSD: Tensor, output_TD: Tensor, z_TM: Tensor, base_M: Tensor, scale_3: Tensor, iters: int, eps: float
) -> Tensor:
    """The new streams [..., S, D] of the old ones, the layer's output [..., D] and z [..., M], in the streams' dtype.

    Raises:
        DtypeError: streams or output are not bf16 or fp32, or z, base or scale not fp32.
        ShapeError: a size or a stride does not fit, or there is no iteration.
        DeviceError: the tensors are not all on one GPU.
    """
    require_device("hyper_write", streams_TSD, output_TD, z_TM, base_M, scale_3)
    streams_TSD, lead = check_streams(streams_TSD)
    num_tokens, num_streams, dim = streams_TSD.shape
    z_TM = _check_mixes(z_TM, base_M, scale_3, lead, ((2 + num_streams) * num_streams,))
    require(scale_3.numel() == 3, ShapeError, "scales of a hyper-connection", scale_3.numel(), 3)
    require(iters >= 1, ShapeError, "Sinkhorn iterations", iters, "at least 1")
    require(output_TD.dtype in (torch.bfloat16, torch.float32), DtypeError, "layer output", output_TD.dtype,
            "bf16 or fp32")  # fmt: skip
    require(output_TD.shape == (*lead, dim), ShapeError, "layer output", tuple(output_TD.shape), (*lead, dim))
    require(output_TD.stride(-1) == 1, ShapeError, "stride of layer output", output_TD.stride(), "1 along D")
    output_TD = output_TD.reshape(-1, dim)
    out = torch.empty(num_tokens, num_streams, dim, dtype=streams_TSD.dtype, device=z_TM.device)
    if num_tokens:
        block_d = min(BLOCK_D, triton.next_power_of_2(dim))
        blocks = min(triton.cdiv(dim, block_d), BLOCKS_EACH if num_tokens >= WIDE_FROM_TOKENS else 1)
        launch(_write, (num_tokens, triton.cdiv(dim, blocks * block_d)))(
            streams_TSD,
            output_TD,
            z_TM,
            base_M,
            scale_3,
            out,
            eps,
            streams_TSD.stride(0),
            output_TD.stride(0),
            z_TM.stride(0),
            S=num_streams,
            D=dim,
            ITERS=iters,
            COLUMNS=blocks * block_d,
            BLOCK_D=block_d,
            num_warps=4,
            **overlapped(overlaps(out.device)),
        )
    return out.view(*lead, num_streams, dim)


def _check_mixes(
    z_TM: Tensor, base_M: Tensor, scale: Tensor, lead: tuple[int, ...], num_mixes: tuple[int, ...]
) -> Tensor:
    """z as [T, M], where it fits base, scale and the streams."""
    for what, tensor in (("mixing numbers z", z_TM), ("hyper-connection base", base_M), ("scale", scale)):
        require(tensor.dtype == torch.float32, DtypeError, what, tensor.dtype, "fp32")
        require(tensor.stride(-1) == 1, ShapeError, f"stride of {what}", tensor.stride(), "1 along the last axis")
    require(z_TM.shape[-1] in num_mixes, ShapeError, "mixing numbers", z_TM.shape[-1], " or ".join(map(str, num_mixes)))
    require(z_TM.shape[:-1] == lead, ShapeError, "mixing numbers z", tuple(z_TM.shape), (*lead, z_TM.shape[-1]))
    require(base_M.shape == z_TM.shape[-1:], ShapeError, "base", tuple(base_M.shape), tuple(z_TM.shape[-1:]))
    return z_TM.reshape(-1, z_TM.shape[-1])
