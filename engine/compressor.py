"""Compressors: every m tokens close one entry, a softmax-weighed pool of their projections.

Contract: entry i pools window i (tokens i*m .. i*m + m - 1), per channel, with softmax over gate + position_bias;
then RMS norm and rope at the window's FIRST token. With overlap (CSA) the projections are twice as wide: channels
[:D] are what a window gives to the NEXT entry, [D:] what it gives to its own, and an entry pools 2m slots; before the
first window those slots have weight 0. A query at position t sees the entries i < (t + 1) // m. All of it in fp32;
tokens of an open window wait in the type that their projections came in.
"""

# B sequences, T new tokens, m rate, N windows that close, D entry width, U projection width (D, or 2D with overlap).

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.rope import Rope
from engine.settings import Kernels
from kernels import dispatch
from kernels.dispatch import Record
from kernels.norm_ref import rounded


@dataclass(slots=True)
class CompressorState:
    """What an open window and, with overlap, the last closed one leave behind.

    The open window is kept as it came, token by token, and joined when it closes: a decode step adds to a list.
    """

    pending_kv: list[Tensor]
    pending_gate: list[Tensor]
    overlap_kv_BmD: Tensor
    overlap_logit_BmD: Tensor
    num_entries: int = 0
    num_pending: int = 0

    @property
    def pending_kv_BTU(self) -> Tensor:
        return torch.cat(self.pending_kv, 1)

    @pending_kv_BTU.setter
    def pending_kv_BTU(self, kv_BTU: Tensor) -> None:
        self.pending_kv, self.num_pending = [kv_BTU], kv_BTU.shape[1]

    @property
    def pending_gate_BTU(self) -> Tensor:
        return torch.cat(self.pending_gate, 1)

    @pending_gate_BTU.setter
    def pending_gate_BTU(self, gate_BTU: Tensor) -> None:
        self.pending_gate = [gate_BTU]

    def fork(self, n: int) -> CompressorState:
        return CompressorState(
            [self.pending_kv_BTU.repeat_interleave(n, 0)],
            [self.pending_gate_BTU.repeat_interleave(n, 0)],
            self.overlap_kv_BmD.repeat_interleave(n, 0),
            self.overlap_logit_BmD.repeat_interleave(n, 0),
            self.num_entries,
            self.num_pending,
        )


class Compressor:
    def __init__(
        self,
        tensors: Tensors,
        config: ModelConfig,
        *,
        rate: int,
        width: int,
        overlap: bool,
        rope: Rope,
        kernels: Kernels,
    ) -> None:
        projected = 2 * width if overlap else width
        self.rate, self.width, self.overlap, self.rope = rate, width, overlap, rope
        self.projected, self.hidden = projected, config.hidden_size
        self.position_bias_mU = tensors.take("position_bias", rate, projected)
        self.norm_D = tensors.take("kv_norm.weight", width)
        self.norm_eps, self.kernels, self.dtype = config.rms_norm_eps, kernels, tensors.dtype

    def take_projections(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """What makes the kv and the gate of a token; the attention multiplies, with all else that reads the token."""
        shape = (self.projected, self.hidden)
        return tensors.matrix("kv_proj.weight", *shape), tensors.matrix("gate_proj.weight", *shape)

    def new_state(self, batch: int) -> CompressorState:
        empty_BTU = self.norm_D.new_zeros(batch, 0, self.projected, dtype=self.dtype)
        zeros_BmD = self.norm_D.new_zeros(batch, self.rate, self.width)
        return CompressorState([empty_BTU], [empty_BTU], zeros_BmD, zeros_BmD - torch.inf)

    def update(self, kv_BTU: Tensor, gate_BTU: Tensor, state: CompressorState, record: Record | None) -> Tensor | None:
        """Takes in the projections of new tokens; the entries float32 [B, N, D] that they close, None where none."""
        state.pending_kv.append(kv_BTU)
        state.pending_gate.append(gate_BTU)
        state.num_pending += kv_BTU.shape[1]
        num_windows = state.num_pending // self.rate
        if num_windows == 0:
            return None
        kv_BTU, gate_BTU = state.pending_kv_BTU, state.pending_gate_BTU
        closed = num_windows * self.rate
        # Cloned, so that an open window of a few tokens does not keep a whole prefill's projections alive.
        state.pending_kv_BTU, state.pending_gate_BTU = kv_BTU[:, closed:].clone(), gate_BTU[:, closed:].clone()
        if state.num_pending:
            kv_BTU, gate_BTU = kv_BTU[:, :closed], gate_BTU[:, :closed]
        kv_BTU, gate_BTU = rounded(kv_BTU, torch.float32), rounded(gate_BTU, torch.float32)
        kv_BNmD = kv_BTU.unflatten(1, (num_windows, self.rate))
        logit_BNmD = gate_BTU.unflatten(1, (num_windows, self.rate)) + self.position_bias_mU
        if self.overlap:
            kv_BNmD, logit_BNmD = self._with_previous_window(kv_BNmD, logit_BNmD, state)
        pooled_BND = (logit_BNmD.softmax(2) * kv_BNmD).sum(2)
        first_NF = self.rope.turns(state.num_entries * self.rate, num_windows, self.rate)
        state.num_entries += num_windows
        return dispatch.norm(pooled_BND, self.norm_eps, self.norm_D, first_NF, requested=self.kernels, record=record)

    def _with_previous_window(
        self, kv_BNmU: Tensor, logit_BNmU: Tensor, state: CompressorState
    ) -> tuple[Tensor, Tensor]:
        """Slots of each entry: the previous window's first channels, then the own window's last channels."""
        next_kv_BNmD, own_kv_BNmD = kv_BNmU.split(self.width, -1)
        next_logit_BNmD, own_logit_BNmD = logit_BNmU.split(self.width, -1)
        previous_kv, previous_logit = state.overlap_kv_BmD.unsqueeze(1), state.overlap_logit_BmD.unsqueeze(1)
        if next_kv_BNmD.shape[1] > 1:
            previous_kv = torch.cat((previous_kv, next_kv_BNmD[:, :-1]), 1)
            previous_logit = torch.cat((previous_logit, next_logit_BNmD[:, :-1]), 1)
        state.overlap_kv_BmD, state.overlap_logit_BmD = next_kv_BNmD[:, -1].clone(), next_logit_BNmD[:, -1].clone()
        return torch.cat((previous_kv, own_kv_BNmD), 2), torch.cat((previous_logit, own_logit_BNmD), 2)
