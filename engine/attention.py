"""Attention of one layer: shared key-value head, sliding window, compressed entries, sinks, grouped output projection.

Contract: c = RMS(q_a x); q_h = rope(RMS(q_b c)_h); u = rope(RMS(kv x)) is key AND value, so the output is rotated
back at the query's position. Candidates are the last W keys including the query's own and, by layer kind, no entries
(sliding), all visible entries (HCA), or those the indexer picks (CSA). A layer uses one rope for all of it: main if
sliding, compress otherwise.
"""

# B sequences, T new tokens, P query positions, D model dim, H heads, E head dim, W window, C entries, K picks, N
# candidates, Q query bottleneck, I index heads (none in a layer without an indexer).

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.attend import attend_stretch, joined
from engine.attend_rows import RowAttention
from engine.cache import LayerCache, Rows, gather_rows
from engine.checkpoint import Tensors
from engine.compressor import Compressor
from engine.config import CSA, SLIDING, ModelConfig
from engine.events import Phase
from engine.indexer import Indexer
from engine.pages import PagedKeys, PagePool
from engine.projections import Projections, by_column
from engine.rope import Rope
from engine.settings import Kernels
from kernels import dispatch
from kernels.dispatch import Record
from kernels.norm_ref import rotate_ref, rounded

# Gathered candidates of one chunk of queries, in numbers: 64 MB of fp32.
MAX_GATHERED = 1 << 24
# Candidates per split of a decode step.
SPLIT_SIZE = 64


class Asked(NamedTuple):
    """One token a sequence by the matrices that read it: with all of them joined, the query's bottleneck, the heads."""

    product_B1R: Tensor
    q_lora_B1Q: Tensor
    q_B1HE: Tensor


class Attention:
    def __init__(
        self,
        tensors: Tensors,
        config: ModelConfig,
        layer: int,
        index_dtype: torch.dtype,
        ropes: Mapping[str, Rope],
        kernels: Kernels,
    ) -> None:
        heads, head_dim, groups = config.num_attention_heads, config.head_dim, config.o_groups
        self.layer, self.num_heads, self.head_dim, self.num_groups = layer, heads, head_dim, groups
        self.window, self.norm_eps, self.index_dtype = config.sliding_window, config.rms_norm_eps, index_dtype
        q_a = tensors.matrix("q_a_proj.weight", config.q_lora_rank, config.hidden_size)
        self.q_a_norm = tensors.take("q_a_norm.weight", config.q_lora_rank)
        self.q_b = by_column(tensors.matrix("q_b_proj.weight", heads * head_dim, config.q_lora_rank))
        kv = tensors.matrix("kv_proj.weight", head_dim, config.hidden_size)
        self.kv_norm = tensors.take("kv_norm.weight", head_dim)
        o_a = tensors.matrix("o_a_proj.weight", groups * config.o_lora_rank, heads * head_dim // groups)
        self.o_a_GFR = o_a.view(groups, config.o_lora_rank, -1).mT
        self.o_b = by_column(tensors.matrix("o_b_proj.weight", config.hidden_size, groups * config.o_lora_rank))
        self.sinks_H = tensors.take("sinks", heads)
        self.kernels = kernels

        kind = config.layer_types[layer]
        self.rate = config.compress_rate(layer)
        self.rope = ropes[kind]
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        remembered, index_weights = [kv], q_a[:0]
        if kind != SLIDING:
            inner = tensors.within("compressor")
            self.compressor = Compressor(
                inner, config, rate=self.rate, width=head_dim, overlap=kind == CSA, rope=self.rope, kernels=kernels
            )
            remembered += self.compressor.take_projections(inner)
            if kind == CSA:
                inner = inner.within("indexer")
                self.indexer = Indexer(inner, config, rate=self.rate, rope=self.rope, layer=layer, kernels=kernels)
                remembered += self.indexer.compressor.take_projections(inner)
                index_weights = self.indexer.take_weights(inner)
        # All that reads a token: first what every token leaves in the cache, then what only a query needs.
        self.num_remembered = len(remembered)
        self.projections = Projections([*remembered, q_a, index_weights])
        self.kv = self.projections.each()[0]
        self.by_rows: RowAttention | None = None
        if dispatch.pick("sparse_attention_rows", self.o_b, kernels)[0] == "triton":
            self.by_rows = RowAttention(
                told=self._told,
                window=self.window,
                rate=self.rate,
                sinks_H=self.sinks_H,
                head_dim=head_dim,
                indexer=self.indexer,
                kernels=kernels,
            )

    def new_cache(self, batch: int) -> LayerCache:
        cache = LayerCache(self.kv.new_zeros(batch, 0, self.head_dim))
        if self.compressor is not None:
            cache.entries = Rows(self.kv.new_zeros(batch, 0, self.head_dim))
            cache.compressor = self.compressor.new_state(batch)
        if self.indexer is not None:
            pool = PagePool(self.indexer.head_dim, self.index_dtype, self.kv.device)
            cache.index_keys = PagedKeys(pool, torch.empty(batch, 0, dtype=torch.int64, device=self.kv.device))
            cache.index_compressor = self.indexer.compressor.new_state(batch)
        return cache

    def forward(self, x_BTD: Tensor, cache: LayerCache, start: int, phase: Phase, queries_BP: Tensor | None) -> Tensor:
        """Takes in T tokens from position `start` on and returns the output of the asked queries.

        Args:
            queries_BP: which of the T tokens ask, None for all of them.
        """
        batch, num_new, _ = x_BTD.shape
        if queries_BP is None and num_new == 1 and self.by_rows is not None:
            return self.project(self.attend_newest(self.ask(x_BTD, phase), cache, start, phase))
        record = events.recorder(layer=self.layer, phase=phase)
        step = self.rope.of_step(start, num_new)
        if queries_BP is None:
            num_queries, turns_BP1F = num_new, step.turns_1T1F
            products = self.projections.apply(x_BTD)
            keys_BTE = self._remember(products[: self.num_remembered], step.turns_TF, cache, record)
            q_lora, index_weights = products[self.num_remembered :]
        else:
            num_queries = queries_BP.shape[1]
            remembered = self.projections.apply_some(x_BTD, 0, self.num_remembered)
            keys_BTE = self._remember(remembered, step.turns_TF, cache, record)
            if num_queries == 0:
                return x_BTD[:, :0]
            x_BPD = x_BTD.gather(1, queries_BP[..., None].expand(-1, -1, x_BTD.shape[-1]))
            q_lora, index_weights = self.projections.apply_some(x_BPD, self.num_remembered, self.num_remembered + 2)
            turns_BP1F = step.turns_TF[queries_BP].unsqueeze(2)
        q_lora, q_BPHE = self._query(q_lora, record)
        q_BPHE = dispatch.norm(q_BPHE, self.norm_eps, None, turns_BP1F, requested=self.kernels, record=record)

        num_entries = 0 if cache.entries is None else cache.entries.num_rows
        if self.by_rows is None and num_new == num_queries == 1:
            out_BPHE = self._attend_newest(q_BPHE, q_lora, index_weights, turns_BP1F, keys_BTE, cache, phase)
        elif self.by_rows is None and queries_BP is None and not self._is_sparse(num_entries):
            self._told("every position, every entry", attend_stretch, phase)
            entries = None if cache.entries is None else cache.entries.all().float()
            visible_T = self._visible(torch.arange(start, start + num_new, device=x_BTD.device))
            out_BPHE = attend_stretch(q_BPHE.float(), keys_BTE.float(), entries, visible_T, self.sinks_H, self.window)
        else:
            if queries_BP is None:
                position_BP = torch.arange(start, start + num_new, device=x_BTD.device).expand(batch, -1)
            else:
                position_BP = start + queries_BP
            first_key = start + num_new - keys_BTE.shape[1]
            asked = (q_BPHE, q_lora, index_weights, position_BP, turns_BP1F, keys_BTE, first_key, cache, phase)
            if self.by_rows is not None:
                return self.project(self.by_rows.every(*asked))
            out_BPHE = self._attend_gathered(*asked)
        back_BP1F = step.back_1T1F if queries_BP is None else turns_BP1F.conj_physical()
        return self.project(rounded(rotate_ref(out_BPHE, back_BP1F), x_BTD.dtype))

    def ask(self, x_B1D: Tensor, phase: Phase) -> Asked:
        """What attention takes of one new token a sequence, before it looks at its position or the cache."""
        product_B1R = F.linear(x_B1D, self.projections.joined_RD)
        q_lora_B1Q = self.projections.cut(product_B1R)[self.num_remembered]
        return Asked(product_B1R, *self._query(q_lora_B1Q, events.recorder(layer=self.layer, phase=phase)))

    def attend_newest(self, asked: Asked, cache: LayerCache, start: int, phase: Phase) -> Tensor:
        """Takes the token at position `start` in; its output before `project`, by rows (`by_rows`)."""
        assert self.by_rows is not None
        record, step = events.recorder(layer=self.layer, phase=phase), self.rope.of_step(start, 1)
        products, turns = self.projections.cut(asked.product_B1R), step.turns_1T1F
        keys_BNE = self._remember(products[: self.num_remembered], step.turns_TF, cache, record)
        q_B1HE = dispatch.norm(asked.q_B1HE, self.norm_eps, None, turns, requested=self.kernels, record=record)
        return self.by_rows.newest(q_B1HE, asked.q_lora_B1Q, products[-1], step, keys_BNE, cache, phase)

    def _query(self, q_lora_BPQ: Tensor, record: Record | None) -> tuple[Tensor, Tensor]:
        """The bottleneck behind its norm, and the heads [B, P, H, E] before theirs."""
        q_lora_BPQ = dispatch.norm(q_lora_BPQ, self.norm_eps, self.q_a_norm, requested=self.kernels, record=record)
        q_BPR = F.linear(q_lora_BPQ, self.q_b)
        return q_lora_BPQ, q_BPR.view(*q_BPR.shape[:2], self.num_heads, self.head_dim)

    def _remember(
        self, products: Sequence[Tensor], turns_TF: Tensor, cache: LayerCache, record: Record | None
    ) -> Tensor:
        """Writes the new tokens into the cache; returns the window keys of the past and of these tokens.

        Args:
            products: of the tokens with the remembered matrices, [B, T, rows] each.
        """
        kv_BTE, *pooled = products
        key_BTE = dispatch.norm(kv_BTE, self.norm_eps, self.kv_norm, turns_TF, requested=self.kernels, record=record)
        keys_BTE = torch.cat((cache.window_BWD, key_BTE), 1)
        window_BWD = keys_BTE[:, max(0, keys_BTE.shape[1] - self.window + 1) :]
        # Cloned, so that a window does not keep a whole prefill's keys alive.
        cache.window_BWD = window_BWD if kv_BTE.shape[1] == 1 else window_BWD.clone()
        if self.compressor is not None and cache.entries is not None and cache.compressor is not None:
            new_BNE = self.compressor.update(pooled[0], pooled[1], cache.compressor, record)
            if new_BNE is not None:
                cache.entries.append(new_BNE)
        if self.indexer is not None and cache.index_keys is not None and cache.index_compressor is not None:
            new_BNE = self.indexer.compressor.update(pooled[2], pooled[3], cache.index_compressor, record)
            if new_BNE is not None:
                cache.index_keys.append(new_BNE)
        return keys_BTE

    def _visible(self, positions: Tensor) -> Tensor:
        """How many entries a query at each position sees: an entry is seen by the very token that closes it."""
        return (positions + 1) // self.rate if self.rate else torch.zeros_like(positions)

    def _attend_newest(
        self,
        q_B1HE: Tensor,
        q_lora_B1Q: Tensor,
        weights_B1I: Tensor,
        turns_B11F: Tensor,
        keys_BNE: Tensor,
        cache: LayerCache,
        phase: Phase,
    ) -> Tensor:
        """The newest token sees every key of the window and every entry there is, so nothing is gathered or masked."""
        record = self._told("one token a sequence", Attention._attend_newest, phase)
        candidates_BNE, entries = keys_BNE, cache.entries
        if entries is not None:
            entries_BNE = entries.all()
            if self._is_sparse(entries.num_rows) and self.indexer is not None and cache.index_keys is not None:
                picks_B1K = self.indexer.pick(q_lora_B1Q, weights_B1I, turns_B11F, None, cache.index_keys, phase)
                entries_BNE = entries.take(picks_B1K.squeeze(1))
            candidates_BNE = torch.cat((keys_BNE, entries_BNE), 1)
        return self._sparse_attention(q_B1HE.squeeze(1), candidates_BNE, None, phase, record).view(q_B1HE.shape)

    def _attend_gathered(
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
        """Each query's own candidates side by side, in chunks of bounded size; `first_key` is the position of key 0."""
        record = self._told("single queries or picked entries", Attention._attend_gathered, phase)
        num_entries = 0 if cache.entries is None else cache.entries.num_rows
        per_query = (self.window + num_entries) * self.head_dim
        if self._is_sparse(num_entries) and self.indexer is not None:
            per_query = max((self.window + self.indexer.topk) * self.head_dim, num_entries * self.indexer.num_heads)
        chunk = max(1, MAX_GATHERED // (per_query * q_BPHE.shape[0]))
        offset_W = torch.arange(1 - self.window, 1, device=q_BPHE.device)
        outputs = []
        for first in range(0, q_BPHE.shape[1], chunk):
            part = (slice(None), slice(first, first + chunk))
            window_BPW = position_BP[part][..., None] + offset_W
            entries_BPKE, valid_BPK = self._candidates(
                q_lora_BPQ[part], weights_BPI[part], position_BP[part], turns_BP1F[part], cache, phase
            )
            candidates = torch.cat((gather_rows(keys_BTE, window_BPW - first_key), entries_BPKE), 2).flatten(0, 1)
            valid = torch.cat((window_BPW >= 0, valid_BPK), 2).flatten(0, 1)
            out = self._sparse_attention(q_BPHE[part].flatten(0, 1), candidates, valid, phase, record)
            outputs.append(out.unflatten(0, window_BPW.shape[:2]))
        return joined(outputs)

    def _candidates(
        self,
        q_lora_BPQ: Tensor,
        weights_BPI: Tensor,
        position_BP: Tensor,
        turns_BP1F: Tensor,
        cache: LayerCache,
        phase: Phase,
    ) -> tuple[Tensor, Tensor]:
        """The entries of each query [B, P, K, E] and which of them count [B, P, K]."""
        batch, num_queries = position_BP.shape
        entries = cache.entries
        if entries is None:
            return q_lora_BPQ.new_zeros(batch, num_queries, 0, self.head_dim), position_BP.new_zeros(
                batch, num_queries, 0
            ).bool()
        visible_BP = self._visible(position_BP)
        if self._is_sparse(entries.num_rows) and self.indexer is not None and cache.index_keys is not None:
            picks_BPK = self.indexer.pick(q_lora_BPQ, weights_BPI, turns_BP1F, visible_BP, cache.index_keys, phase)
            return entries.gather(picks_BPK), picks_BPK >= 0
        valid_BPC = torch.arange(entries.num_rows, device=q_lora_BPQ.device) < visible_BP[..., None]
        return entries.all()[:, None].expand(-1, num_queries, -1, -1), valid_BPC

    def _is_sparse(self, num_entries: int) -> bool:
        return self.indexer is not None and num_entries > self.indexer.topk

    def _sparse_attention(
        self, q_QHE: Tensor, candidates_QNE: Tensor, valid_QN: Tensor | None, phase: Phase, record: Record | None
    ) -> Tensor:
        return dispatch.sparse_attention(
            q_QHE,
            candidates_QNE,
            valid_QN,
            self.sinks_H,
            self.head_dim**-0.5,
            split_size=SPLIT_SIZE if phase == "decode" else None,
            requested=self.kernels,
            record=record,
        )

    def _told(self, reason: str, way: Callable[..., Tensor], phase: Phase) -> Record | None:
        """Says which way the queries go, and gives what the dispatcher is to tell."""
        record = events.recorder(layer=self.layer, phase=phase)
        if record is not None:
            events.route("attention", way, layer=self.layer, phase=phase, reason=reason)
        return record

    def project(self, out_BPHE: Tensor) -> Tensor:
        """Heads to groups, each group through its own low-rank matrix, all groups through one."""
        batch, num_queries = out_BPHE.shape[:2]
        if batch == num_queries == 1:
            # The groups of a row alone already lie as the product wants them.
            low_rank_G1R = torch.bmm(out_BPHE.view(self.num_groups, 1, -1), self.o_a_GFR)
            return F.linear(low_rank_G1R.view(1, 1, -1), self.o_b)
        grouped_GNF = out_BPHE.reshape(-1, self.num_groups, self.o_a_GFR.shape[1]).transpose(0, 1)
        low_rank_NGR = torch.bmm(grouped_GNF, self.o_a_GFR).transpose(0, 1)
        return F.linear(low_rank_NGR.reshape(batch, num_queries, -1), self.o_b)
