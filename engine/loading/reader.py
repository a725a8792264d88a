"""A checkpoint folder of any understood naming and storage, as the tensors of the model.

Contract: everything that the headers and the global scales show is checked before a weight is read, and all of it is
reported in one error. Weights are read when they are asked for, one at a time; NaN and infinite ones are refused by
name. The storage is read off the tensors; the config's word for it is only compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine import events
from engine.config import ModelConfig
from engine.errors import CheckpointError, ConfigError
from engine.loading.expected import INTEGER_SUFFIX, Shapes, expected_tensors
from engine.loading.experts import StoredExperts
from engine.loading.files import StoredTensor, open_folder
from engine.loading.formats import FP8_BLOCK, Layout, StoredMatrix, layout_of
from engine.loading.names import is_extra_block, locate
from engine.loading.pieces import WEIGHTS
from engine.loading.scales import check_global_scales

# The stored tensors of one matrix by part; for experts one such per (expert, half).
Found = dict[str, dict[tuple[int, int] | None, dict[str, StoredTensor]]]
Experts = list[list[Layout]]
EXPERT_SUFFIXES = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
_HALVES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


class StoredModel(Mapping[str, Tensor]):
    """The tensors of a checkpoint by their name in the model, decoded to the numbers they stand for."""

    def __init__(self, config: ModelConfig, layouts: dict[str, Layout | Experts], source: str) -> None:
        self.config, self.layouts, self.source = config, layouts, source

    def __getitem__(self, name: str) -> Tensor:
        if name.endswith(EXPERT_SUFFIXES):
            return torch.stack(list(self.experts(name).numbers()))
        layout = self.layouts[name]
        assert isinstance(layout, Layout)
        if name.endswith(INTEGER_SUFFIX):
            return self._checked_ids(name, layout.codes.read().long())
        if layout.input_scale is not None:
            events.emit_once(
                "input_scale", "ignored", setting="input_scale", where=name, reason="activations here stay in fp32"
            )
        return _finite(layout.read(), layout).decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self.layouts)

    def __len__(self) -> int:
        return len(self.layouts)

    def experts(self, name: str, device: str = "cpu") -> StoredExperts:
        """The experts called `name`, none of them read yet."""
        layout = self.layouts[name]
        if isinstance(layout, Layout):
            layout = [[layout.row(expert)] for expert in range(self.config.n_routed_experts)]
        return StoredExperts(name=name, layouts=layout, check=_finite, mine=range(len(layout)), device=device)

    def expert_storage(self) -> str:
        """What the experts of layer 0 are stored as."""
        layout = self.layouts["model.layers.0.mlp.experts.down_proj"]
        return layout.storage if isinstance(layout, Layout) else layout[0][0].storage

    def _checked_ids(self, name: str, table: Tensor) -> Tensor:
        low, high = int(table.min()), int(table.max())
        if low < 0 or high >= self.config.n_routed_experts:
            raise CheckpointError(
                f"{self.source}: {name} holds expert ids from {low} to {high}, "
                f"expected 0 to {self.config.n_routed_experts - 1}"
            )
        return table


def open_model(folder: Path, config: ModelConfig, raw: dict[str, Any]) -> StoredModel:
    """Opens a checkpoint folder and checks all of it that its headers show.

    Args:
        raw: the config.json it came with, for what it says of quantisation.

    Raises:
        CheckpointError: every tensor that is missing, unknown, or of another shape, type or form than expected.
    """
    quantization = raw.get("quantization_config") or {}
    block = quantization.get("weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    if list(block) != [FP8_BLOCK, FP8_BLOCK]:
        raise ConfigError(
            f"config: quantization_config.weight_block_size is {block}, expected [{FP8_BLOCK}, {FP8_BLOCK}]"
        )
    shapes = expected_tensors(config)
    found, problems = _sort(open_folder(folder), shapes, config)
    layouts: dict[str, Layout | Experts] = {}
    for name, shape in shapes.items():
        layout, reasons = _lay_out(name, shape, found.get(name, {}), config)
        problems += reasons
        if layout is not None:
            layouts[name] = layout
    problems += check_global_scales(parts for slots in found.values() for parts in slots.values())
    model = StoredModel(config, layouts, str(folder))
    if not problems and quantization.get("moe_quant_algo") == "NVFP4" and "nvfp4" not in model.expert_storage():
        problems.append(f"config.json's moe_quant_algo is NVFP4, the experts are stored as {model.expert_storage()}")
    if problems:
        raise CheckpointError(
            f"{folder}: {len(problems)} things do not fit config.json\n  " + "\n  ".join(problems),
            hint="docs/checkpoints.md lists the names and storage formats that are understood.",
        )
    return model


def _sort(stored: dict[str, StoredTensor], shapes: Shapes, config: ModelConfig) -> tuple[Found, list[str]]:
    """Every stored tensor at its place, and what has none."""
    found: Found = {}
    problems = []
    for name, tensor in stored.items():
        place = locate(name, shapes)
        if place is None:
            if is_extra_block(name, config.num_hidden_layers):
                events.emit_once("mtp", "ignored", setting="mtp", where=name, reason="only the main model is built")
            else:
                problems.append(f"has {name}, which this architecture does not have")
            continue
        slot = None if place.expert is None else (place.expert, place.half)
        parts = found.setdefault(place.name, {}).setdefault(slot, {})
        if place.part in parts:
            problems.append(f"has {place.name} twice: as {parts[place.part].name} and as {name}")
        parts[place.part] = tensor
    return found, problems


def _lay_out(
    name: str, shape: tuple[int, ...], slots: dict[tuple[int, int] | None, dict[str, StoredTensor]], config: ModelConfig
) -> tuple[Layout | Experts | None, list[str]]:
    if not slots:
        return None, [f"has no tensor {name}"]
    if None in slots:
        if len(slots) > 1:
            return None, [f"has {name} in one piece and expert by expert"]
        if name.endswith(INTEGER_SUFFIX):
            return _integers(slots[None], shape)
        whole = layout_of(slots[None], shape)
        return (whole, []) if isinstance(whole, Layout) else (None, [_named(name, reason) for reason in whole])
    prefix, fused = name.rsplit(".", 1)
    halves = _HALVES[fused]
    matrix = (shape[1] // len(halves), shape[2])
    experts: Experts = [[] for _ in range(config.n_routed_experts)]
    problems = [
        f"has expert {slot[0]} of {prefix}, config.json has {config.n_routed_experts} experts"
        for slot in slots
        if slot is not None and slot[0] >= config.n_routed_experts
    ]
    for expert, layouts in enumerate(experts):
        for half, projection in enumerate(halves):
            full = f"{prefix}.{expert}.{projection}"
            if (expert, half) not in slots:
                problems.append(f"has no tensor {full}.weight")
                continue
            layout = layout_of(slots[expert, half], matrix)
            if isinstance(layout, Layout):
                layouts.append(layout)
            else:
                problems += [_named(full, reason) for reason in layout]
    return experts, problems


def _integers(parts: dict[str, StoredTensor], shape: tuple[int, ...]) -> tuple[Layout | None, list[str]]:
    table = parts["weight"]
    problems = []
    if table.shape != shape:
        problems.append(f"{table.name} has shape {table.shape}, config.json makes it {shape}")
    if table.dtype not in ("I64", "I32"):
        problems.append(f"{table.name} is {table.dtype}, expected I64 or I32")
    return Layout(storage="none", codes=table), problems


def _named(name: str, reason: str) -> str:
    """A reason that begins with a verb gets the tensor it is about."""
    return f"{name} {reason}" if reason.startswith(("has ", "is ")) else reason


def _finite(matrix: StoredMatrix, layout: Layout) -> StoredMatrix:
    for tensor, stored in ((matrix.codes, layout.codes), (matrix.block_scale, layout.block_scale)):
        if tensor is None or stored is None or not (tensor.is_floating_point()):
            continue
        # Piece by piece: the check takes more memory than the tensor. One-byte floats have no isfinite; as fp32, a
        # NaN stays a NaN.
        if not all(
            torch.isfinite(piece.float() if piece.itemsize == 1 else piece).all()
            for piece in tensor.flatten().split(WEIGHTS)
        ):
            raise CheckpointError(
                f"{stored.name} in {stored.file} holds NaN or infinite values, expected finite ones",
                hint="A checkpoint with such a weight was damaged or saved during a diverged training.",
            )
    return matrix
