"""Which experts a token goes to and with what weight, in plain torch.

Contract: s = score(logits); ids = top-k of s + bias (the bias chooses, it does not weigh), out of the best groups of
experts where there are groups, or given by a table of token ids; weights = s[ids], divided by their sum + 1e-20 where
renormalised, then times the factor where one is given. A shared expert may take one more column. fp32. Equal scores go
to the lower expert id, equal groups to the lower group.
Live when: one token on the CPU has its scores and weights computed in Python's floats, where they are few: so small an
operation costs its calls. They differ from torch's by fp32 rounding.
Source: Hugging Face transformers 5.24, models/deepseek_v4; groups: DeepSeek-V3 (arXiv 2412.19437).
"""

# T tokens, E experts, K experts per token, G groups of experts, V vocabulary.

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.errors import ShapeError
from kernels.norm_ref import constant, rounded

Scoring = Literal["sqrtsoftplus", "sigmoid", "softmax"]
RENORMALISE_EPS = 1e-20
# Up to so many scores are Python's floats.
MAX_FLOATS = 32


def score_ref(logits_TE: Tensor, scoring: Scoring) -> Tensor:
    """Router logits to fp32 scores >= 0."""
    logits_TE = rounded(logits_TE, torch.float32)
    if scoring == "sqrtsoftplus":
        return F.softplus(logits_TE).sqrt_()
    if scoring == "sigmoid":
        return logits_TE.sigmoid()
    return logits_TE.softmax(-1)


def check_picks(num_experts: int, topk: int, num_groups: int = 1, topk_groups: int = 1) -> None:
    """Refuse picks and groups that do not fit the experts.

    Raises:
        ShapeError: topk exceeds the number of experts, groups are not equal, or more are kept than there are.
    """
    if not 0 < topk <= num_experts:
        raise ShapeError(f"top-{topk} of {num_experts} experts: expected 0 < topk <= number of experts")
    if num_experts % num_groups or not 0 < topk_groups <= num_groups:
        raise ShapeError(
            f"{topk_groups} of {num_groups} groups of {num_experts} experts: expected equal groups, at most all of them"
        )


def route_ref(
    logits_TE: Tensor,
    topk: int,
    *,
    bias_E: Tensor | None = None,
    scoring: Scoring = "sqrtsoftplus",
    renormalise: bool = True,
    factor: float | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    shared_weight: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Top-k routing: topk_weights_TK float32 and topk_ids_TK int64, best first.

    Args:
        bias_E: added for the choice only.
        factor: multiplies the weights after renormalisation; None multiplies by nothing.
        topk_groups: how many of the `num_groups` groups a token's experts may come from.
        shared_weight: adds a last column, expert id E with this weight, which no factor multiplies.

    Raises:
        ShapeError: see `check_picks`.
    """
    check_picks(logits_TE.shape[-1], topk, num_groups, topk_groups)
    if topk_groups == num_groups and _is_short_row(logits_TE, logits_TE.shape[-1], scoring):
        scores_E = [_score(logit) for logit in logits_TE.view(-1).tolist()]
        choice_E = scores_E if bias_E is None else [s + bias for s, bias in zip(scores_E, bias_E.tolist(), strict=True)]
        # Only numbers have an order.
        if not math.isnan(sum(choice_E)):
            ids_K = sorted(range(len(choice_E)), key=choice_E.__getitem__, reverse=True)[:topk]
            topk_ids_TK = torch.from_numpy(np.array(ids_K)).view(*logits_TE.shape[:-1], topk)
            weights_TK = _weights_of_row([scores_E[i] for i in ids_K], topk_ids_TK, renormalise, factor)
            return with_shared_ref(weights_TK, topk_ids_TK, logits_TE.shape[-1], shared_weight)
    scores_TE = score_ref(logits_TE, scoring)
    choice_TE = scores_TE if bias_E is None else scores_TE + rounded(bias_E, torch.float32)
    choice_TE = best_groups_ref(choice_TE, num_groups, topk_groups)
    topk_ids_TK = torch.sort(choice_TE, dim=-1, descending=True, stable=True).indices[..., :topk]
    weights_TK = _weights(scores_TE, topk_ids_TK, renormalise, factor)
    return with_shared_ref(weights_TK, topk_ids_TK, logits_TE.shape[-1], shared_weight)


def best_groups_ref(choice_TE: Tensor, num_groups: int, topk_groups: int) -> Tensor:
    """The choice scores with minus infinity outside a token's best groups; a group's worth is its two best together."""
    if topk_groups == num_groups:
        return choice_TE
    choice_TGE = choice_TE.unflatten(-1, (num_groups, -1))
    worth_TG = choice_TGE.topk(min(2, choice_TGE.shape[-1]), -1).values.sum(-1)
    kept = torch.sort(worth_TG, dim=-1, descending=True, stable=True).indices[..., :topk_groups]
    lost_TG = torch.ones_like(worth_TG, dtype=torch.bool).scatter(-1, kept, False)
    return choice_TGE.masked_fill(lost_TG[..., None], float("-inf")).flatten(-2)


def hash_route_ref(
    logits_TE: Tensor,
    topk_ids_TK: Tensor,
    *,
    scoring: Scoring = "sqrtsoftplus",
    renormalise: bool = True,
    factor: float | None = None,
) -> Tensor:
    """The weights float32 [T, K] of experts that a table of token ids has chosen."""
    if _is_short_row(logits_TE, topk_ids_TK.numel(), scoring):
        ids_K, logits_E = topk_ids_TK.view(-1).tolist(), logits_TE.view(-1).tolist()
        if min(ids_K) >= 0:
            return _weights_of_row([_score(logits_E[i]) for i in ids_K], topk_ids_TK, renormalise, factor)
    return _weights(score_ref(logits_TE, scoring), topk_ids_TK, renormalise, factor)


def table_route_ref(
    logits_TE: Tensor,
    ids_T: Tensor,
    tid2eid_VK: Tensor,
    *,
    scoring: Scoring = "sqrtsoftplus",
    renormalise: bool = True,
    factor: float | None = None,
    shared_weight: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Hash routing: topk_weights_TK float32 and topk_ids_TK int64 of the experts a table names for each token id.

    `shared_weight` as in `route_ref`.
    """
    topk_ids_TK = rounded(tid2eid_VK[ids_T], torch.int64)
    weights_TK = hash_route_ref(logits_TE, topk_ids_TK, scoring=scoring, renormalise=renormalise, factor=factor)
    return with_shared_ref(weights_TK, topk_ids_TK, logits_TE.shape[-1], shared_weight)


def with_shared_ref(
    weights_TK: Tensor, topk_ids_TK: Tensor, expert: int, shared_weight: float | None
) -> tuple[Tensor, Tensor]:
    """One more column where a weight is given: the shared expert, picked by every token with that weight."""
    if shared_weight is None:
        return weights_TK, topk_ids_TK
    return F.pad(weights_TK, (0, 1), value=shared_weight), F.pad(topk_ids_TK, (0, 1), value=expert)


def _weights(scores_TE: Tensor, topk_ids_TK: Tensor, renormalise: bool, factor: float | None) -> Tensor:
    weights_TK = scores_TE.gather(-1, rounded(topk_ids_TK, torch.int64))
    if renormalise:
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + constant(RENORMALISE_EPS, weights_TK.device))
    return weights_TK if factor is None else weights_TK * factor


def _is_short_row(logits_TE: Tensor, num_scores: int, scoring: Scoring) -> bool:
    """Whether the logits are of one token on the CPU, of which few scores are wanted."""
    return (
        scoring == "sqrtsoftplus"
        and num_scores <= MAX_FLOATS
        and logits_TE.is_cpu
        and logits_TE.numel() == logits_TE.shape[-1]
    )


def _score(logit: float) -> float:
    """sqrt(softplus(logit)), without an exponential that can overflow."""
    return math.sqrt(max(logit, 0.0) + math.log1p(math.exp(-abs(logit))))


def _weights_of_row(scores_K: list[float], topk_ids_TK: Tensor, renormalise: bool, factor: float | None) -> Tensor:
    """`_weights` of the one token whose picks have these scores."""
    scale = 1.0 if factor is None else factor
    if renormalise:
        scale /= sum(scores_K) + RENORMALISE_EPS
    return torch.from_numpy(np.array([scale * s for s in scores_K], dtype=np.float32)).view(topk_ids_TK.shape)
