"""A checkpoint folder: config.json beside *.safetensors, with Hugging Face `state_dict` names.

Contract: tensors are taken by name with the shape the architecture expects, so a wrong file fails at the door and by
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import CheckpointError

DEFAULT_CHECKPOINT = Path(__file__).resolve().parent / "checkpoints" / "sliding-csa"


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of a checkpoint under a name prefix."""

    by_name: dict[str, Tensor]
    source: str
    prefix: str = ""
    device: str = "cpu"

    def within(self, prefix: str) -> Tensors:
        return Tensors(self.by_name, self.source, f"{self.prefix}{prefix}.", self.device)

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


def load_checkpoint(folder: Path | str, device: str = "cpu") -> tuple[ModelConfig, Tensors]:
    """Reads a checkpoint folder.

    Raises:
        CheckpointError: the folder, its config or its tensors cannot be read.
    """
    folder = Path(folder)
    config = ModelConfig.from_json(folder / "config.json")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no *.safetensors file")
    by_name: dict[str, Tensor] = {}
    for file in files:
        try:
            by_name.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
    return config, Tensors(by_name, str(folder), device=device)
