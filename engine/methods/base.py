"""What every expert method offers, and the packed weights it makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from engine.events import Phase
from engine.topk import TopKOutput

if TYPE_CHECKING:
    from engine.experts import FusedMoE
    from engine.runners import MoeRunner


@dataclass(frozen=True, slots=True)
class Packed:
    """One projection of all experts as it is stored; scales that a method does not have are None."""

    codes: Tensor
    block_scale: Tensor | None = None
    global_scale: Tensor | None = None


class MoEMethod(ABC):
    """Storage of the experts and the way through their computation.

    `runners` names the runners that understand this storage, the one that "auto" takes first.
    `leaves_factor_to_epilogue` says that neither router nor runner applies the routed scaling factor: the block must.
    """

    name: ClassVar[str]
    runners: ClassVar[tuple[str, ...]]
    leaves_factor_to_epilogue: ClassVar[bool] = False

    @abstractmethod
    def encode(self, w_ENK: Tensor) -> Packed:
        """Packs fp32 weights [E, N, K]."""

    @abstractmethod
    def decode(self, packed: Packed) -> Tensor:
        """The fp32 weights [E, N, K] that the packed ones stand for."""

    @abstractmethod
    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        """The runner of this layer, chosen by `layer.runner_name`."""

    @abstractmethod
    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput, phase: Phase) -> Tensor:
        """The weighted sum of the routed experts, fp32 [T, D]."""
