"""Which experts a token goes to and with what weight, in plain torch.

Contract: s = score(logits); ids = top-k of s + bias (the bias chooses, it does not weigh), or given by a table of token
ids; weights = s[ids], divided by their sum + 1e-20 where renormalised, then times the factor where one is given.
fp32. Equal scores go to the lower expert id.
Source: Hugging Face transformers 5.24, models/deepseek_v4.
"""

# T tokens, E experts, K experts per token.

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.errors import ShapeError

Scoring = Literal["sqrtsoftplus", "sigmoid", "softmax"]
RENORMALISE_EPS = 1e-20


def score_ref(logits_TE: Tensor, scoring: Scoring) -> Tensor:
    """Router logits to fp32 scores >= 0."""
    logits_TE = logits_TE.float()
    if scoring == "sqrtsoftplus":
        return F.softplus(logits_TE).sqrt()
    if scoring == "sigmoid":
        return logits_TE.sigmoid()
    return logits_TE.softmax(-1)


def route_ref(
    logits_TE: Tensor,
    topk: int,
    *,
    bias_E: Tensor | None = None,
    scoring: Scoring = "sqrtsoftplus",
    renormalise: bool = True,
    factor: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Top-k routing: topk_weights_TK float32 and topk_ids_TK int64, best first.

    Args:
        bias_E: added for the choice only.
        factor: multiplies the weights after renormalisation; None multiplies by nothing.

    Raises:
        ShapeError: topk exceeds the number of experts.
    """
    if topk > logits_TE.shape[-1]:
        raise ShapeError(f"top-{topk} of {logits_TE.shape[-1]} experts: expected topk <= number of experts")
    scores_TE = score_ref(logits_TE, scoring)
    choice_TE = scores_TE if bias_E is None else scores_TE + bias_E.float()
    topk_ids_TK = torch.sort(choice_TE, dim=-1, descending=True, stable=True).indices[..., :topk]
    return _weights(scores_TE, topk_ids_TK, renormalise, factor), topk_ids_TK


def hash_route_ref(
    logits_TE: Tensor,
    topk_ids_TK: Tensor,
    *,
    scoring: Scoring = "sqrtsoftplus",
    renormalise: bool = True,
    factor: float | None = None,
) -> Tensor:
    """The weights float32 [T, K] of experts that a table of token ids has chosen."""
    return _weights(score_ref(logits_TE, scoring), topk_ids_TK, renormalise, factor)


def _weights(scores_TE: Tensor, topk_ids_TK: Tensor, renormalise: bool, factor: float | None) -> Tensor:
    weights_TK = scores_TE.gather(-1, topk_ids_TK.long())
    if renormalise:
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + RENORMALISE_EPS)
    return weights_TK if factor is None else weights_TK * factor
