"""A checkpoint folder: config.json beside *.safetensors, in Hugging Face's names or DeepSeek's, plain or quantised.

Contract: tensors are taken by their Hugging Face `state_dict` name with the shape the architecture expects, so a wrong
file fails at the door and by name. Experts that are stored packed can be taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.config import ModelConfig, read_config
from engine.errors import CheckpointError
from engine.loading.experts import StoredExperts
from engine.loading.reader import StoredModel, open_model

DEFAULT_CHECKPOINT = Path(__file__).resolve().parent / "checkpoints" / "sliding-csa"


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of a checkpoint under a name prefix."""

    by_name: Mapping[str, Tensor]
    source: str
    prefix: str = ""
    device: str = "cpu"
    # Of the activations and of the matrices that multiply them.
    dtype: torch.dtype = torch.float32

    def within(self, prefix: str) -> Tensors:
        return replace(self, prefix=f"{self.prefix}{prefix}.")

    def matrix(self, name: str, *shape: int) -> Tensor:
        """The matrix called `name`, as `take`, in the type of the activations that it multiplies."""
        return self.take(name, *shape, dtype=self.dtype)

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor called `name`, of exactly this shape, as `dtype` on the engine's device."""
        full = self.prefix + name
        tensor = self.by_name.get(full)
        if tensor is None:
            raise CheckpointError(
                f"{self.source} has no tensor {full}", hint="The names are those of the model's state_dict."
            )
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{self.source}: {full} has shape {tuple(tensor.shape)}, config.json makes it {shape}"
            )
        return tensor.to(device=self.device, dtype=dtype)

    def take_experts(self, name: str, *shape: int) -> Tensor | StoredExperts:
        """The experts called `name`: those of a checkpoint folder are read when they are asked for."""
        if isinstance(self.by_name, StoredModel):
            return self.by_name.experts(self.prefix + name, self.device)
        return self.take(name, *shape)


def load_checkpoint(folder: Path | str, device: str = "cpu") -> tuple[ModelConfig, Tensors]:
    """Opens a checkpoint folder; weights are read when they are taken.

    Raises:
        ConfigError: the architecture is not one that the engine computes.
        CheckpointError: the folder, its config or its tensors cannot be read, or do not fit the config.
    """
    folder = Path(folder)
    raw = read_config(folder / "config.json")
    config = ModelConfig.from_dict(raw)
    return config, Tensors(open_model(folder, config, raw), str(folder), device=device)
