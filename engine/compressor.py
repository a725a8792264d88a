"""Compressors: every m tokens close one entry, a softmax-weighed pool of their projections.

Contract: entry i pools window i (tokens i*m .. i*m + m - 1), per channel, with softmax over gate + position_bias;
then RMS norm and rope at the window's FIRST token. With overlap (CSA) the projections are twice as wide: channels
[:D] are what a window gives to the NEXT entry, [D:] what it gives to its own, and an entry pools 2m slots; before the
first window those slots have weight 0. A query at position t sees the entries i < (t + 1) // m.
"""

# B sequences, T new tokens, m rate, N windows that close, D entry width, U projection width (D, or 2D with overlap).

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.norm import rms_norm
from engine.rope import Rope


@dataclass(slots=True)
class CompressorState:
    """What an open window and, with overlap, the last closed one leave behind."""

    pending_kv_BTU: Tensor
    pending_gate_BTU: Tensor
    overlap_kv_BmD: Tensor
    overlap_logit_BmD: Tensor
    num_entries: int = 0

    def fork(self, n: int) -> CompressorState:
        return CompressorState(
            self.pending_kv_BTU.repeat_interleave(n, 0),
            self.pending_gate_BTU.repeat_interleave(n, 0),
            self.overlap_kv_BmD.repeat_interleave(n, 0),
            self.overlap_logit_BmD.repeat_interleave(n, 0),
            self.num_entries,
        )


class Compressor:
    def __init__(
        self, tensors: Tensors, config: ModelConfig, *, rate: int, width: int, overlap: bool, rope: Rope
    ) -> None:
        projected = 2 * width if overlap else width
        self.rate, self.width, self.overlap, self.rope = rate, width, overlap, rope
        self.kv_UD = tensors.take("kv_proj.weight", projected, config.hidden_size)
        self.gate_UD = tensors.take("gate_proj.weight", projected, config.hidden_size)
        self.position_bias_mU = tensors.take("position_bias", rate, projected)
        self.norm_D = tensors.take("kv_norm.weight", width)
        self.norm_eps = config.rms_norm_eps

    def new_state(self, batch: int) -> CompressorState:
        empty_BTU = self.kv_UD.new_zeros(batch, 0, self.kv_UD.shape[0])
        zeros_BmD = self.kv_UD.new_zeros(batch, self.rate, self.width)
        return CompressorState(empty_BTU, empty_BTU, zeros_BmD, zeros_BmD - torch.inf)

    def update(self, x_BTD: Tensor, state: CompressorState) -> Tensor:
        """Takes in new tokens and returns the entries [B, N, D] that they close."""
        kv_BTU = torch.cat((state.pending_kv_BTU, F.linear(x_BTD, self.kv_UD)), 1)
        gate_BTU = torch.cat((state.pending_gate_BTU, F.linear(x_BTD, self.gate_UD)), 1)
        num_windows = kv_BTU.shape[1] // self.rate
        closed = num_windows * self.rate
        # Cloned, so that an open window of a few tokens does not keep a whole prefill's projections alive.
        state.pending_kv_BTU, state.pending_gate_BTU = kv_BTU[:, closed:].clone(), gate_BTU[:, closed:].clone()
        if num_windows == 0:
            return kv_BTU.new_zeros(kv_BTU.shape[0], 0, self.width)
        kv_BNmD = kv_BTU[:, :closed].unflatten(1, (num_windows, self.rate))
        logit_BNmD = gate_BTU[:, :closed].unflatten(1, (num_windows, self.rate)) + self.position_bias_mU
        if self.overlap:
            kv_BNmD, logit_BNmD = self._with_previous_window(kv_BNmD, logit_BNmD, state)
        pooled_BND = (logit_BNmD.softmax(2) * kv_BNmD).sum(2)
        first_N = (state.num_entries + torch.arange(num_windows, device=x_BTD.device)) * self.rate
        state.num_entries += num_windows
        normed_BND = rms_norm(pooled_BND, self.norm_D, self.norm_eps)
        return self.rope.rotate(normed_BND, first_N.expand(normed_BND.shape[:2]))

    def _with_previous_window(
        self, kv_BNmU: Tensor, logit_BNmU: Tensor, state: CompressorState
    ) -> tuple[Tensor, Tensor]:
        """Slots of each entry: the previous window's first channels, then the own window's last channels."""
        next_kv_BNmD, own_kv_BNmD = kv_BNmU.split(self.width, -1)
        next_logit_BNmD, own_logit_BNmD = logit_BNmU.split(self.width, -1)
        previous_kv = torch.cat((state.overlap_kv_BmD[:, None], next_kv_BNmD[:, :-1]), 1)
        previous_logit = torch.cat((state.overlap_logit_BmD[:, None], next_logit_BNmD[:, :-1]), 1)
        state.overlap_kv_BmD, state.overlap_logit_BmD = next_kv_BNmD[:, -1].clone(), next_logit_BNmD[:, -1].clone()
        return torch.cat((previous_kv, own_kv_BNmD), 2), torch.cat((previous_logit, own_logit_BNmD), 2)
