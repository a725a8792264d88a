"""Attention over gathered entries with a sink per head, in plain torch; whole, and in splits that are merged.

Contract: keys are the values (one shared head). softmax over the valid entries and one extra logit sinks[h], whose
probability is dropped: it only enlarges the denominator. fp32. A query with no valid entry gives 0. Sinks are finite.
A rotation given turns the output's last channels back, as values carry the rotation of their keys.
Live when: decode over window and selected entries on a machine without a GPU, or the reference is asked for.
"""

# B queries (batch and tokens flattened), H heads, D head dim, N gathered entries, R splits of P entries, S cache rows,
# W window rows, K entry rows, F rotated pairs.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.attention_cache_ref import num_rows, read_rows
from kernels.errors import ShapeError
from kernels.norm_ref import constant, rounded

# Cosines and sines fp32 [B, F] of the angles that the last 2 * F channels are to be turned back by.
Rotation = tuple[Tensor, Tensor]
LOWEST = torch.finfo(torch.float32).min


def sparse_attention_ref(
    q_BHD: Tensor,
    entries_BND: Tensor,
    valid_BN: Tensor | None,
    sinks_H: Tensor,
    scale: float,
    *,
    split_size: int | None = None,
    rotation: Rotation | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The attention output [B, H, D] of one softmax over all entries, in fp32 until it is rounded to `out_dtype`.

    Args:
        entries_BND: window and selected entries of each query, in any order.
        valid_BN: which of them count, None for all.
        scale: of the logits, usually D ** -0.5.
        split_size: the most entries of a split, None for one softmax.
    """
    if split_size is None:
        logits_BHN = _logits(q_BHD, entries_BND, valid_BN, scale)
        sinks_BH1 = rounded(sinks_H, torch.float32).view(1, -1, 1)
        if logits_BHN.shape[0] > 1:
            sinks_BH1 = sinks_BH1.expand(logits_BHN.shape[0], -1, 1)
        probs_BHN = torch.cat((logits_BHN, sinks_BH1), -1).softmax(-1)[..., :-1]
        out_BHD = torch.bmm(probs_BHN, rounded(entries_BND, torch.float32))
    else:
        num_splits = max(1, -(-entries_BND.shape[1] // split_size))
        out_BHD = sparse_attention_split_ref(q_BHD, entries_BND, valid_BN, sinks_H, scale, num_splits)
    if rotation is not None:
        out_BHD = rotate_back_ref(out_BHD, rotation)
    return rounded(out_BHD, out_dtype)


def sparse_attention_rows_ref(
    q_BHD: Tensor,
    window_SD: Tensor,
    window_rows_BW: Tensor,
    entries_SD: Tensor | None,
    entry_rows_BK: Tensor | None,
    sinks_H: Tensor,
    scale: float,
    *,
    split_size: int | None = None,
    rotation: Rotation | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The attention output [B, H, D] over rows of two caches, packed or plain; see `attention_cache_ref`.

    Args:
        window_rows_BW, entry_rows_BK: rows of each query; what is no row of the cache (-1) is no candidate.

    Other arguments are those of `sparse_attention_ref`.
    """
    sources = [(window_SD, window_rows_BW)]
    if entries_SD is not None and entry_rows_BK is not None:
        sources.append((entries_SD, entry_rows_BK))
    entries_BND = torch.cat([read_rows(cache, rows, q_BHD.shape[-1]) for cache, rows in sources], 1)
    valid_BN = torch.cat([(rows >= 0) & (rows < num_rows(cache)) for cache, rows in sources], 1)
    return sparse_attention_ref(
        q_BHD, entries_BND, valid_BN, sinks_H, scale, split_size=split_size, rotation=rotation, out_dtype=out_dtype
    )


def rotate_back_ref(out_BHD: Tensor, rotation: Rotation) -> Tensor:
    """The last 2 * F channels in pairs (2i, 2i + 1), (a, b) -> (a cos + b sin, b cos - a sin)."""
    cos_B1F, sin_B1F = (table[:, None] for table in rotation)
    first = out_BHD.shape[-1] - 2 * cos_B1F.shape[-1]
    even, odd = out_BHD[..., first::2], out_BHD[..., first + 1 :: 2]
    turned = torch.stack((even * cos_B1F + odd * sin_B1F, odd * cos_B1F - even * sin_B1F), -1)
    return torch.cat((out_BHD[..., :first], turned.flatten(-2)), -1)


def sparse_attention_split_ref(
    q_BHD: Tensor, entries_BND: Tensor, valid_BN: Tensor | None, sinks_H: Tensor, scale: float, num_splits: int
) -> Tensor:
    """The same output from `num_splits` parts with a softmax each, merged by log-sum-exp; the sink enters in the merge.

    All parts at once, as one more axis of the logits. The merge weighs the probabilities, so that the entries stay one
    matrix, without padding.
    """
    if num_splits < 1:
        raise ShapeError(f"{num_splits} splits: expected at least 1")
    if num_splits == 1:
        return sparse_attention_ref(q_BHD, entries_BND, valid_BN, sinks_H, scale)
    logits_BHN = _logits(q_BHD, entries_BND, valid_BN, scale)
    num_entries = logits_BHN.shape[-1]
    part_size = -(-num_entries // num_splits)
    if num_entries < num_splits * part_size:
        logits_BHN = F.pad(logits_BHN, (0, num_splits * part_size - num_entries), value=-torch.inf)
    probs_BHRP, lse_BHR1 = part_probs_ref(logits_BHN.unflatten(-1, (num_splits, part_size)))
    weight_BHR1 = part_weights_ref(lse_BHR1, sinks_H)
    probs_BHN = probs_BHRP.mul_(weight_BHR1).flatten(-2)[..., :num_entries]
    return torch.bmm(probs_BHN, rounded(entries_BND, torch.float32))


def part_probs_ref(logits_BHRP: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of each part float32 [B, H, R, P], and its log-sum-exp [B, H, R, 1]; without entries 0 and -inf."""
    # From -inf, a part without a valid entry, nothing can be subtracted: the difference would be NaN.
    peak_BHR1 = logits_BHRP.amax(-1, keepdim=True).clamp_(min=LOWEST)
    probs_BHRP = logits_BHRP.sub(peak_BHR1).exp_()
    total_BHR1 = probs_BHRP.sum(-1, keepdim=True)
    # The peak's own entry makes the total at least 1, unless there is none.
    return probs_BHRP.div_(total_BHR1.clamp(min=1)), total_BHR1.log_().add_(peak_BHR1)


def part_weights_ref(lse_BHR1: Tensor, sinks_H: Tensor) -> Tensor:
    """What each part counts in the whole, float32 [B, H, R, 1]; the sink is one more part whose output is 0."""
    sinks_BH11 = rounded(sinks_H, torch.float32).view(1, -1, 1, 1).expand(lse_BHR1.shape[0], -1, 1, 1)
    return torch.cat((lse_BHR1, sinks_BH11), -2).softmax(-2)[..., :-1, :]


def _logits(q_BHD: Tensor, entries_BND: Tensor, valid_BN: Tensor | None, scale: float) -> Tensor:
    q_BHD, entries_BND = rounded(q_BHD, torch.float32), rounded(entries_BND, torch.float32)
    logits_BHN = torch.baddbmm(constant(0.0, q_BHD.device), q_BHD, entries_BND.mT, beta=0, alpha=scale)
    return logits_BHN if valid_BN is None else logits_BHN.masked_fill_(~valid_BN.unsqueeze(-2), -torch.inf)
