"""Checkpoints whose experts compressed-tensors packed: NVFP4 with its divisor, and MXFP4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.engine import Engine
from engine.settings import EngineSettings
from kernels import mxfp4_ref
from tests.engine.data.forms import stored, write
from tests.engine.data.tiny import CONFIG, prompts, weights
from tests.oracles.peers import EXACT, assert_same_logits, transformers_logits

pytest.importorskip("compressed_tensors")


def compressor_and_scheme(name: str) -> tuple[Any, Any]:
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    compressor = NVFP4PackedCompressor if name == "NVFP4A16" else MXFP4PackedCompressor
    return compressor, preset_name_to_scheme(name, ["Linear"])


def compress(name: str, w_NK: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The stored parts of a matrix, and the numbers its own decoder makes of them."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    compressor, scheme = compressor_and_scheme(name)
    blocks = w_NK.unflatten(-1, (-1, scheme.weights.group_size))
    state = {"weight": w_NK}
    if name == "NVFP4A16":
        state["weight_global_scale"] = generate_gparam(w_NK.min(), w_NK.max()).reshape(1)
    scale, _ = calculate_qparams(
        blocks.amin(-1), blocks.amax(-1), scheme.weights, global_scale=state.get("weight_global_scale")
    )
    parts = compressor.compress(state | {"weight_scale": scale}, scheme)
    # What `decompress` does, but in fp32: it works in bf16, which rounds.
    rows, half = parts["weight_packed"].shape
    values = unpack_fp4_from_uint8(parts["weight_packed"], rows, 2 * half, dtype=torch.float32)
    block_scale = compressor._decompress_scale(parts["weight_scale"], torch.float32)
    divisor = parts.get("weight_global_scale")
    return parts, dequantize(values, block_scale, args=scheme.weights, global_scale=divisor, dtype=torch.float32)


def checkpoint(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """DeepSeek-named tensors with packed experts, and the model's tensors with what they decode to."""
    tensors, plain = stored(weights(0)), dict(weights(0))
    for layer in range(CONFIG["num_hidden_layers"]):
        experts = f"model.layers.{layer}.mlp.experts"
        up_and_down: dict[str, list[Tensor]] = {"gate_up_proj": [], "down_proj": []}
        for expert in range(CONFIG["n_routed_experts"]):
            stem = f"layers.{layer}.ffn.experts.{expert}"
            w13 = torch.cat([tensors.pop(f"{stem}.{w}.weight") for w in ("w1", "w3")])
            for fused, matrix, halves in (
                ("gate_up_proj", w13, {"w1": slice(0, 64), "w3": slice(64, 128)}),
                ("down_proj", tensors.pop(f"{stem}.w2.weight"), {"w2": slice(None)}),
            ):
                parts, numbers = compress(name, matrix)
                up_and_down[fused].append(numbers)
                for w, rows in halves.items():
                    own = {part: (t[rows] if t.ndim == 2 else t).clone() for part, t in parts.items()}
                    tensors |= {f"{stem}.{w}.{part}": t for part, t in own.items()}
        plain |= {f"{experts}.{fused}": torch.stack(matrices) for fused, matrices in up_and_down.items()}
    return tensors, plain


@pytest.mark.parametrize("name", ["NVFP4A16", "MXFP4A16"])
def test_packed_experts_give_transformers_logits_on_what_they_decode_to(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tensors, plain = checkpoint(name)
    folder = write(tmp_path, tensors, quantization_config={"quant_method": "compressed-tensors"})

    engine = Engine.load(folder, EXACT)

    assert_same_logits(engine.forward(prompts(0)), transformers_logits(plain, prompts(0)))
    w13, w2 = engine.expert_weights(2)
    torch.testing.assert_close(w13, plain["model.layers.2.mlp.experts.gate_up_proj"], rtol=3e-7, atol=0)
    torch.testing.assert_close(w2, plain["model.layers.2.mlp.experts.down_proj"], rtol=3e-7, atol=0)


def test_codes_and_block_scales_stay_those_of_the_file(tmp_path: Path) -> None:
    tensors, _ = checkpoint("NVFP4A16")
    folder = write(tmp_path, tensors)

    w2 = Engine.load(folder, EngineSettings(expert_quant="nvfp4")).model.layers[4].mlp.experts.w2

    assert torch.equal(w2.codes[5], tensors["layers.4.ffn.experts.5.w2.weight_packed"])
    divisor = tensors["layers.4.ffn.experts.5.w2.weight_global_scale"][0]
    assert w2.global_scale is not None
    assert float(w2.global_scale[5] * divisor) == pytest.approx(1, abs=1e-7)


def test_mxfp4_decodes_to_the_same_bits() -> None:
    w_NK = torch.randn(64, 128, generator=torch.Generator().manual_seed(3)) * 0.02

    parts, theirs = compress("MXFP4A16", w_NK)

    ours = mxfp4_ref.decode(parts["weight_packed"], parts["weight_scale"].view(torch.float8_e8m0fnu))
    assert torch.equal(ours, theirs)
