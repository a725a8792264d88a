"""What every runner offers, and what it is told."""

# T tokens, D model dim, E experts, I expert hidden, K experts per token.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from engine import events
from engine.events import Phase
from engine.requested import PLAIN_FP32, without_kernel
from engine.runners.kept import Kept
from engine.settings import Kernels
from engine.topk import Bypassed, TopKOutput
from kernels import dispatch
from kernels.norm_ref import rounded

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
    # The type of the tokens, and what every op is asked for.
    dtype: torch.dtype = torch.float32
    kernels: Kernels = "auto"

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
    # In place of the packed weights where kernels run.
    kept: Kept | None = None

    @abstractmethod
    def __init__(self, config: MoeRunnerConfig, method: MoEMethod, w13: Packed, w2: Packed) -> None:
        """Lays the packed weights out as `run` wants them."""

    @abstractmethod
    def run(self, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        """The weighted sum of the routed experts [T, D]: fp32 by a reference, the tokens' dtype by a kernel."""

    def say_routes(self, phase: Phase) -> None:
        """Says which runner runs, in which layout its weights lie, and why."""
        if not events.enabled():
            return
        layer, requested = self.config.layer, self.config.requested
        kept = self if self.kept is None else self.kept
        events.route(
            "moe_runner", type(self).run, layer=layer, phase=phase, reason=self.config.reason, requested=requested
        )
        events.route(
            "moe_layout",
            type(self).__init__,
            layer=layer,
            phase=phase,
            reason=f"{self.name} keeps {self.half_order}; {kept.layout}; scales: {kept.scales}",
            requested=requested,
        )

    def say_rounding(self, phase: Phase, input_scale: Tensor | None) -> None:
        """Says how activations are rounded, and whose scale that takes."""
        source = "their own" if input_scale is None else "the checkpoint's input_scale"
        events.route(
            "moe_activations",
            type(self.method).quantise_activations,
            layer=self.config.layer,
            phase=phase,
            reason=f"{self.name} rounds them to {self.method.activation_bits} bits; scale: {source}",
            requested=self.config.requested,
        )

    def compute_kept(self, x_TD: Tensor, kept: Kept, picked: TopKOutput, phase: Phase, *, factor: float) -> Tensor:
        """`factor` times the weighted sum, from weights in the form that the kernels take."""
        ids_TK, weights_TK = picked.topk_ids_TK.int(), picked.topk_weights_TK.float()
        limit, kernels = self.config.swiglu_limit, self.config.kernels
        record = events.recorder(layer=self.config.layer, phase=phase)
        if kept.plain is not None:
            w13, w2 = kept.plain
            return factor * dispatch.experts(x_TD, w13, w2, ids_TK, weights_TK, limit, requested=kernels, record=record)
        if kept.fp8 is not None:
            return dispatch.fp8_experts(
                x_TD,
                kept.fp8,
                ids_TK,
                weights_TK,
                limit,
                quantise_activations=self.quantises_activations,
                factor=factor,
                requested=kernels,
                record=record,
            )
        return dispatch.nvfp4_experts(
            x_TD,
            kept.nvfp4,
            ids_TK,
            weights_TK,
            limit,
            factor=factor,
            hopper=kept.hopper,
            requested=kernels,
            record=record,
        )

    def compute_packed(
        self, x_TD: Tensor, w13: Packed, w2: Packed, picked: TopKOutput, phase: Phase, *, factor: float
    ) -> Tensor:
        """The same from weights as the method has them, undone here where their format has no op of its own."""
        nvfp4, fp8 = self.method.nvfp4_experts(w13, w2), self.method.fp8_experts(w13, w2)
        if nvfp4 is None and fp8 is None:
            return factor * self.compute(x_TD, self.method.decode(w13), self.method.decode(w2), picked, phase)
        return self.compute_kept(
            x_TD, Kept(layout=self.layout, scales=self.scales, nvfp4=nvfp4, fp8=fp8), picked, phase, factor=factor
        )

    def compute_rounded(self, x_TD: Tensor, w13: Packed, w2: Packed, picked: TopKOutput, phase: Phase) -> Tensor:
        """The weighted sum with activations rounded, from weights as the method has them."""
        fp8 = self.method.fp8_experts(w13, w2)
        if fp8 is None:
            scales = (w13.input_scale, w2.input_scale)
            return self.compute(x_TD, self.method.decode(w13), self.method.decode(w2), picked, phase, scales)
        self.say_rounding(phase, None)
        kept = Kept(layout=self.layout, scales=self.scales, fp8=fp8)
        return self.compute_kept(x_TD, kept, picked, phase, factor=1.0)

    def compute(
        self,
        x_TD: Tensor,
        w13_E2ID: Tensor,
        w2_EDI: Tensor,
        picked: TopKOutput,
        phase: Phase,
        input_scales: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> Tensor:
        """The weighted sum over plain weights in [gate, up] order, with activations rounded if the runner does that.

        Args:
            input_scales: the checkpoint's scales of what goes into w13 and into w2, None for scales per row.
        """
        quantise: list[Callable[[Tensor], Tensor] | None] = [None, None]
        requested = self.config.kernels
        if self.quantises_activations:
            self.say_rounding(phase, input_scales[0])
            quantise = [partial(self.method.quantise_activations, input_scale=scale) for scale in input_scales]
            requested = without_kernel(requested, "experts", self.config.layer, "activations are rounded")
        elif self.config.dtype == torch.float32:
            requested = without_kernel(requested, "experts", self.config.layer, PLAIN_FP32)
        else:
            w13_E2ID, w2_EDI = rounded(w13_E2ID, self.config.dtype), rounded(w2_EDI, self.config.dtype)
        return dispatch.experts(
            x_TD,
            w13_E2ID,
            w2_EDI,
            picked.topk_ids_TK,
            picked.topk_weights_TK,
            self.config.swiglu_limit,
            quantise=quantise[0],
            quantise_hidden=quantise[1],
            requested=requested,
            record=events.recorder(layer=self.config.layer, phase=phase),
        )
