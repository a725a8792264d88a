"""What every runner offers, and what it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from engine.events import Phase
from engine.topk import TopKOutput

if TYPE_CHECKING:
    from engine.methods.base import MoEMethod, Packed


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeRunnerConfig:
    """Handed to every runner as it is, also where the router already applies the factor: the runner has to know."""

    layer: int
    routed_scaling_factor: float
    swiglu_limit: float


class MoeRunner(ABC):
    """`applies_routed_scaling_factor` says whether `run` multiplies by the factor in its config."""

    name: ClassVar[str]
    applies_routed_scaling_factor: ClassVar[bool]

    @abstractmethod
    def __init__(self, config: MoeRunnerConfig, method: MoEMethod, w13: Packed, w2: Packed) -> None:
        """Lays the packed weights out as `run` wants them."""

    @abstractmethod
    def run(self, x_TD: Tensor, topk_output: TopKOutput, phase: Phase) -> Tensor:
        """The weighted sum of the routed experts, fp32 [T, D]."""
