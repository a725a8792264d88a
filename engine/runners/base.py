"""What every runner offers, and what it is told."""

# T tokens, D model dim, E experts, I expert hidden, K experts per token.

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from engine import events
from engine.events import Phase
from engine.topk import Bypassed, TopKOutput
from kernels import dispatch

if TYPE_CHECKING:
    from engine.methods.base import MoEMethod, Packed


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeRunnerConfig:
    """Handed to every runner as it is, also where the router already applies the factor: the runner has to know.

    `reason` and `requested` say how this runner came to be chosen. With a fused shared expert, whatever multiplies the
    experts' sum multiplies the shared expert too.
    """

    layer: int
    routed_scaling_factor: float
    swiglu_limit: float
    num_fused_shared_experts: int = 0
    reason: str = ""
    requested: str = "auto"

    def say_factor(self, site: Literal["kernel", "epilogue"], phase: Phase) -> None:
        """Says that the sum of the experts was multiplied by the factor; called right beside that multiplication."""
        events.constant(self.routed_scaling_factor, site=site, layer=self.layer, phase=phase)
        if self.num_fused_shared_experts:
            events.constant(self.routed_scaling_factor, site=site, layer=self.layer, phase=phase, branch="shared")


class MoeRunner(ABC):
    """Computes the experts from its own packed layout.

    `applies_routed_scaling_factor` says whether `run` multiplies by the factor in its config, whatever the router did.
    `can_route_inside` says that it also takes a router instead of picks; then the factor is its business as well.
    """

    name: ClassVar[str]
    applies_routed_scaling_factor: ClassVar[bool]
    can_route_inside: ClassVar[bool] = False
    quantises_activations: ClassVar[bool] = False
    half_order: ClassVar[str] = "gate, up"
    layout: ClassVar[str]
    scales: ClassVar[str]

    config: MoeRunnerConfig
    method: MoEMethod

    @abstractmethod
    def __init__(self, config: MoeRunnerConfig, method: MoEMethod, w13: Packed, w2: Packed) -> None:
        """Lays the packed weights out as `run` wants them."""

    @abstractmethod
    def run(self, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        """The weighted sum of the routed experts, fp32 [T, D]."""

    def say_routes(self, phase: Phase) -> None:
        """Says which runner runs, in which layout its weights lie, and why."""
        layer, requested = self.config.layer, self.config.requested
        events.route(
            "moe_runner", type(self).run, layer=layer, phase=phase, reason=self.config.reason, requested=requested
        )
        events.route(
            "moe_layout",
            type(self).__init__,
            layer=layer,
            phase=phase,
            reason=f"{self.name} keeps {self.half_order}; {self.layout}; scales: {self.scales}",
            requested=requested,
        )

    def compute_packed(
        self, x_TD: Tensor, w13: Packed, w2: Packed, picked: TopKOutput, phase: Phase, *, factor: float
    ) -> Tensor:
        """`factor` times the weighted sum, by a kernel that reads the packed weights where there is one."""
        experts = self.method.nvfp4_experts(w13, w2)
        if experts is None:
            return factor * self.compute(x_TD, self.method.decode(w13), self.method.decode(w2), picked, phase)
        return dispatch.nvfp4_experts(
            x_TD,
            experts,
            picked.topk_ids_TK.int(),
            picked.topk_weights_TK.float(),
            self.config.swiglu_limit,
            factor=factor,
            record=lambda choice: events.choice(choice, layer=self.config.layer, phase=phase),
        )

    def compute(self, x_TD: Tensor, w13_E2ID: Tensor, w2_EDI: Tensor, picked: TopKOutput, phase: Phase) -> Tensor:
        """The weighted sum over plain weights in [gate, up] order, with activations rounded if the runner does that."""
        return dispatch.experts(
            x_TD,
            w13_E2ID,
            w2_EDI,
            picked.topk_ids_TK,
            picked.topk_weights_TK,
            self.config.swiglu_limit,
            quantise=self.method.quantise_activations if self.quantises_activations else None,
            record=lambda choice: events.choice(choice, layer=self.config.layer, phase=phase),
        )
