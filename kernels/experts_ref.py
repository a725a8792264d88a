"""The routed experts in plain torch: gate and up projection, clamped SwiGLU, down projection, weighted sum.

Contract: out[t] = sum_k weight[t, k] * W2[e] (silu(min(g, L)) * clamp(u, -L, L)), g and u the halves [gate, up] of
W13[e] x[t], e = topk_ids[t, k]. fp32 throughout. An id below 0 or beyond the last expert adds nothing.
Live when: the runner asks for the reference, which is always so on a machine without a GPU.
"""

# T tokens, D model dim, E experts, K experts per token, I expert hidden, N routed rows = T * K.

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels import fp8_block_ref, nvfp4_ref
from kernels.errors import ShapeError
from kernels.fp8_block_ref import Fp8Experts
from kernels.norm_ref import constant, rounded
from kernels.nvfp4_layout import Nvfp4Experts

# Up to so many picks each has products of its own; with more, the tokens of an expert share them.
MAX_SINGLE_PICKS = 8
# From the rows that go into the first GEMM, and that GEMM, to the rows that go into the second.
Activated = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]


def swiglu_ref(gate_up: Tensor, swiglu_limit: float | None) -> Tensor:
    """silu(gate) * up of [..., 2I] in [gate, up] order; the limit clamps gate from above and up on both sides.

    Computed in fp32 and rounded once to the dtype of what came in.
    """
    dtype, gate_up = gate_up.dtype, rounded(gate_up, torch.float32)
    if swiglu_limit is not None:
        gate_up = gate_up.clamp(*_bounds(swiglu_limit, gate_up.shape[-1], gate_up.device))
    gate, up = gate_up.chunk(2, dim=-1)
    return rounded(F.silu(gate).mul_(up), dtype)


@cache
def _bounds(swiglu_limit: float, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The lowest and the highest that each of the gate and up numbers may be, float32 [2I] each."""
    with torch.inference_mode(False):
        high_2I = torch.full((width,), swiglu_limit, device=device)
        low_2I = -high_2I
        low_2I[: width // 2] = -torch.inf
    return low_2I, high_2I


def experts_ref(
    x_TD: Tensor,
    w13: Tensor,
    w2: Tensor,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    quantise: Callable[[Tensor], Tensor] | None = None,
    quantise_hidden: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The weighted sum of the routed experts, float32 [T, D].

    Args:
        x_TD: tokens, any float dtype.
        w13: [E, 2I, D], gate rows first.
        w2: [E, D, I].
        topk_ids_TK: integer expert ids.
        topk_weights_TK: routing weights; whatever scaling applies is already in them.
        swiglu_limit: clamp of the activation, None for none.
        quantise: rounds the rows [N, D] that go into the first GEMM, row by row; None leaves them.
        quantise_hidden: the same for the rows [N, I] that go into the second; None rounds them with `quantise`.

    Raises:
        ShapeError: the weights do not fit the tokens.
    """
    dim = x_TD.shape[1]
    if w13.shape[2] != dim or w2.shape[1] != dim or w13.shape[1] != 2 * w2.shape[2]:
        raise ShapeError(
            f"experts of shapes {tuple(w13.shape)} and {tuple(w2.shape)} for tokens of width {dim}: "
            f"expected [E, 2I, {dim}] and [E, {dim}, I]"
        )

    def activated(inputs: Tensor, gate_and_up: Callable[[Tensor], Tensor]) -> Tensor:
        """What goes into the second GEMM for these rows, by the first one."""
        inputs = inputs if quantise is None else quantise(inputs)
        hidden = swiglu_ref(gate_and_up(inputs), swiglu_limit)
        rounds = quantise_hidden or quantise
        return hidden if rounds is None else rounds(hidden)

    x_TD, topk_weights_TK = rounded(x_TD, torch.float32), rounded(topk_weights_TK, torch.float32)
    few = topk_ids_TK.is_cpu and 0 < topk_ids_TK.numel() <= MAX_SINGLE_PICKS
    by = _by_token if few else _by_expert
    return by(x_TD, w13, w2, topk_ids_TK, topk_weights_TK, activated)


def _by_token(
    x_TD: Tensor, w13: Tensor, w2: Tensor, topk_ids_TK: Tensor, topk_weights_TK: Tensor, activated: Activated
) -> Tensor:
    """Each token by itself, with its experts' weights as they lie, for a few tokens."""
    outputs = []
    num_experts, zero = w13.shape[0], constant(0.0, x_TD.device)
    picks_TK = zip(topk_ids_TK.tolist(), topk_weights_TK.tolist(), strict=True)
    for x_1D, (ids_K, weights_K) in zip(x_TD.split(1) if x_TD.shape[0] > 1 else [x_TD], picks_TK, strict=True):
        picks = [(expert, weight) for expert, weight in zip(ids_K, weights_K, strict=True) if 0 <= expert < num_experts]
        if not picks:
            outputs.append(torch.zeros(w2.shape[1]))
            continue
        hidden_KI = activated(x_1D, partial(_products, experts=[expert for expert, _ in picks], weights=w13))
        out_D, kept = zero, 0
        for hidden_I, (expert, weight) in zip(hidden_KI.unbind(), picks, strict=True):
            out_D = torch.addmv(out_D, rounded(w2[expert], torch.float32), hidden_I, beta=kept, alpha=weight)
            kept = 1
        outputs.append(out_D)
    return outputs[0].unsqueeze(0) if len(outputs) == 1 else torch.stack(outputs)


def _products(x_1D: Tensor, experts: list[int], weights: Tensor) -> Tensor:
    """Each expert's matrix times the row, [number of experts, rows of a matrix]."""
    x_D = x_1D.view(-1)
    return torch.stack([torch.mv(rounded(weights[expert], torch.float32), x_D) for expert in experts])


def _by_expert(
    x_TD: Tensor, w13: Tensor, w2: Tensor, topk_ids_TK: Tensor, topk_weights_TK: Tensor, activated: Activated
) -> Tensor:
    """Each expert with the tokens that picked it."""
    num_tokens, num_picks = topk_ids_TK.shape
    ids_N = topk_ids_TK.reshape(-1)
    order_N = torch.argsort(ids_N, stable=True)
    experts, counts = torch.unique_consecutive(ids_N[order_N], return_counts=True)
    rows_ND = torch.zeros(num_tokens * num_picks, w2.shape[1], dtype=torch.float32, device=x_TD.device)
    start = 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        rows = order_N[start : start + count]
        start += count
        if 0 <= expert < len(w13):
            hidden = activated(x_TD[rows // num_picks], partial(F.linear, weight=w13[expert].float()))
            rows_ND[rows] = F.linear(hidden, w2[expert].float())
    return (rows_ND.view(num_tokens, num_picks, w2.shape[1]) * topk_weights_TK[..., None]).sum(1)


def nvfp4_experts_ref(
    x_TD: Tensor,
    weights: Nvfp4Experts,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    factor: float | None = None,
) -> Tensor:
    """The same sum, float32 [T, D], from packed NVFP4 weights, times the routed scaling factor where it is given."""
    w13 = nvfp4_ref.decode(weights.w13_codes, weights.w13_scale, weights.w13_global)
    w2 = nvfp4_ref.decode(weights.w2_codes, weights.w2_scale, weights.w2_global)
    out_TD = experts_ref(x_TD, w13, w2, topk_ids_TK, topk_weights_TK, swiglu_limit)
    return out_TD if factor is None else out_TD * factor


def fp8_experts_ref(
    x_TD: Tensor,
    weights: Fp8Experts,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    quantise_activations: bool = True,
    factor: float | None = None,
) -> Tensor:
    """The same sum, float32 [T, D], from FP8 block weights, times the routed scaling factor where it is given.

    `quantise_activations` rounds the rows of both GEMMs to e4m3 with one scale per row and 128 columns.
    """
    w13 = fp8_block_ref.decode(weights.w13, weights.w13_scale)
    w2 = fp8_block_ref.decode(weights.w2, weights.w2_scale)
    quantise = _through_e4m3 if quantise_activations else None
    out_TD = experts_ref(x_TD, w13, w2, topk_ids_TK, topk_weights_TK, swiglu_limit, quantise)
    return out_TD if factor is None else out_TD * factor


def _through_e4m3(x_NC: Tensor) -> Tensor:
    return fp8_block_ref.decode_rows(*fp8_block_ref.encode_rows(x_NC))
