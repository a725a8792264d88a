"""What every expert method offers, and the packed weights it makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from engine import events
from engine.events import Phase
from engine.loading.formats import StoredMatrix
from engine.topk import Bypassed, TopKOutput
from kernels.nvfp4_layout import Nvfp4Experts

if TYPE_CHECKING:
    from engine.experts import FusedMoE
    from engine.runners import MoeRunner


@dataclass(frozen=True, slots=True)
class Packed:
    """One projection of all experts as it is stored; scales that a method does not have are None."""

    codes: Tensor
    block_scale: Tensor | None = None
    global_scale: Tensor | None = None

    def joined(self, *more: Packed) -> Packed:
        """These experts and then those."""
        packs = (self, *more)
        codes = _joined([pack.codes for pack in packs])
        assert codes is not None
        return Packed(
            codes,
            _joined([pack.block_scale for pack in packs]),
            _joined([pack.global_scale for pack in packs]),
        )


def _joined(stacks: list[Tensor] | list[Tensor | None]) -> Tensor | None:
    present = [stack for stack in stacks if stack is not None]
    if len(present) < len(stacks):
        return None
    if present[0].element_size() > 1:
        return torch.cat(present)
    return torch.cat([stack.view(torch.uint8) for stack in present]).view(present[0].dtype)


def nvfp4_of(w13: Packed, w2: Packed) -> Nvfp4Experts:
    """Both projections as the NVFP4 kernels take them; global scales are multipliers."""
    assert w13.block_scale is not None
    assert w2.block_scale is not None
    assert w13.global_scale is not None
    assert w2.global_scale is not None
    return Nvfp4Experts(
        w13_codes=w13.codes,
        w13_scale=w13.block_scale,
        w13_global=w13.global_scale,
        w2_codes=w2.codes,
        w2_scale=w2.block_scale,
        w2_global=w2.global_scale,
    )


class MoEMethod(ABC):
    """Storage of the experts and the way through their computation.

    `runners` names the runners that understand this storage; on a machine without a GPU "auto" takes the first.
    `leaves_factor_to_epilogue` says that the method itself never applies the routed scaling factor: where neither
    router nor runner does, the block must.
    """

    name: ClassVar[str]
    runners: ClassVar[tuple[str, ...]]
    leaves_factor_to_epilogue: ClassVar[bool] = False
    weight_bits: ClassVar[int]
    activation_bits: ClassVar[int]

    def load(self, weights: Tensor | StoredMatrix, layer: int) -> Packed:
        """The packed form of a checkpoint's weights [E, N, K]: as they are where they are stored in this very form."""
        if isinstance(weights, Tensor):
            return self._encode_each(weights)
        kept = weights.stored_as(self.name)
        if kept is not None:
            return Packed(kept.codes, kept.block_scale, kept.global_scale)
        events.emit_once(
            ("requantised", layer),
            "ignored",
            setting=f"stored form of the experts ({weights.storage})",
            where=f"engine/methods/base.py, layer {layer}",
            reason=f"expert_quant is {self.name}: decoded and encoded anew",
        )
        return self._encode_each(weights.decode())

    def _encode_each(self, w_ENK: Tensor) -> Packed:
        """Expert by expert: what encoding needs on the way stays small beside the weights."""
        first, *rest = (self.encode(w_NK[None]) for w_NK in w_ENK)
        return first.joined(*rest)

    @abstractmethod
    def encode(self, w_ENK: Tensor) -> Packed:
        """Packs fp32 weights [E, N, K]."""

    @abstractmethod
    def decode(self, packed: Packed) -> Tensor:
        """The fp32 weights [E, N, K] that the packed ones stand for."""

    @abstractmethod
    def quantise_activations(self, x_ND: Tensor) -> Tensor:
        """fp32 rows as the low-precision GEMM of this format sees them; rows do not influence each other."""

    def nvfp4_experts(self, w13: Packed, w2: Packed) -> Nvfp4Experts | None:
        """The weights as the NVFP4 kernels take them, or None where they are in another format."""
        return None

    @abstractmethod
    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        """The runner of this layer, chosen by `layer.runner_name`."""

    @abstractmethod
    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        """The weighted sum of the routed experts, fp32 [T, D]."""
