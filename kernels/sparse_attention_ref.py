"""Attention over gathered entries with a sink per head, in plain torch; whole, and in splits that are merged.

Contract: keys are the values (one shared head). softmax over the valid entries and one extra logit sinks[h], whose
probability is dropped: it only enlarges the denominator. fp32. A query with no valid entry gives 0.
Live when: decode over window and selected entries on a machine without a GPU, or the reference is asked for.
"""

# B queries (batch and tokens flattened), H heads, D head dim, N gathered entries, R splits.

from __future__ import annotations

import torch
from torch import Tensor

from kernels.errors import ShapeError


def sparse_attention_ref(q_BHD: Tensor, entries_BND: Tensor, valid_BN: Tensor, sinks_H: Tensor, scale: float) -> Tensor:
    """The attention output float32 [B, H, D] of one softmax over all entries.

    Args:
        entries_BND: window and selected entries of each query, in any order.
        valid_BN: which of them count.
        scale: of the logits, usually D ** -0.5.
    """
    logits_BHN = _logits(q_BHD, entries_BND, valid_BN, scale)
    sinks_BH1 = sinks_H.float()[None, :, None].expand(logits_BHN.shape[0], -1, 1)
    probs_BHN = torch.cat((logits_BHN, sinks_BH1), -1).softmax(-1)[..., :-1]
    return probs_BHN @ entries_BND.float()


def sparse_attention_split_ref(
    q_BHD: Tensor, entries_BND: Tensor, valid_BN: Tensor, sinks_H: Tensor, scale: float, num_splits: int
) -> Tensor:
    """The same output from `num_splits` independent parts, merged by log-sum-exp; the sink enters in the merge."""
    if num_splits < 1:
        raise ShapeError(f"{num_splits} splits: expected at least 1")
    parts = [
        attention_part_ref(q_BHD, entries, valid, scale)
        for entries, valid in zip(
            entries_BND.tensor_split(num_splits, 1), valid_BN.tensor_split(num_splits, 1), strict=True
        )
    ]
    return merge_parts_ref(torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts]), sinks_H)


def attention_part_ref(q_BHD: Tensor, entries_BND: Tensor, valid_BN: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output float32 [B, H, D] of a softmax over these entries alone, and its log-sum-exp [B, H] (-inf when none)."""
    logits_BHN = _logits(q_BHD, entries_BND, valid_BN, scale)
    if logits_BHN.shape[-1] == 0:
        empty_BH = logits_BHN.new_full(logits_BHN.shape[:-1], -torch.inf)
        return torch.zeros_like(q_BHD, dtype=torch.float32), empty_BH
    lse_BH = logits_BHN.logsumexp(-1)
    # A part without a valid entry has lse -inf; subtracting it from -inf would give NaN.
    probs_BHN = torch.exp(logits_BHN - torch.where(torch.isneginf(lse_BH), 0.0, lse_BH)[..., None])
    return probs_BHN @ entries_BND.float(), lse_BH


def merge_parts_ref(out_RBHD: Tensor, lse_RBH: Tensor, sinks_H: Tensor) -> Tensor:
    """One output float32 [B, H, D] of the parts; the sink is one more part whose output is 0."""
    total_BH = torch.logaddexp(lse_RBH.logsumexp(0), sinks_H.float()[None, :])
    weight_RBH = torch.exp(lse_RBH - total_BH)
    return (out_RBHD * weight_RBH[..., None]).sum(0)


def _logits(q_BHD: Tensor, entries_BND: Tensor, valid_BN: Tensor, scale: float) -> Tensor:
    logits_BHN = q_BHD.float() @ entries_BND.float().transpose(1, 2) * scale
    return logits_BHN.masked_fill(~valid_BN[:, None, :], -torch.inf)
