"""The routed-scaling contract as a table: every valid way through an expert block, and what is measured on it.

Contract: a row is (method, runner, router, renormalise, phase, fused shared expert, expert-parallel size). Its power is
how often the routed scaling factor f reached the routed experts, measured twice: from the `constant` events (the sum of
log value / log f) and from the output itself (log2 of what doubling f did to the routed part). Both must be 1, and both
must be 0 for the shared expert. Expert-parallel rows add up what the processes contribute, one after the other.
"""

# T tokens, D model dim, E experts, I expert hidden, K experts per token.

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.events import Phase
from engine.methods import METHODS
from engine.moe import MoE
from engine.runners import RUNNERS
from engine.settings import EngineSettings

HIDDEN, WIDTH, NUM_EXPERTS, TOPK, VOCABULARY, NUM_TOKENS = 64, 32, 8, 2, 32, 24
FACTOR = 1.5
SIZES = (1, 2, 4)
# Relative error of a block's output against fp32 weights and fp32 activations, by (weight bits, activation bits): what
# rounding to so few bits costs on weights and tokens drawn from a normal distribution, and a tenth more.
TOLERANCE = {(16, 16): 1e-5, (8, 16): 0.06, (8, 8): 0.08, (4, 16): 0.25, (4, 8): 0.26, (4, 4): 0.28}
# The same against the stored weights, where activations are not rounded: the way of the sums alone.
STORED_TOLERANCE = 1e-5
# Noise of rounded activations in the exponents; a factor that is applied once too often is off by 1.
POWER_TOLERANCE = 0.01
CONFIG = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    moe_intermediate_size=WIDTH,
    num_hidden_layers=2,
    num_attention_heads=1,
    head_dim=16,
    qk_rope_head_dim=8,
    q_lora_rank=16,
    o_groups=1,
    o_lora_rank=16,
    sliding_window=8,
    layer_types=("sliding_attention", "sliding_attention"),
    mlp_layer_types=("hash_moe", "moe"),
    compress_rates={},
    n_routed_experts=NUM_EXPERTS,
    num_experts_per_tok=TOPK,
    routed_scaling_factor=FACTOR,
    swiglu_limit=1.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`router` is "hash", "standard", or "inside" where the runner gets the router instead of its picks."""

    method: str
    runner: str
    router: str
    renormalise: bool
    fused: bool
    size: int

    @property
    def name(self) -> str:
        norm, shared = "renorm" if self.renormalise else "raw", "fused" if self.fused else "apart"
        return f"{self.method}/{self.runner}/{self.router}/{norm}/{shared}/ep{self.size}"

    @property
    def has_choice(self) -> bool:
        """Whether the runner could take the router as well as its picks."""
        return RUNNERS[self.runner].can_route_inside and self.router != "hash"

    @property
    def bits(self) -> tuple[int, int]:
        method = METHODS[self.method]
        quantises = RUNNERS[self.runner].quantises_activations
        return method.weight_bits, method.activation_bits if quantises else 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One phase of a row: `said` and `exponent` hold the power of the routed experts and of the shared one.

    `error` is against fp32 weights, `stored_error` against the numbers that the stored weights stand for.
    """

    row: Row
    phase: Phase
    sites: tuple[str, ...]
    said: tuple[float, float]
    exponent: tuple[float, float]
    error: float
    stored_error: float

    @property
    def deviation(self) -> float:
        """The largest distance of any measured power from what it should be; no number is the worst number."""
        pairs = zip((*self.said, *self.exponent), (1.0, 0.0, 1.0, 0.0), strict=True)
        return max(math.inf if math.isnan(value) else abs(value - right) for value, right in pairs)

    @property
    def right(self) -> bool:
        exact_sums = self.stored_error <= STORED_TOLERANCE or self.row.bits[1] < 16
        return self.deviation <= POWER_TOLERANCE and self.error <= TOLERANCE[self.row.bits] and exact_sums


def rows() -> Iterator[Row]:
    for method in METHODS:
        for runner in METHODS[method].runners:
            inside = RUNNERS[runner].can_route_inside
            for router in ("hash", "standard", "inside") if inside else ("hash", "standard"):
                for renormalise in (True, False):
                    # A runner with a router of its own has no place for a shared expert.
                    for fused in (False,) if inside else (False, True):
                        for size in SIZES:
                            yield Row(
                                method=method,
                                runner=runner,
                                router=router,
                                renormalise=renormalise,
                                fused=fused,
                                size=size,
                            )


class Bench:
    """Weights and tokens that all rows are measured on, and the fp32 answer to them."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.folder, self.num_runs = folder, 0
        self.x_TD = draw(NUM_TOKENS, HIDDEN)
        self.ids_T = torch.randint(VOCABULARY, (NUM_TOKENS,), generator=generator)
        self.by_name = {
            "experts.gate_up_proj": draw(NUM_EXPERTS, 2 * WIDTH, HIDDEN) * HIDDEN**-0.5,
            "experts.down_proj": draw(NUM_EXPERTS, HIDDEN, WIDTH) * WIDTH**-0.5,
            "shared_experts.gate_proj.weight": draw(WIDTH, HIDDEN) * HIDDEN**-0.5,
            "shared_experts.up_proj.weight": draw(WIDTH, HIDDEN) * HIDDEN**-0.5,
            "shared_experts.down_proj.weight": draw(HIDDEN, WIDTH) * WIDTH**-0.5,
            "gate.weight": draw(NUM_EXPERTS, HIDDEN) * HIDDEN**-0.5,
            "gate.e_score_correction_bias": draw(NUM_EXPERTS) * 0.2,
            "gate.tid2eid": draw(VOCABULARY, NUM_EXPERTS).argsort(1)[:, :TOPK],
        }

    def blocks(self, row: Row, factor: float) -> list[MoE]:
        """The block of every process that shares the experts."""
        layer = 0 if row.router == "hash" else 1
        settings = EngineSettings(
            expert_quant=row.method,  # type: ignore[arg-type]
            runner=row.runner,  # type: ignore[arg-type]
            fuse_shared_expert=row.fused,
            route_in_kernel=row.router == "inside" if row.has_choice else None,
            expert_parallel_size=row.size,
        )
        config = replace(CONFIG, norm_topk_prob=row.renormalise)
        tensors = Tensors(self.by_name, "the contract's bench")
        return [
            MoE(tensors, config, replace(settings, expert_parallel_rank=rank), layer, factor)
            for rank in range(row.size)
        ]

    def measure(self, row: Row) -> Iterator[Measured]:
        """Both phases of a row."""
        once, twice = self.blocks(row, FACTOR), self.blocks(row, 2 * FACTOR)
        exact_routed, exact_shared = self.oracle(row)
        stored_routed, stored_shared = self.oracle(row, once)
        exact = FACTOR * exact_routed + exact_shared
        for phase in ("prefill", "decode"):
            path = self._next_file()
            with _events_to(path):
                output = self.output(once, phase)
            said, sites = _claims(path)
            gains = _gains(output, stored_routed, stored_shared)
            with _events_to(None):
                doubled = _gains(self.output(twice, phase), stored_routed, stored_shared)
            yield Measured(
                row=row,
                phase=phase,
                sites=sites,
                said=said,
                exponent=(_log2_ratio(doubled[0], gains[0]), _log2_ratio(doubled[1], gains[1])),
                error=_relative(output, exact),
                stored_error=_relative(output, FACTOR * stored_routed + stored_shared),
            )

    def output(self, blocks: list[MoE], phase: Phase) -> Tensor:
        """Routed and shared experts together, whatever computes which."""
        summed = torch.stack([block.partial(self.x_TD, self.ids_T, phase=phase) for block in blocks]).sum(0)
        return summed if blocks[0].fuses_shared_expert else summed + blocks[0].shared(self.x_TD, phase=phase)

    def oracle(self, row: Row, blocks: list[MoE] | None = None) -> tuple[Tensor, Tensor]:
        """The routed sum at f = 1 and the shared expert, by their definition, in fp32.

        Args:
            blocks: whose stored weights to use; None for the weights before any rounding.
        """
        w13, w2 = self.by_name["experts.gate_up_proj"], self.by_name["experts.down_proj"]
        gate_up = torch.cat([self.by_name[f"shared_experts.{name}_proj.weight"] for name in ("gate", "up")])
        down = self.by_name["shared_experts.down_proj.weight"]
        if blocks is not None:
            pairs = [block.experts.dequantised() for block in blocks]
            local = NUM_EXPERTS // row.size
            w13, w2 = (torch.cat([pair[place][:local] for pair in pairs]) for place in (0, 1))
            if row.fused:
                gate_up, down = pairs[0][0][-1], pairs[0][1][-1]
        scores_TE = F.softplus(F.linear(self.x_TD, self.by_name["gate.weight"])).sqrt()
        if row.router == "hash":
            picks_TK = self.by_name["gate.tid2eid"][self.ids_T]
        else:
            picks_TK = (scores_TE + self.by_name["gate.e_score_correction_bias"]).topk(TOPK, -1).indices
        weights_TE = torch.zeros_like(scores_TE).scatter(1, picks_TK, scores_TE.gather(1, picks_TK))
        if row.renormalise:
            weights_TE = weights_TE / weights_TE.sum(1, keepdim=True)
        routed = sum(
            (weights_TE[:, e, None] * _expert(self.x_TD, w13[e], w2[e]) for e in range(NUM_EXPERTS)),
            start=torch.zeros_like(self.x_TD),
        )
        return routed, _expert(self.x_TD, gate_up, down)

    def _next_file(self) -> Path:
        """A file of its own for the events of one pass: nothing said before counts as said."""
        self.num_runs += 1
        return self.folder / f"{self.num_runs}.jsonl"


@contextmanager
def _events_to(path: Path | None) -> Iterator[None]:
    """Events go to this file inside, or nowhere; not to the caller's."""
    before = os.environ.pop("LIVEPATH_EVENTS", None)
    if path is not None:
        os.environ["LIVEPATH_EVENTS"] = str(path)
    try:
        yield
    finally:
        os.environ.pop("LIVEPATH_EVENTS", None)
        if before is not None:
            os.environ["LIVEPATH_EVENTS"] = before


def _expert(x_TD: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (x_TD @ gate_up.T).chunk(2, 1)
    limit = CONFIG.swiglu_limit
    return (F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)) @ down.T


def _claims(path: Path) -> tuple[tuple[float, float], tuple[str, ...]]:
    """The powers that the `constant` events add up to, routed and shared, and the sites of the routed ones."""
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    constants = [event for event in events if event["event"] == "constant"]
    power = {"routed": 0.0, "shared": 0.0}
    for event in constants:
        power[event["branch"]] += math.log(event["value"]) / math.log(FACTOR)
    sites = sorted({event["site"] for event in constants if event["branch"] == "routed"})
    return (power["routed"], power["shared"]), tuple(sites)


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def _gains(output: Tensor, routed: Tensor, shared: Tensor) -> tuple[float, float]:
    """The least-squares a and b of output = a * routed + b * shared."""
    columns = torch.stack((routed.flatten(), shared.flatten()), 1).double()
    a, b = torch.linalg.lstsq(columns, output.flatten().double()[:, None]).solution.flatten().tolist()
    return a, b


def _log2_ratio(doubled: float, once: float) -> float:
    return math.log2(abs(doubled / once)) if doubled and once else math.nan
