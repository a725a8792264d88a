"""Attention of one layer: shared key-value head, sliding window, compressed entries, sinks, grouped output projection.

Contract: c = RMS(q_a x); q_h = rope(RMS(q_b c)_h); u = rope(RMS(kv x)) is key AND value, so the output is rotated
back at the query's position. Candidates are the last W keys including the query's own and, by layer kind, no entries
(sliding), all visible entries (HCA), or those the indexer picks (CSA). A layer uses one rope for all of it: main if
sliding, compress otherwise.
"""

# B sequences, T new tokens, P query positions, D model dim, H heads, E head dim, W window, C entries, K picks, N
# candidates.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.attend import attend_stretch
from engine.cache import LayerCache, Rows, gather_rows
from engine.checkpoint import Tensors
from engine.compressor import Compressor
from engine.config import CSA, SLIDING, ModelConfig
from engine.events import Phase
from engine.indexer import Indexer
from engine.norm import rms_norm
from engine.pages import PagedKeys, PagePool
from engine.rope import Rope
from kernels.sparse_attention_ref import sparse_attention_ref, sparse_attention_split_ref

# Gathered candidates of one chunk of queries, in numbers: 64 MB of fp32.
MAX_GATHERED = 1 << 24
# Candidates per split of a decode step.
SPLIT_SIZE = 64


class Attention:
    def __init__(self, tensors: Tensors, config: ModelConfig, layer: int, index_dtype: torch.dtype) -> None:
        heads, head_dim, groups = config.num_attention_heads, config.head_dim, config.o_groups
        self.layer, self.num_heads, self.head_dim, self.num_groups = layer, heads, head_dim, groups
        self.window, self.norm_eps, self.index_dtype = config.sliding_window, config.rms_norm_eps, index_dtype
        self.q_a = tensors.take("q_a_proj.weight", config.q_lora_rank, config.hidden_size)
        self.q_a_norm = tensors.take("q_a_norm.weight", config.q_lora_rank)
        self.q_b = tensors.take("q_b_proj.weight", heads * head_dim, config.q_lora_rank)
        self.kv = tensors.take("kv_proj.weight", head_dim, config.hidden_size)
        self.kv_norm = tensors.take("kv_norm.weight", head_dim)
        o_a = tensors.take("o_a_proj.weight", groups * config.o_lora_rank, heads * head_dim // groups)
        self.o_a_GRF = o_a.view(groups, config.o_lora_rank, -1)
        self.o_b = tensors.take("o_b_proj.weight", config.hidden_size, groups * config.o_lora_rank)
        self.sinks_H = tensors.take("sinks", heads)

        kind = config.layer_types[layer]
        self.rate = config.compress_rate(layer)
        if kind == SLIDING:
            self.rope = Rope(config.rope_theta, config.qk_rope_head_dim, device=tensors.device)
        else:
            self.rope = Rope(config.compress_rope_theta, config.qk_rope_head_dim, config.yarn, tensors.device)
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        if kind != SLIDING:
            inner = tensors.within("compressor")
            self.compressor = Compressor(
                inner, config, rate=self.rate, width=head_dim, overlap=kind == CSA, rope=self.rope
            )
            if kind == CSA:
                self.indexer = Indexer(inner.within("indexer"), config, rate=self.rate, rope=self.rope, layer=layer)

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
        num_new = x_BTD.shape[1]
        position_T = torch.arange(start, start + num_new, device=x_BTD.device)
        keys_BTE = self._remember(x_BTD, position_T, cache)
        if queries_BP is None:
            queries_BP = torch.arange(num_new, device=x_BTD.device).expand(x_BTD.shape[0], -1)
            whole = num_new > 1
        else:
            x_BTD = x_BTD.gather(1, queries_BP[..., None].expand(-1, -1, x_BTD.shape[-1]))
            whole = False
        if queries_BP.shape[1] == 0:
            return x_BTD
        position_BP = start + queries_BP
        q_lora = rms_norm(F.linear(x_BTD, self.q_a), self.q_a_norm, self.norm_eps)
        q_BPHE = F.linear(q_lora, self.q_b).unflatten(-1, (self.num_heads, self.head_dim))
        q_BPHE = self.rope.rotate(rms_norm(q_BPHE, None, self.norm_eps), position_BP)

        num_entries = 0 if cache.entries is None else cache.entries.num_rows
        if whole and not self._is_sparse(num_entries):
            events.route(
                "attention", attend_stretch, layer=self.layer, phase=phase, reason="every position, every entry"
            )
            entries = None if cache.entries is None else cache.entries.all()
            out_BPHE = attend_stretch(q_BPHE, keys_BTE, entries, self._visible(position_T), self.sinks_H, self.window)
        else:
            first_key = start + num_new - keys_BTE.shape[1]
            out_BPHE = self._attend_gathered(q_BPHE, q_lora, x_BTD, position_BP, keys_BTE, first_key, cache, phase)
        return self._project(self.rope.rotate(out_BPHE, position_BP, inverse=True))

    def _remember(self, x_BTD: Tensor, position_T: Tensor, cache: LayerCache) -> Tensor:
        """Writes the new tokens into the cache; returns the window keys of the past and of these tokens."""
        key_BTE = rms_norm(F.linear(x_BTD, self.kv), self.kv_norm, self.norm_eps)
        key_BTE = self.rope.rotate(key_BTE, position_T.expand(key_BTE.shape[:2]))
        keys_BTE = torch.cat((cache.window_BWD, key_BTE), 1)
        cache.window_BWD = keys_BTE[:, max(0, keys_BTE.shape[1] - self.window + 1) :].clone()
        if self.compressor is not None and cache.entries is not None and cache.compressor is not None:
            cache.entries.append(self.compressor.update(x_BTD, cache.compressor))
        if self.indexer is not None and cache.index_keys is not None and cache.index_compressor is not None:
            cache.index_keys.append(self.indexer.compressor.update(x_BTD, cache.index_compressor))
        return keys_BTE

    def _visible(self, positions: Tensor) -> Tensor:
        """How many entries a query at each position sees: an entry is seen by the very token that closes it."""
        return (positions + 1) // self.rate if self.rate else torch.zeros_like(positions)

    def _attend_gathered(
        self,
        q_BPHE: Tensor,
        q_lora_BPQ: Tensor,
        x_BPD: Tensor,
        position_BP: Tensor,
        keys_BTE: Tensor,
        first_key: int,
        cache: LayerCache,
        phase: Phase,
    ) -> Tensor:
        """Each query's own candidates side by side, in chunks of bounded size; `first_key` is the position of key 0."""
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
            entries_BPKE, valid_BPK = self._candidates(q_lora_BPQ[part], x_BPD[part], position_BP[part], cache, phase)
            candidates = torch.cat((gather_rows(keys_BTE, window_BPW - first_key), entries_BPKE), 2).flatten(0, 1)
            valid = torch.cat((window_BPW >= 0, valid_BPK), 2).flatten(0, 1)
            out = self._sparse_attention(q_BPHE[part].flatten(0, 1), candidates, valid, phase)
            outputs.append(out.unflatten(0, window_BPW.shape[:2]))
        return torch.cat(outputs, 1)

    def _candidates(
        self, q_lora_BPQ: Tensor, x_BPD: Tensor, position_BP: Tensor, cache: LayerCache, phase: Phase
    ) -> tuple[Tensor, Tensor]:
        """The entries of each query [B, P, K, E] and which of them count [B, P, K]."""
        batch, num_queries = position_BP.shape
        entries = cache.entries
        if entries is None:
            return x_BPD.new_zeros(batch, num_queries, 0, self.head_dim), position_BP.new_zeros(
                batch, num_queries, 0
            ).bool()
        visible_BP = self._visible(position_BP)
        if self._is_sparse(entries.num_rows) and self.indexer is not None and cache.index_keys is not None:
            picks_BPK = self.indexer.pick(q_lora_BPQ, x_BPD, position_BP, visible_BP, cache.index_keys, phase)
            return entries.gather(picks_BPK), picks_BPK >= 0
        valid_BPC = torch.arange(entries.num_rows, device=x_BPD.device) < visible_BP[..., None]
        return entries.all()[:, None].expand(-1, num_queries, -1, -1), valid_BPC

    def _is_sparse(self, num_entries: int) -> bool:
        return self.indexer is not None and num_entries > self.indexer.topk

    def _sparse_attention(self, q_QHE: Tensor, candidates_QNE: Tensor, valid_QN: Tensor, phase: Phase) -> Tensor:
        scale = self.head_dim**-0.5
        if phase == "decode":
            num_splits = -(-candidates_QNE.shape[1] // SPLIT_SIZE)
            events.route("attention", sparse_attention_split_ref, layer=self.layer, phase=phase, reason="decode step")
            return sparse_attention_split_ref(q_QHE, candidates_QNE, valid_QN, self.sinks_H, scale, num_splits)
        events.route(
            "attention", sparse_attention_ref, layer=self.layer, phase=phase, reason="single queries or picked entries"
        )
        return sparse_attention_ref(q_QHE, candidates_QNE, valid_QN, self.sinks_H, scale)

    def _project(self, out_BPHE: Tensor) -> Tensor:
        """Heads to groups, each group through its own low-rank matrix, all groups through one."""
        grouped = out_BPHE.flatten(2).unflatten(-1, (self.num_groups, -1))
        low_rank = torch.einsum("bpgf,grf->bpgr", grouped, self.o_a_GRF)
        return F.linear(low_rank.flatten(2), self.o_b)
