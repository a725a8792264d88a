"""Attention over a sliding window plus compressed entries, and the lightning indexer that picks among them.

Contract: keys and values are one tensor, one softmax covers window, entries and the sink; query t sees entry i iff
i < floor((t+1)/m). Queries are computed only at the positions asked for, in chunks, so a T x T matrix never exists.
Source: equations of DeepSeek-V4 as in huggingface/transformers 5.24.0, models/deepseek_v4.
"""

# B batch, T tokens, Q queries asked for, N compressed entries, W window, H heads, C head channels, M tokens per entry

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.oracle.parts import Params, rms, rope_frequencies, rotate

SPARSE = "compressed_sparse_attention"
SLIDING = "sliding_attention"
CHUNK_BYTES = 128 * 2**20  # what the widest tensor of one chunk of queries may take

KeyStore = Callable[[Tensor], Tensor]  # index keys [B,N,C] as written -> as read back


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the indexer scored and the attention then used, at the queries asked for."""

    scores_BQN: Tensor  # index scores, -inf where an entry is not visible
    mass_BQN: Tensor  # head-mean attention probability of each entry; the rest went to window and sink


def compress(x_BTD: Tensor, params: Params, prefix: str, rate: int, *, overlap: bool, eps: float) -> Tensor:
    """Pools every `rate` tokens into one entry, softmax per channel; with `overlap` the window before takes part."""
    num_entries = x_BTD.shape[1] // rate
    x = x_BTD[:, : num_entries * rate]
    shape = (num_entries, rate)
    values = (x @ params[f"{prefix}.kv_proj.weight"].T).unflatten(1, shape)
    gates = (x @ params[f"{prefix}.gate_proj.weight"].T).unflatten(1, shape) + params[f"{prefix}.position_bias"]
    if overlap:
        next_values, own_values = values.chunk(2, dim=-1)
        next_gates, own_gates = gates.chunk(2, dim=-1)
        no_values, no_gates = torch.zeros_like(next_values[:, :1]), torch.full_like(next_gates[:, :1], -torch.inf)
        values = torch.cat((torch.cat((no_values, next_values[:, :-1]), 1), own_values), dim=2)
        gates = torch.cat((torch.cat((no_gates, next_gates[:, :-1]), 1), own_gates), dim=2)
    return rms((gates.softmax(2) * values).sum(2), eps, params[f"{prefix}.kv_norm.weight"])


def index_scores(
    q_lora_BQL: Tensor, x_BQD: Tensor, keys_BNC: Tensor, angles_QP: Tensor, params: Params, prefix: str, num_heads: int
) -> Tensor:
    channels = keys_BNC.shape[-1]
    queries = (q_lora_BQL @ params[f"{prefix}.q_b_proj.weight"].T).unflatten(-1, (num_heads, channels))
    queries_BQHC = rotate(queries, angles_QP.unsqueeze(1))
    weights_BQH = x_BQD @ params[f"{prefix}.scorer.weights_proj.weight"].T * num_heads**-0.5
    dots_BQHN = torch.einsum("bqhc,bnc->bqhn", queries_BQHC, keys_BNC).relu() * channels**-0.5
    scores_BQN = torch.einsum("bqh,bqhn->bqn", weights_BQH, dots_BQHN)
    # Only keys read back from a damaged page are not finite; they keep a fixed place in the order.
    return scores_BQN.nan_to_num(nan=-1e20, posinf=1e20, neginf=-1e20)


def top_entries(scores_BQN: Tensor, count: int) -> Tensor:
    """Returns a mask of the `count` best entries per query; equal scores keep the earlier entry."""
    order = scores_BQN.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores_BQN, dtype=torch.bool).scatter(-1, order, True)


def attend(
    x_BTD: Tensor,
    at_Q: Tensor,
    layer: int,
    params: Params,
    config: ModelConfig,
    *,
    dense: bool = False,
    key_store: KeyStore | None = None,
) -> tuple[Tensor, Selection | None]:
    """Attention output [B,Q,D] of one layer at the positions `at_Q` (before the residual), and what its indexer did.

    Args:
        dense: attend to every visible entry; the indexer is still scored, so that it can be trained.
        key_store: what happens to index keys between writing and reading; identity where None.
    """
    kind, prefix = config.layer_types[layer], f"model.layers.{layer}.self_attn"
    eps, device = config.rms_norm_eps, x_BTD.device
    freqs_P = rope_frequencies(config, compressed=kind != SLIDING, device=device)
    num_tokens = x_BTD.shape[1]
    kv = rms(x_BTD @ params[f"{prefix}.kv_proj.weight"].T, eps, params[f"{prefix}.kv_norm.weight"])
    kv_BTC = rotate(kv, torch.arange(num_tokens, device=device).unsqueeze(-1) * freqs_P)
    entries_BNC = kv_BTC[:, :0]
    keys_BNC, rate = None, 1
    if kind != SLIDING:
        rate = config.compress_rates[kind]
        starts_NP = torch.arange(0, num_tokens // rate * rate, rate, device=device).unsqueeze(-1) * freqs_P
        entries = compress(x_BTD, params, f"{prefix}.compressor", rate, overlap=kind == SPARSE, eps=eps)
        entries_BNC = rotate(entries, starts_NP)
    if kind == SPARSE:
        # The indexer learns from what attention does, never the other way round: its inputs carry no gradient.
        keys = compress(x_BTD.detach(), params, f"{prefix}.compressor.indexer", rate, overlap=True, eps=eps)
        keys_BNC = rotate(keys, starts_NP)
        if key_store is not None:
            keys_BNC = key_store(keys_BNC)

    heads, window = config.num_attention_heads, config.sliding_window
    width = heads * (window + entries_BNC.shape[1]) + window * config.head_dim
    if keys_BNC is not None:
        width += config.index_n_heads * keys_BNC.shape[1]
    chunk = max(1, CHUNK_BYTES // (4 * width * x_BTD.shape[0]))
    outputs, selections = [], []
    for at_q in at_Q.split(chunk):
        x_BQD, angles_QP = x_BTD[:, at_q], at_q.unsqueeze(-1) * freqs_P
        q_lora = rms(x_BQD @ params[f"{prefix}.q_a_proj.weight"].T, eps, params[f"{prefix}.q_a_norm.weight"])
        queries = (q_lora @ params[f"{prefix}.q_b_proj.weight"].T).unflatten(-1, (heads, config.head_dim))
        queries_BQHC = rotate(rms(queries, eps), angles_QP.unsqueeze(1))
        usable = torch.arange(entries_BNC.shape[1], device=device) < ((at_q + 1) // rate).unsqueeze(-1)
        scores = None
        if keys_BNC is not None:
            indexer = f"{prefix}.compressor.indexer"
            scores = index_scores(
                q_lora.detach(), x_BQD.detach(), keys_BNC, angles_QP, params, indexer, config.index_n_heads
            ).masked_fill(~usable, -torch.inf)
            if not dense and entries_BNC.shape[1] > config.index_topk:
                usable = usable & top_entries(scores, config.index_topk)
        mixed, mass = _softmax_over_all(
            queries_BQHC, kv_BTC, entries_BNC, at_q, usable, window, params[f"{prefix}.sinks"]
        )
        grouped = rotate(mixed, -angles_QP.unsqueeze(1)).unflatten(2, (config.o_groups, -1)).flatten(-2)
        w_o_a = params[f"{prefix}.o_a_proj.weight"].unflatten(0, (config.o_groups, config.o_lora_rank))
        low_rank = torch.einsum("bqgi,gri->bqgr", grouped, w_o_a).flatten(-2)
        outputs.append(low_rank @ params[f"{prefix}.o_b_proj.weight"].T)
        if scores is not None:
            selections.append((scores, mass))
    if not selections:
        return torch.cat(outputs, 1), None
    scores_all, mass_all = (torch.cat(parts, 1) for parts in zip(*selections, strict=True))
    return torch.cat(outputs, 1), Selection(scores_BQN=scores_all, mass_BQN=mass_all)


def _softmax_over_all(
    queries_BQHC: Tensor,
    kv_BTC: Tensor,
    entries_BNC: Tensor,
    at_Q: Tensor,
    usable: Tensor,
    window: int,
    sinks_H: Tensor,
) -> tuple[Tensor, Tensor]:
    """One softmax over window, usable entries and the sink: the mixed values, and each entry's head-mean mass."""
    back_QW = at_Q.unsqueeze(-1) - torch.arange(window - 1, -1, -1, device=at_Q.device)
    near_BQWC = kv_BTC[:, back_QW.clamp(min=0)]
    scale = queries_BQHC.shape[-1] ** -0.5
    near_logits = torch.einsum("bqhc,bqwc->bqhw", queries_BQHC, near_BQWC) * scale
    near_logits = near_logits.masked_fill((back_QW < 0).unsqueeze(1), -torch.inf)
    far_logits = torch.einsum("bqhc,bnc->bqhn", queries_BQHC, entries_BNC) * scale
    far_logits = far_logits.masked_fill(~usable.unsqueeze(-2), -torch.inf)
    sink_logits = sinks_H.unsqueeze(-1).expand(*near_logits.shape[:-1], 1)
    probs = torch.cat((near_logits, far_logits, sink_logits), -1).softmax(-1)
    near, far, _ = probs.split((window, entries_BNC.shape[1], 1), dim=-1)
    mixed = torch.einsum("bqhw,bqwc->bqhc", near, near_BQWC) + torch.einsum("bqhn,bnc->bqhc", far, entries_BNC)
    return mixed, far.mean(2)
