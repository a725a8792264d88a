"""The routed experts in plain torch: gate and up projection, clamped SwiGLU, down projection, weighted sum.

Contract: out[t] = sum_k weight[t, k] * W2[e] (silu(min(g, L)) * clamp(u, -L, L)), g and u the halves [gate, up] of
W13[e] x[t], e = topk_ids[t, k]. fp32 throughout. An id below 0 or beyond the last expert adds nothing.
Live when: the runner asks for the reference, which is always so on a machine without a GPU.
"""

# T tokens, D model dim, E experts, K experts per token, I expert hidden, N routed rows = T * K.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels import nvfp4_ref
from kernels.errors import ShapeError
from kernels.nvfp4_layout import Nvfp4Experts


def swiglu_ref(gate_up: Tensor, swiglu_limit: float | None) -> Tensor:
    """silu(gate) * up of [..., 2I] in [gate, up] order; the limit clamps gate from above and up on both sides."""
    gate, up = gate_up.chunk(2, dim=-1)
    if swiglu_limit is not None:
        gate, up = gate.clamp(max=swiglu_limit), up.clamp(-swiglu_limit, swiglu_limit)
    return F.silu(gate) * up


def experts_ref(
    x_TD: Tensor,
    w13: Tensor,
    w2: Tensor,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    quantise: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The weighted sum of the routed experts, float32 [T, D].

    Args:
        x_TD: tokens, any float dtype.
        w13: [E, 2I, D], gate rows first.
        w2: [E, D, I].
        topk_ids_TK: integer expert ids.
        topk_weights_TK: routing weights; whatever scaling applies is already in them.
        swiglu_limit: clamp of the activation, None for none.
        quantise: rounds the rows [N, C] that go into each of the two GEMMs, row by row; None leaves them.

    Raises:
        ShapeError: the weights do not fit the tokens.
    """
    num_tokens, dim = x_TD.shape
    if w13.shape[2] != dim or w2.shape[1] != dim or w13.shape[1] != 2 * w2.shape[2]:
        raise ShapeError(
            f"experts of shapes {tuple(w13.shape)} and {tuple(w2.shape)} for tokens of width {dim}: "
            f"expected [E, 2I, {dim}] and [E, {dim}, I]"
        )
    num_picks = topk_ids_TK.shape[1]
    ids_N = topk_ids_TK.reshape(-1)
    order_N = torch.argsort(ids_N, stable=True)
    experts, counts = torch.unique_consecutive(ids_N[order_N], return_counts=True)
    rows_ND = torch.zeros(num_tokens * num_picks, dim, dtype=torch.float32, device=x_TD.device)
    start = 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        rows = order_N[start : start + count]
        start += count
        if 0 <= expert < w13.shape[0]:
            inputs = x_TD[rows // num_picks].float()
            inputs = inputs if quantise is None else quantise(inputs)
            hidden = swiglu_ref(inputs @ w13[expert].float().T, swiglu_limit)
            hidden = hidden if quantise is None else quantise(hidden)
            rows_ND[rows] = hidden @ w2[expert].float().T
    return (rows_ND.view(num_tokens, num_picks, dim) * topk_weights_TK.float()[..., None]).sum(1)


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
