"""Picks for the routed experts of a layer: plain weights, FP8 blocks, NVFP4."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels import experts_ref as experts_reference
from kernels.choice import Record, Requested, is_hopper, pick, told
from kernels.errors import DeviceError, DtypeError
from kernels.fp8_block_ref import Fp8Experts
from kernels.nvfp4_layout import HopperExperts, Nvfp4Experts, round_global_scales


def experts(
    x_TD: Tensor,
    w13: Tensor,
    w2: Tensor,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    quantise: Callable[[Tensor], Tensor] | None = None,
    quantise_hidden: Callable[[Tensor], Tensor] | None = None,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Routed experts over plain weights, [T, D]: fp32 by the reference, the tokens' dtype by a kernel.

    The kernel takes bf16 weights; other weights and activations to quantise go to the reference.
    """
    obstacle = _plain_obstacle(w13, quantise or quantise_hidden)
    implementation, reason = pick("experts", x_TD, requested, obstacle=obstacle, error=DtypeError)
    if implementation == "triton":
        from kernels.experts_plain import bf16_experts

        run = (
            bf16_experts if record is None else told(record, "experts", implementation, requested, reason, bf16_experts)
        )
        return run(x_TD, w13, w2, topk_ids_TK.int(), topk_weights_TK.float(), swiglu_limit)
    run = experts_reference.experts_ref
    if record is not None:
        run = told(record, "experts", implementation, requested, reason, run)
    return run(x_TD, w13, w2, topk_ids_TK, topk_weights_TK, swiglu_limit, quantise, quantise_hidden)


def fp8_experts(
    x_TD: Tensor,
    weights: Fp8Experts,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    quantise_activations: bool = True,
    factor: float | None = None,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Routed experts from FP8 block weights, [T, D]: fp32 by the reference, the tokens' dtype by a kernel.

    `quantise_activations` rounds the rows of both GEMMs to e4m3 with one scale per row and 128 columns; `factor` is the
    routed scaling factor where it belongs to the kernel.
    """
    implementation, reason = pick("fp8_experts", x_TD, requested)
    run: Callable[..., Tensor] = experts_reference.fp8_experts_ref
    if implementation == "triton":
        from kernels.experts_plain import fp8_experts as run
    if record is not None:
        run = told(record, "fp8_experts", implementation, requested, reason, run)
    return run(
        x_TD,
        weights,
        topk_ids_TK,
        topk_weights_TK,
        swiglu_limit,
        quantise_activations=quantise_activations,
        factor=factor,
    )


def nvfp4_experts(
    x_TD: Tensor,
    weights: Nvfp4Experts | None,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    factor: float | None = None,
    hopper: HopperExperts | None = None,
    global_scale_dtype: torch.dtype = torch.float32,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Routed experts from packed NVFP4 weights, [T, D]: fp32 by the reference, the tokens' dtype by a kernel.

    `hopper` are the same weights repacked; bf16 tokens on sm_90 use them where they are given, and then need no
    `weights`. `factor` is the routed
    scaling factor where it belongs to the kernel. `global_scale_dtype` bfloat16 is a peer's variant, less exact: see
    `nvfp4_layout.round_global_scales`.
    """
    packed: Nvfp4Experts | HopperExperts | None = weights
    repacked = hopper is not None and x_TD.dtype == torch.bfloat16 and is_hopper(x_TD.device)
    implementation, reason = pick("nvfp4_experts", x_TD, requested)
    if implementation == "triton" and repacked:
        from kernels.experts_hopper import experts_hopper

        run: Callable[..., Tensor] = experts_hopper
        packed, reason = hopper, f"{reason}, sm_90 and repacked weights"
    elif implementation == "triton":
        from kernels.experts import experts as run
    else:
        run = experts_reference.nvfp4_experts_ref
    if packed is None:
        raise DeviceError(
            f"nvfp4_experts: only repacked weights were given, for {x_TD.dtype} tokens on {x_TD.device} by the "
            f"{implementation}",
            hint="they serve bf16 tokens on sm_90; give the weights as they were stored as well",
        )
    if global_scale_dtype != torch.float32:
        packed = round_global_scales(packed, global_scale_dtype)
        reason = f"{reason}, {global_scale_dtype} global scales"
    if record is not None:
        run = told(record, "nvfp4_experts", implementation, requested, reason, run)
    return run(x_TD, packed, topk_ids_TK, topk_weights_TK, swiglu_limit, factor=factor)


def _plain_obstacle(weight: Tensor, quantise: Callable[[Tensor], Tensor] | None) -> str | None:
    """Why the kernel over plain weights cannot take these, or None."""
    if weight.dtype != torch.bfloat16:
        return f"weights are {weight.dtype}, the kernel takes bfloat16"
    return None if quantise is None else "activations are to be quantised, which the kernel does not do"
