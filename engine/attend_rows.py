"""Attention by rows: a kernel finds the candidates of each query in the caches themselves, so none are copied.

Contract: as `Attention`, but that outputs come rotated back. Rows are those of all sequences laid end to end, -1 where
there is none.
Live when: the dispatcher takes the kernel for `sparse_attention_rows` (`Attention.by_rows`).
"""

# B sequences, T new tokens, P query positions, Q queries of all sequences, H heads, E head dim, W window, K entries of
# a query.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attend import joined
from engine.cache import LayerCache, Rows, absent, flat_rows, newest_rows
from engine.events import Phase
from engine.indexer import Indexer
from engine.pages import PagedKeys
from engine.rope import StepTurns
from engine.settings import Kernels
from kernels import dispatch
from kernels.dispatch import Record
from kernels.sparse_attention_ref import Rotation

# Rows of candidates of one chunk of queries and, with an indexer, their scores: 256 MB of fp32.
MAX_ROWS = 1 << 26
REASON = "a kernel gathers the candidates"


class RowAttention:
    """The ways from queries and caches to outputs, for one layer."""

    def __init__(
        self,
        *,
        told: Callable[[str, Callable[..., Tensor], Phase], Record | None],
        window: int,
        rate: int,
        sinks_H: Tensor,
        head_dim: int,
        indexer: Indexer | None,
        kernels: Kernels,
    ) -> None:
        self.window, self.rate, self.sinks_H, self.head_dim = window, rate, sinks_H, head_dim
        self.told, self.indexer, self.kernels = told, indexer, kernels

    def newest(
        self,
        q_B1HE: Tensor,
        q_lora_B1Q: Tensor,
        weights_B1I: Tensor,
        step: StepTurns,
        keys_BNE: Tensor,
        cache: LayerCache,
        phase: Phase,
    ) -> Tensor:
        """The newest token sees all of the window and of the entries: but for picked ones its rows are kept ones."""
        record = self.told(REASON, RowAttention.newest, phase)
        batch, num_keys, _ = keys_BNE.shape
        entries, entry_rows, device = cache.entries, None, q_B1HE.device
        if entries is not None and entries.num_rows:
            num_entries, capacity = entries.num_rows, entries.buffer.shape[1]
            if picked := self._picking(cache, num_entries):
                indexer, keys = picked
                entry_rows = indexer.pick(q_lora_B1Q, weights_B1I, step.turns_1T1F, None, keys, phase).squeeze(1)
                if batch > 1:
                    # Where each sequence begins.
                    entry_rows = entry_rows + newest_rows(batch, 1, capacity, 1, device)
            else:
                entry_rows = newest_rows(batch, num_entries, capacity, num_entries, device)
        window_rows = newest_rows(batch, num_keys, num_keys, self.window, device)
        q_BHE, rotation = q_B1HE.squeeze(1), step.rotation(batch)
        return self._attend(q_BHE, keys_BNE, window_rows, entries, entry_rows, rotation, record).view(q_B1HE.shape)

    def every(
        self,
        q_BPHE: Tensor,
        q_lora_BPQ: Tensor,
        weights_BPI: Tensor,
        position_BP: Tensor,
        turns_BP1F: Tensor,
        keys_BTE: Tensor,
        first_key: int,
        cache: LayerCache,
        phase: Phase,
    ) -> Tensor:
        """Queries at any positions, in chunks of bounded size; `first_key` is the position of key 0."""
        record = self.told(REASON, RowAttention.every, phase)
        num_entries = 0 if cache.entries is None else cache.entries.num_rows
        chunk = max(1, MAX_ROWS // (q_BPHE.shape[0] * (self.window + num_entries)))
        offset_W = torch.arange(1 - first_key - self.window, 1 - first_key, device=q_BPHE.device)
        outputs = []
        for first in range(0, q_BPHE.shape[1], chunk):
            part = (slice(None), slice(first, first + chunk))
            entry_rows = None
            if cache.entries is not None and num_entries:
                asked = (q_lora_BPQ[part], weights_BPI[part], position_BP[part], turns_BP1F[part])
                numbers_BPK = self._numbers(*asked, cache, num_entries, phase)
                entry_rows = flat_rows(cache.entries.buffer, numbers_BPK).flatten(0, 1)
            turns_QF = turns_BP1F[part].squeeze(2).expand(q_BPHE.shape[0], -1, -1).flatten(0, 1)
            out = self._attend(
                q_BPHE[part].flatten(0, 1),
                keys_BTE,
                flat_rows(keys_BTE, position_BP[part][..., None] + offset_W).flatten(0, 1),
                cache.entries,
                entry_rows,
                (turns_QF.real, turns_QF.imag),
                record,
            )
            outputs.append(out.unflatten(0, (q_BPHE.shape[0], -1)))
        return joined(outputs)

    def _numbers(
        self,
        q_lora_BPQ: Tensor,
        weights_BPI: Tensor,
        position_BP: Tensor,
        turns_BP1F: Tensor,
        cache: LayerCache,
        num_entries: int,
        phase: Phase,
    ) -> Tensor:
        """Which entries each query attends to, int64 [B, P, K]; -1 where there is none."""
        # An entry is seen by the very token that closes it.
        visible_BP = (position_BP + 1) // self.rate
        if picked := self._picking(cache, num_entries):
            indexer, keys = picked
            return indexer.pick(q_lora_BPQ, weights_BPI, turns_BP1F, visible_BP, keys, phase)
        number_K = torch.arange(num_entries, device=q_lora_BPQ.device)
        return torch.where(number_K < visible_BP[..., None], number_K, absent(number_K.device))

    def _picking(self, cache: LayerCache, num_entries: int) -> tuple[Indexer, PagedKeys] | None:
        """The indexer and its keys where there are more entries than it picks."""
        if self.indexer is None or cache.index_keys is None or num_entries <= self.indexer.topk:
            return None
        return self.indexer, cache.index_keys

    def _attend(
        self,
        q_QHE: Tensor,
        keys_BTE: Tensor,
        window_rows_QW: Tensor,
        entries: Rows | None,
        entry_rows_QK: Tensor | None,
        rotation: Rotation,
        record: Record | None,
    ) -> Tensor:
        return dispatch.sparse_attention_rows(
            q_QHE,
            keys_BTE.flatten(0, 1),
            window_rows_QW,
            None if entries is None or entry_rows_QK is None else entries.buffer.flatten(0, 1),
            entry_rows_QK,
            self.sinks_H,
            self.head_dim**-0.5,
            rotation=rotation,
            out_dtype=q_QHE.dtype,
            requested=self.kernels,
            record=record,
        )
