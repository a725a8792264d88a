"""A random checkpoint of the DeepSeek-V4 architecture that is never written down: tensors are drawn when asked for.

Contract: a name gives the same numbers in every run on one kind of device. Matrices have deviation 1 / sqrt(inputs), so
activations stay near 1 through the layers. Routed experts are drawn as NVFP4 codes and scales where they will lie; the
numbers they stand for, 100 GB for a few layers of the full shape, never exist at once.
"""

# E experts, N rows, K columns.

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint import Tensors
from engine.config import CSA, HCA, SLIDING, ModelConfig
from engine.loading.expected import INTEGER_SUFFIX, expected_tensors
from engine.loading.experts import StoredExperts
from engine.loading.formats import Storage, StoredMatrix
from engine.loading.reader import EXPERT_SUFFIXES, StoredModel
from kernels import nvfp4_ref

# DeepSeek-V4-Flash but for the number of its layers.
# Source: Hugging Face transformers 5.24, models/deepseek_v4, and config.json of the released checkpoint.
FLASH: dict[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "compress_rates": {CSA: 4, HCA: 128},
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "swiglu_limit": 10.0,
    "routed_scaling_factor": 1.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "rope_parameters": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 65536},
}
# The same architecture, small enough for a processor.
TINY = FLASH | {
    "vocab_size": 256,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "sliding_window": 8,
    "compress_rates": {CSA: 4, HCA: 16},
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}


def config_of(shape: dict[str, Any], num_layers: int) -> ModelConfig:
    """The shape with so many layers: a sliding one that picks its experts from a table, then CSA and HCA in turn."""
    kinds = [SLIDING, *((CSA, HCA)[layer % 2] for layer in range(num_layers - 1))]
    routers = ["hash_moe" if layer == 0 else "moe" for layer in range(num_layers)]
    layers = {"num_hidden_layers": num_layers, "layer_types": kinds, "mlp_layer_types": routers}
    return ModelConfig.from_dict(shape | layers)


def random_tensors(config: ModelConfig, device: str) -> Tensors:
    return Tensors(RandomModel(config, device), "random", device=device)


class RandomModel(StoredModel):
    """The tensors of the architecture by name, each drawn anew whenever it is asked for."""

    def __init__(self, config: ModelConfig, device: str) -> None:
        super().__init__(config, {}, "random")
        self.device, self.shapes = device, expected_tensors(config)

    def __getitem__(self, name: str) -> Tensor:
        shape = self.shapes[name]
        if name.endswith(EXPERT_SUFFIXES):
            return torch.stack(list(self.experts(name, self.device).numbers()))
        generator = _generator(name, self.device)
        if name.endswith(INTEGER_SUFFIX):
            first = torch.randint(self.config.n_routed_experts, (shape[0], 1), generator=generator, device=self.device)
            # An odd stride, so that the experts of a token differ.
            return (first + 37 * torch.arange(shape[1], device=self.device)) % self.config.n_routed_experts
        drawn = torch.randn(shape, generator=generator, device=self.device)
        if name.endswith("norm.weight") or name.endswith(("layernorm.weight", "_hc.scale", "hc_scale")):
            return 1 + 0.1 * drawn
        return drawn / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1 * drawn

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def experts(self, name: str, device: str = "cpu") -> StoredExperts:
        num_experts, rows, columns = self.shapes[name]
        return DrawnExperts(
            name=name,
            layouts=(),
            check=lambda matrix, layout: matrix,
            mine=range(num_experts),
            device=device,
            rows=rows,
            columns=columns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnExperts(StoredExperts):
    """One projection of all experts, as NVFP4 that no file holds."""

    rows: int
    columns: int

    @property
    def storages(self) -> list[Storage]:
        return ["nvfp4"]

    def within(self, local: slice) -> DrawnExperts:
        return replace(self, mine=self.mine[local])

    def numbers(self) -> Iterator[Tensor]:
        for expert in self.mine:
            yield self._drawn(expert).decode()

    def kept_as(self, storage: Storage, room: int = 0) -> StoredMatrix | None:
        if storage != "nvfp4":
            return None
        shape = (len(self) + room, self.rows)
        codes = torch.empty(*shape, self.columns // 2, dtype=torch.uint8, device=self.device)
        scales = codes.new_empty(*shape, self.columns // nvfp4_ref.BLOCK, dtype=torch.float8_e4m3fn)
        factors = codes.new_empty(len(self) + room, dtype=torch.float32)
        for place, expert in enumerate(self.mine):
            drawn = self._drawn(expert)
            codes[place], scales[place], factors[place] = drawn.codes, drawn.block_scale, drawn.global_scale
        return StoredMatrix("nvfp4", codes, scales, factors)

    def input_scale(self) -> Tensor | None:
        return None

    def _drawn(self, expert: int) -> StoredMatrix:
        generator = _generator(f"{self.name}.{expert}", self.device)

        def drawn(low: int, high: int, columns: int) -> Tensor:
            shape = (self.rows, columns)
            return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator, device=self.device)

        # Scales from 0.5 to 1.75, whose mean square is 1.3; that of codes at random is 68.5 / 8.
        scales = drawn(48, 63, self.columns // nvfp4_ref.BLOCK).view(torch.float8_e4m3fn)
        factor = torch.tensor(1 / math.sqrt(self.columns * 1.3 * 68.5 / 8), device=self.device)
        return StoredMatrix("nvfp4", drawn(0, 256, self.columns // 2), scales, factor)


def _generator(name: str, device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
