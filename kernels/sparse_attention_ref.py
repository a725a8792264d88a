"""Attention over gathered entries with a sink per head, in plain torch; whole, and in splits that are merged.

Contract: keys are the values (one shared head). softmax over the valid entries and one extra logit sinks[h], whose
probability is dropped: it only enlarges the denominator. fp32. A query with no valid entry gives 0. Sinks are finite.
A rotation given turns the output's last channels back, as values carry the rotation of their keys.
Live when: decode over window and selected entries on a machine without a GPU, or the reference is asked for.
"""

# B queries (batch and tokens flattened), H heads, D head dim, N gathered entries, R splits, S cache rows, W window
# rows, K entry rows, F rotated pairs.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.attention_cache_ref import num_rows, read_rows
from kernels.errors import ShapeError
from kernels.norm_ref import constant, rounded

# Cosines and sines fp32 [B, F] of the angles that the last 2 * F channels are to be turned back by.
Rotation = tuple[Tensor, Tensor]


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
        sinks_BH1 = sinks_H.float()[None, :, None].expand(logits_BHN.shape[0], -1, 1)
        probs_BHN = torch.cat((logits_BHN, sinks_BH1), -1).softmax(-1)[..., :-1]
        out_BHD = probs_BHN @ entries_BND.float()
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
    """The same output from `num_splits` independent parts, merged by log-sum-exp; the sink enters in the merge."""
    if num_splits < 1:
        raise ShapeError(f"{num_splits} splits: expected at least 1")
    if num_splits == 1:
        return sparse_attention_ref(q_BHD, entries_BND, valid_BN, sinks_H, scale)
    num_entries = entries_BND.shape[1]
    padding = -num_entries % num_splits
    if padding:
        entries_BND = F.pad(entries_BND, (0, 0, 0, padding))
        if valid_BN is None:
            valid_BN = torch.ones(entries_BND.shape[:2], dtype=torch.bool, device=q_BHD.device)
            valid_BN[:, num_entries:] = False
        else:
            valid_BN = F.pad(valid_BN, (0, padding))
    # All parts at once: they are one more leading axis.
    entries_RBND = entries_BND.unflatten(1, (num_splits, -1)).transpose(0, 1)
    valid_RBN = None if valid_BN is None else valid_BN.unflatten(1, (num_splits, -1)).transpose(0, 1)
    return merge_parts_ref(*attention_part_ref(q_BHD, entries_RBND, valid_RBN, scale), sinks_H)


def attention_part_ref(
    q_BHD: Tensor, entries_BND: Tensor, valid_BN: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Output float32 [B, H, D] of a softmax over these entries alone, and its log-sum-exp [B, H] (-inf when none).

    Entries with more leading axes than the queries are so many parts for the same queries.
    """
    logits_BHN = _logits(q_BHD, entries_BND, valid_BN, scale)
    if logits_BHN.shape[-1] == 0:
        empty_BH = logits_BHN.new_full(logits_BHN.shape[:-1], -torch.inf)
        return torch.zeros_like(q_BHD, dtype=torch.float32), empty_BH
    lse_BH = logits_BHN.logsumexp(-1)
    # A part without a valid entry has lse -inf; subtracting it from -inf would give NaN.
    probs_BHN = torch.exp(logits_BHN - torch.where(torch.isneginf(lse_BH), 0.0, lse_BH).unsqueeze(-1))
    return probs_BHN @ entries_BND.float(), lse_BH


def merge_parts_ref(out_RBHD: Tensor, lse_RBH: Tensor, sinks_H: Tensor) -> Tensor:
    """One output float32 [B, H, D] of the parts; the sink is one more part whose output is 0."""
    total_BH = torch.logaddexp(lse_RBH.logsumexp(0), sinks_H.float()[None, :])
    weight_RBH = torch.exp(lse_RBH - total_BH)
    return (out_RBHD * weight_RBH[..., None]).sum(0)


def _logits(q_BHD: Tensor, entries_BND: Tensor, valid_BN: Tensor | None, scale: float) -> Tensor:
    logits_BHN = q_BHD.float() @ entries_BND.float().mT * constant(scale, q_BHD.device)
    return logits_BHN if valid_BN is None else logits_BHN.masked_fill(~valid_BN.unsqueeze(-2), -torch.inf)
