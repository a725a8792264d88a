"""Writes a checkpoint with NVFP4 experts as ModelOpt does, under DeepSeek's names.

    python -m engine.export CHECKPOINT OUT
    python -m engine.export CHECKPOINT OUT --linears fp8

Contract: only the routed experts change: `weight` (two e2m1 codes a byte), `weight_scale` (e4m3, linear order) and
`weight_scale_2` (fp32, multiplies; gate and up share one). Experts that are stored in NVFP4 already are passed on byte
for byte. With `--linears fp8` the matrices that DeepSeek releases in FP8 become e4m3 with e8m0 block scales, and the
config is the hybrid one: `quant_method` says fp8, `moe_quant_algo` says NVFP4. `input_scale` is passed on where the
source has one for NVFP4. Others get none: that takes a calibration run, and readers that quantise activations must
scale them dynamically.
Source: NVIDIA/Model-Optimizer examples/deepseek/deepseek_v4/quantize_to_nvfp4.py (names and metadata).
"""

# E experts, I expert hidden.

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint import Tensors, load_checkpoint
from engine.config import ModelConfig, read_config
from engine.errors import CheckpointError, EngineError
from engine.loading.expected import INTEGER_SUFFIX, expected_tensors
from engine.loading.experts import StoredExperts
from engine.loading.files import INDEX
from engine.loading.names import EXPERT_PROJECTIONS, original_name
from engine.methods import METHODS
from kernels import fp8_block_ref, nvfp4_ref

Linears = Literal["keep", "fp8"]
MAX_SHARD_BYTES = 4_000_000_000
# What DeepSeek's release stores in FP8, by the end of the Hugging Face name.
_FP8_LINEARS = (
    "self_attn.q_a_proj.weight",
    "self_attn.q_b_proj.weight",
    "self_attn.kv_proj.weight",
    "self_attn.o_a_proj.weight",
    "self_attn.o_b_proj.weight",
    "indexer.q_b_proj.weight",
    "shared_experts.gate_proj.weight",
    "shared_experts.up_proj.weight",
    "shared_experts.down_proj.weight",
)


def export_nvfp4(
    source: Path | str, out: Path | str, *, linears: Linears = "keep", max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Writes the checkpoint `source`, in any form the loader understands, to the folder `out`.

    Raises:
        CheckpointError: the source cannot be read, or `out` holds files already.
    """
    source, out = Path(source), Path(out)
    if out.exists() and any(out.iterdir()):
        raise CheckpointError(f"{out} is not empty, expected a new folder", hint="Name another one.")
    raw = read_config(source / "config.json")
    config, tensors = load_checkpoint(source)
    out.mkdir(parents=True, exist_ok=True)
    _write_shards(_tensors(config, tensors, linears), out, max_shard_bytes)
    raw.pop("quantization_config", None)
    raw["quantization_config"] = _quantization(linears)
    (out / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    (out / "hf_quant_config.json").write_text(json.dumps(_manifest(config), indent=1) + "\n", encoding="utf-8")


def _tensors(config: ModelConfig, tensors: Tensors, linears: Linears) -> Iterator[tuple[str, Tensor]]:
    for name, shape in expected_tensors(config).items():
        original = original_name(name)
        if ".experts." in name:
            yield from _experts(original, tensors.take_experts(name, *shape))
        elif name.endswith(INTEGER_SUFFIX):
            yield original, tensors.take(name, *shape, dtype=torch.int64).int()
        elif linears == "fp8" and name.endswith(_FP8_LINEARS):
            values, scale = fp8_with_power_scales(tensors.take(name, *shape))
            yield original, values
            yield original.removesuffix("weight") + "scale", scale
        else:
            yield original, tensors.take(name, *shape)


def _experts(name: str, weights: Tensor | StoredExperts) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one fused projection, expert by expert."""
    prefix, fused = name.rsplit(".", 1)
    halves = ("down_proj",) if fused == "down_proj" else ("gate_proj", "up_proj")
    packed = METHODS["nvfp4"]().load(weights, layer=int(name.split(".")[1]))
    assert packed.block_scale is not None
    assert packed.global_scale is not None
    rows = packed.codes.shape[1] // len(halves)
    for expert in range(len(packed.codes)):
        for half, projection in enumerate(halves):
            stem, own = f"{prefix}.{expert}.{EXPERT_PROJECTIONS[projection]}", slice(half * rows, (half + 1) * rows)
            yield f"{stem}.weight", packed.codes[expert, own].clone()
            yield f"{stem}.weight_scale", packed.block_scale[expert, own].clone()
            yield f"{stem}.weight_scale_2", packed.global_scale[expert].clone()
            if isinstance(weights, StoredExperts) and (calibrated := weights.input_scale_of(expert, half)) is not None:
                yield f"{stem}.input_scale", calibrated


def fp8_with_power_scales(w_NK: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 values and e8m0 scales: each fp32 block scale rounded up to a power of two, so that nothing saturates."""
    _, scale = fp8_block_ref.encode(w_NK)
    mantissa, exponent = torch.frexp(scale)
    exponent = exponent - (mantissa == 0.5).int()
    rows, columns = w_NK.shape
    block = 128
    spread = torch.ldexp(torch.ones_like(scale), exponent)
    spread = spread.repeat_interleave(block, 0).repeat_interleave(block, 1)[:rows, :columns]
    return (w_NK / spread).to(torch.float8_e4m3fn), (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def _write_shards(tensors: Iterator[tuple[str, Tensor]], out: Path, max_shard_bytes: int) -> None:
    """Shards of bounded size with an index; names follow transformers' pattern once their number is known."""
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}
    size = total = 0

    def flush() -> None:
        save_file(held, out / f"shard-{len(shards)}.safetensors", metadata={"format": "pt"})
        shards.append(list(held))
        held.clear()

    for name, tensor in tensors:
        if held and size + tensor.nbytes > max_shard_bytes:
            flush()
            size = 0
        held[name] = tensor.contiguous()
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (out / f"shard-{number}.safetensors").rename(out / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _quantization(linears: Linears) -> dict[str, Any]:
    if linears == "keep":
        return {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "moe_quant_algo": "NVFP4",
            "group_size": 16,
        }
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        "scale_fmt": "ue8m0",
        "activation_scheme": "dynamic",
        "moe_quant_algo": "NVFP4",
    }


def _manifest(config: ModelConfig) -> dict[str, Any]:
    """What hf_quant_config.json says: which layers are NVFP4."""
    quantized = {
        f"layers.{layer}.ffn.experts.{expert}.{projection}": {"quant_algo": "NVFP4", "group_size": nvfp4_ref.BLOCK}
        for layer in range(config.num_hidden_layers)
        for expert in range(config.n_routed_experts)
        for projection in EXPERT_PROJECTIONS.values()
    }
    return {
        "producer": {"name": "livepath", "version": "0.1.0"},
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": None,
            "group_size": nvfp4_ref.BLOCK,
            "quantized_layers": quantized,
            "exclude_modules": ["*.attn.*", "*.ffn.shared_experts.*", "*.ffn.gate", "embed", "head", "hc_*"],
        },
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m engine.export",
        description="Write a checkpoint with NVFP4 experts, in ModelOpt's form.",
        epilog="example: python -m engine.export engine/checkpoints/sliding-csa /tmp/nvfp4",
    )
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and *.safetensors, in any known form")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument(
        "--linears",
        choices=("keep", "fp8"),
        default="keep",
        help="keep the other matrices as fp32, or store them in FP8",
    )
    args = parser.parse_args(argv)
    try:
        export_nvfp4(args.checkpoint, args.out, linears=args.linears)
    except EngineError as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
