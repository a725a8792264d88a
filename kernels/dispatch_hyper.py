"""Picks for hyper-connections: the mixing numbers, a layer's input, the new streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernels import hyper_ref, hyper_site_ref
from kernels.choice import Record, Requested, pick, told

if TYPE_CHECKING:
    from kernels.hyper_mix import Precision


def hyper_matrix(fn_MK: Tensor, dtype: torch.dtype, requested: Requested = "auto") -> Tensor:
    """What `hyper_premix` takes for fn, made once at load for streams of this dtype: fn as it is, or a kernel's form.

    fn is fp32 [M, K]. Where the kernel will be picked for streams in bf16 it is fn's parts, bf16 [3, M, K]
    (`hyper_mix.parts_of`), which the kernel alone takes.
    """
    if dtype == torch.bfloat16 and pick("hyper_premix", fn_MK, requested)[0] == "triton":
        from kernels.hyper_mix import parts_of

        return parts_of(fn_MK)
    return fn_MK


def hyper_premix(
    streams_TSD: Tensor,
    fn: Tensor,
    norm_eps: float,
    *,
    precision: Precision | None = None,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """The mixing numbers z float32 [..., M]; see `hyper_ref.premix_ref`.

    `fn` is fp32 [M, K], or what `hyper_matrix` made of it, which spares each call that work. `precision` is the
    kernel's choice of products (`hyper_mix`), by default one as good as fp32; the reference is fp32.
    """
    implementation, reason = pick("hyper_premix", streams_TSD, requested)
    run: Callable[..., Tensor] = hyper_ref.premix_ref
    more: tuple[Any, ...] = ()
    if implementation == "triton":
        from kernels.hyper_mix import premix as run

        more = (precision,)
    if record is not None:
        run = told(record, "hyper_premix", implementation, requested, reason, run)
    return run(streams_TSD, fn, norm_eps, *more)


def hyper_read(
    streams_TSD: Tensor,
    z_TM: Tensor,
    base_M: Tensor,
    scale: Tensor,
    eps: float,
    *,
    cut: hyper_site_ref.Cut | None = None,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """A layer's input [..., D] of the streams and z, in the streams' dtype; see `hyper_site_ref.read_ref`.

    `cut` spares the reference cutting base and scale.
    """
    implementation, reason = pick("hyper_read", streams_TSD, requested)
    run: Callable[..., Tensor] = hyper_site_ref.read_ref
    more: tuple[Any, ...] = (cut,)
    if implementation == "triton":
        from kernels.hyper import read as run

        more = ()
    if record is not None:
        run = told(record, "hyper_read", implementation, requested, reason, run)
    return run(streams_TSD, z_TM, base_M, scale, eps, *more)


def hyper_write(
    streams_TSD: Tensor,
    output_TD: Tensor,
    z_TM: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    iters: int,
    eps: float,
    *,
    cut: hyper_site_ref.Cut | None = None,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """The new streams [..., S, D], in the streams' dtype; see `hyper_site_ref.write_ref`.

    `cut` spares the reference cutting base and scale.
    """
    implementation, reason = pick("hyper_write", streams_TSD, requested)
    run: Callable[..., Tensor] = hyper_site_ref.write_ref
    more: tuple[Any, ...] = (cut,)
    if implementation == "triton":
        from kernels.hyper import write as run

        more = ()
    if record is not None:
        run = told(record, "hyper_write", implementation, requested, reason, run)
    return run(streams_TSD, output_TD, z_TM, base_M, scale_3, iters, eps, *more)
