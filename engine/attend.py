"""The softmax of attention over window keys, compressed entries and a sink, for a whole stretch of queries.

Contract: keys are the values; logits q . k / sqrt(D); one softmax over the last W keys up to the query, the entries
it sees, and sinks[h], whose probability is dropped. `attend_stretch` takes every position of a stretch and all the
entries it sees, in blocks, so that no T x T matrix exists. Single queries and picked entries go through the sparse
attention kernel instead.
"""

# B sequences, T queries in a row, N blocks of Q queries, L window keys of a block (Q + W - 1), H heads, D head dim, C
# entries.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

MIN_BLOCK = 16
MAX_LOGITS = 1 << 22


def attend_stretch(
    q_BTHD: Tensor, keys_BTD: Tensor, entries_BCD: Tensor | None, visible_T: Tensor, sinks_H: Tensor, window: int
) -> Tensor:
    """The attention output [B, T, H, D] of T queries in a row.

    Args:
        keys_BTD: window keys; the last T of them are the queries' own, those before are of earlier tokens.
        entries_BCD: compressed entries, None in a sliding layer.
        visible_T: how many entries each query sees.
    """
    num_queries, num_entries = q_BTHD.shape[1], 0 if entries_BCD is None else entries_BCD.shape[1]
    block = max(MIN_BLOCK, min(window, 128))
    # Bounded logits: a chunk is a whole number of blocks.
    per_query = q_BTHD.shape[0] * q_BTHD.shape[2] * (block + window + num_entries)
    chunk = max(1, MAX_LOGITS // per_query // block) * block
    num_past = keys_BTD.shape[1] - num_queries
    outputs = []
    for start in range(0, num_queries, chunk):
        stop = min(start + chunk, num_queries)
        first_key = max(0, num_past + start - window + 1)
        outputs.append(
            _attend_chunk(
                q_BTHD[:, start:stop],
                keys_BTD[:, first_key : num_past + stop],
                entries_BCD,
                visible_T[start:stop],
                sinks_H,
                window,
                block,
            )
        )
    return joined(outputs)


def _attend_chunk(
    q_BTHD: Tensor,
    keys_BTD: Tensor,
    entries_BCD: Tensor | None,
    visible_T: Tensor,
    sinks_H: Tensor,
    window: int,
    block: int,
) -> Tensor:
    batch, num_queries, num_heads, dim = q_BTHD.shape
    num_blocks = -(-num_queries // block)
    padding = num_blocks * block - num_queries
    missing = window - 1 - (keys_BTD.shape[1] - num_queries)
    q_BNRD = F.pad(q_BTHD * dim**-0.5, (0, 0, 0, 0, 0, padding)).view(batch, num_blocks, block * num_heads, dim)
    keys_BNLD = F.pad(keys_BTD, (0, 0, missing, padding)).unfold(1, block + window - 1, block).transpose(2, 3)

    logits_BNQHL = (q_BNRD @ keys_BNLD.transpose(2, 3)).unflatten(2, (block, num_heads))
    logits_BNQHL.masked_fill_(~_window_mask(num_blocks, block, window, missing, q_BTHD.device)[:, :, None], -torch.inf)
    peak = torch.maximum(logits_BNQHL.amax(-1, keepdim=True), sinks_H[:, None])
    if entries_BCD is None or entries_BCD.shape[1] == 0:
        weights_BNQHL = logits_BNQHL.sub_(peak).exp_()
        total = weights_BNQHL.sum(-1, keepdim=True) + torch.exp(sinks_H[:, None] - peak)
        out_BNRD = weights_BNQHL.flatten(2, 3) @ keys_BNLD
    else:
        seen_NQC = _entry_mask(visible_T, padding, block, entries_BCD.shape[1])
        entries_BNCD = entries_BCD[:, None]
        entry_logits = (q_BNRD @ entries_BNCD.transpose(2, 3)).unflatten(2, (block, num_heads))
        entry_logits.masked_fill_(~seen_NQC[:, :, None], -torch.inf)
        peak = torch.maximum(peak, entry_logits.amax(-1, keepdim=True))
        weights_BNQHL = logits_BNQHL.sub_(peak).exp_()
        entry_weights = entry_logits.sub_(peak).exp_()
        total = (
            weights_BNQHL.sum(-1, keepdim=True)
            + entry_weights.sum(-1, keepdim=True)
            + torch.exp(sinks_H[:, None] - peak)
        )
        out_BNRD = weights_BNQHL.flatten(2, 3) @ keys_BNLD + entry_weights.flatten(2, 3) @ entries_BNCD
    out_BTHD = (out_BNRD.unflatten(2, (block, num_heads)) / total).flatten(1, 2)
    return out_BTHD[:, :num_queries]


def _window_mask(num_blocks: int, block: int, window: int, missing: int, device: torch.device) -> Tensor:
    """[N, Q, L]: key l of a block is in the window of its query q, and is a key rather than left padding."""
    query_Q1 = torch.arange(block, device=device)[:, None]
    key_L = torch.arange(block + window - 1, device=device)
    in_window_QL = (key_L >= query_Q1) & (key_L < query_Q1 + window)
    exists_NL = torch.arange(num_blocks, device=device)[:, None] * block + key_L >= missing
    return in_window_QL & exists_NL[:, None]


def _entry_mask(visible_T: Tensor, padding: int, block: int, num_entries: int) -> Tensor:
    """[N, Q, C]: entry c has closed by the time of query q."""
    visible_NQ1 = F.pad(visible_T, (0, padding)).view(-1, block, 1)
    return torch.arange(num_entries, device=visible_T.device) < visible_NQ1


def joined(chunks: Sequence[Tensor]) -> Tensor:
    """Chunks of queries side by side again; a lone one as it is, which `torch.cat` would copy."""
    return chunks[0] if len(chunks) == 1 else torch.cat(tuple(chunks), 1)
