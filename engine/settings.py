"""What one build of the engine chooses; the architecture itself is `ModelConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from engine.errors import ConfigError

ExpertQuant = Literal["nvfp4", "fp8", "modelopt_fp8", "mxfp4", "compressed_tensors_nvfp4", "none"]
RunnerName = Literal["auto", "reference", "triton", "marlin", "cutlass", "trtllm"]
IndexKeys = Literal["fp8", "bf16", "fp32"]
Kernels = Literal["auto", "reference", "triton"]
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    # Storage of the routed experts: e2m1 codes with e4m3 block scales, e4m3 codes with 128 x 128 block scales,
    # or the checkpoint's own numbers. The shared expert is only quantised where fused.
    expert_quant: ExpertQuant = "nvfp4"

    # Who computes the experts: each runner has its own weight layout and its own scaling contract.
    # "auto" goes by the environment (ENGINE_MOE_RUNNER), then by the compute capability of the device.
    runner: RunnerName = "auto"

    # Computes the shared expert as one more routed expert, in the routed experts' format.
    fuse_shared_expert: bool = False

    # Lets a runner that has a router of its own use it; None does so wherever it can.
    route_in_kernel: bool | None = None

    # Processes that share the routed experts of a layer, and which of them this is.
    expert_parallel_size: int = 1
    expert_parallel_rank: int = 0

    # Storage of the index keys, in pages of 64: e4m3 with one fp32 scale per key, plain bf16, or plain fp32
    # (which no deployment uses: it is there to compare with other implementations to the last digits).
    index_keys: IndexKeys = "fp8"

    # Where the activations live, and the type of the activations, the streams, the caches and the matrices beside the
    # routed experts. Norms, rope, softmax, router scores and mixing numbers are fp32 in either.
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    # Who computes an op that has a Triton kernel: "auto" goes by the environment (ENGINE_KERNELS), then takes the
    # kernel where it runs on the device and the reference elsewhere.
    kernels: Kernels = "auto"

    # Captures what holds no state in a decode step as CUDA graphs, once for each batch size, where kernels run. Events
    # and tracers see a captured line at most once, so a step runs without graphs while events are on.
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        for name, choices in (
            ("expert_quant", get_args(ExpertQuant)),
            ("runner", get_args(RunnerName)),
            ("index_keys", get_args(IndexKeys)),
            ("dtype", DTYPES),
            ("kernels", get_args(Kernels)),
        ):
            if getattr(self, name) not in choices:
                expected = ", ".join(map(str, choices))
                raise ConfigError(f"settings: {name} is {getattr(self, name)!r}, expected one of {expected}")
        if not 0 <= self.expert_parallel_rank < self.expert_parallel_size:
            raise ConfigError(
                f"settings: expert_parallel_rank is {self.expert_parallel_rank}, "
                f"expected 0 to {self.expert_parallel_size - 1} (expert_parallel_size is {self.expert_parallel_size})"
            )
