"""What one build of the engine chooses; the architecture itself is `ModelConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from engine.errors import ConfigError

ExpertQuant = Literal["nvfp4", "fp8", "none"]
RunnerName = Literal["auto", "reference", "marlin"]
IndexKeys = Literal["fp8", "bf16", "fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    # Storage of the routed experts: e2m1 codes with e4m3 block scales, e4m3 codes with 128 x 128 block scales,
    # or the checkpoint's own numbers. The shared expert is never quantised.
    expert_quant: ExpertQuant = "nvfp4"

    # Who computes the experts: each runner has its own weight layout and its own scaling contract.
    # "auto" takes the first runner that the expert method supports on this device.
    runner: RunnerName = "auto"

    # Storage of the index keys, in pages of 64: e4m3 with one fp32 scale per key, plain bf16, or plain fp32
    # (which no deployment uses: it is there to compare with other implementations to the last digits).
    index_keys: IndexKeys = "fp8"

    # Where the activations live, and their type.
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name, choices in (
            ("expert_quant", get_args(ExpertQuant)),
            ("runner", get_args(RunnerName)),
            ("index_keys", get_args(IndexKeys)),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(f"settings: {name} is {getattr(self, name)!r}, expected one of {', '.join(choices)}")
        if self.dtype != torch.float32:
            raise ConfigError(f"settings: dtype is {self.dtype}, this version computes activations in torch.float32")
