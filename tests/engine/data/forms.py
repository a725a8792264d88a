"""Checkpoints of the tiny architecture as other people store them: names, expert formats, shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.loading.names import EXPERT_PROJECTIONS, original_name
from kernels import fp8_block_ref, mxfp4_ref, nvfp4_ref
from tests.engine.data.tiny import CONFIG

Parts = dict[str, Tensor]


def modelopt(w_NK: Tensor) -> Parts:
    codes, scale, factor = nvfp4_ref.encode(w_NK)
    return {"weight": codes, "weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.tensor(0.01)}


def compressed_tensors(w_NK: Tensor) -> Parts:
    codes, scale, factor = nvfp4_ref.encode(w_NK)
    return {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": (1 / factor).reshape(1)}


def mxfp4(w_NK: Tensor) -> Parts:
    codes, scale = mxfp4_ref.encode(w_NK)
    return {"weight": codes.view(torch.int8), "scale": scale}


def fp8(w_NK: Tensor) -> Parts:
    values, scale = fp8_block_ref.encode(w_NK)
    return {"weight": values, "weight_scale_inv": scale}


def fp8_ue8m0(w_NK: Tensor) -> Parts:
    _, scale = fp8_block_ref.encode(w_NK)
    scale = torch.exp2(torch.ceil(torch.log2(scale))).to(torch.float8_e8m0fnu)
    rows, columns = w_NK.shape
    spread = scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
    return {"weight": (w_NK / spread).to(torch.float8_e4m3fn), "scale": scale}


def fp8_byte_scales(w_NK: Tensor) -> Parts:
    parts = fp8_ue8m0(w_NK)
    return parts | {"scale": parts["scale"].view(torch.uint8)}


def modelopt_fp8(w_NK: Tensor) -> Parts:
    scale = w_NK.abs().max() / 448
    return {"weight": (w_NK / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def bf16(w_NK: Tensor) -> Parts:
    return {"weight": w_NK.bfloat16()}


FORMS: dict[str, Callable[[Tensor], Parts]] = {
    form.__name__: form for form in (modelopt, compressed_tensors, mxfp4, fp8, fp8_ue8m0, fp8_byte_scales, modelopt_fp8)
}


def numbers(parts: Parts) -> Tensor:
    """What the parts stand for, by the definition of each format."""
    if "weight_packed" in parts:
        return nvfp4_ref.decode(parts["weight_packed"], parts["weight_scale"], 1 / parts["weight_global_scale"][0])
    if "weight_scale_2" in parts:
        return nvfp4_ref.decode(parts["weight"], parts["weight_scale"], parts["weight_scale_2"])
    if "weight_scale" in parts:
        return parts["weight"].float() * parts["weight_scale"]
    scale = parts.get("weight_scale_inv", parts.get("scale"))
    assert scale is not None
    if parts["weight"].dtype == torch.int8:
        return mxfp4_ref.decode(parts["weight"].view(torch.uint8), scale)
    scale = scale.view(torch.float8_e8m0fnu) if scale.dtype == torch.uint8 else scale
    return fp8_block_ref.decode(parts["weight"], scale.float())


def stored(tensors: dict[str, Tensor], form: Callable[[Tensor], Parts] | None = None) -> dict[str, Tensor]:
    """The model's tensors under DeepSeek's names, experts one by one; with a form, gate and up in one scale."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".experts." not in name:
            out[original_name(name)] = tensor.clone()
            continue
        prefix, fused = original_name(name).rsplit(".", 1)
        halves = ("down_proj",) if fused == "down_proj" else ("gate_proj", "up_proj")
        for expert, matrix in enumerate(tensor):
            for half, projection in enumerate(halves):
                stem = f"{prefix}.{expert}.{EXPERT_PROJECTIONS[projection]}"
                out |= {f"{stem}.{part}": t for part, t in _half(matrix, half, len(halves), form).items()}
    return out


def _half(matrix: Tensor, half: int, count: int, form: Callable[[Tensor], Parts] | None) -> Parts:
    rows = len(matrix) // count
    own = slice(half * rows, (half + 1) * rows)
    if form is None:
        return {"weight": matrix[own].clone()}
    if form not in (modelopt, compressed_tensors, modelopt_fp8):
        return form(matrix[own])
    # Both halves in one go, so that they share the scale of the whole.
    return {part: (t[own] if t.ndim == 2 else t).clone() for part, t in form(matrix).items()}


def dequantised(tensors: dict[str, Tensor], form: Callable[[Tensor], Parts]) -> dict[str, Tensor]:
    """The model's tensors with its experts replaced by what the form makes of them."""
    out = dict(tensors)
    for name, tensor in tensors.items():
        if ".experts." in name:
            count = 1 if name.endswith("down_proj") else 2
            out[name] = torch.stack(
                [torch.cat([numbers(_half(matrix, half, count, form)) for half in range(count)]) for matrix in tensor]
            )
    return out


def write(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] = CONFIG, *, shards: int = 1, **extra: Any
) -> Path:
    """A checkpoint folder; several shards come with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, **extra}))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
