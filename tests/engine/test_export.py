"""The exporter: what it writes loads again as what it was, in ModelOpt's form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.checkpoint import DEFAULT_CHECKPOINT, load_checkpoint
from engine.engine import Engine
from engine.errors import CheckpointError
from engine.export import export_nvfp4, main
from engine.settings import EngineSettings
from kernels import fp8_block_ref, nvfp4_ref
from tests.engine.data.forms import modelopt, stored, write
from tests.engine.data.tiny import CONFIG, prompts, weights

NVFP4 = EngineSettings(expert_quant="nvfp4", index_keys="fp32")


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}


def test_an_exported_checkpoint_computes_what_the_engine_computes_with_nvfp4_experts(tmp_path: Path) -> None:
    source = write(tmp_path / "source", weights(0))

    export_nvfp4(source, tmp_path / "out", max_shard_bytes=1_000_000)

    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 3
    exported, direct = Engine.load(tmp_path / "out", NVFP4), Engine.load(source, NVFP4)
    assert torch.equal(exported.forward(prompts(0)), direct.forward(prompts(0)))


def test_names_types_and_metadata_are_those_of_modelopt(tmp_path: Path) -> None:
    export_nvfp4(DEFAULT_CHECKPOINT, tmp_path, linears="fp8")

    tensors = all_tensors(tmp_path)
    stem = "layers.1.ffn.experts.3.w1"
    assert {name for name in tensors if name.startswith(stem)} == {
        f"{stem}.weight",
        f"{stem}.weight_scale",
        f"{stem}.weight_scale_2",
    }
    assert tensors[f"{stem}.weight"].dtype == torch.uint8
    assert tensors[f"{stem}.weight_scale"].dtype == torch.float8_e4m3fn
    assert tensors[f"{stem}.weight_scale_2"].shape == ()
    assert tensors["layers.1.attn.wq_a.scale"].dtype == torch.float8_e8m0fnu
    assert tensors["layers.0.ffn.gate.tid2eid"].dtype == torch.int32
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["moe_quant_algo"]) == ("fp8", "NVFP4")
    manifest = json.loads((tmp_path / "hf_quant_config.json").read_text())["quantization"]
    assert manifest["quantized_layers"][stem] == {"quant_algo": "NVFP4", "group_size": 16}


def test_fp8_matrices_lose_no_more_than_their_rounding(tmp_path: Path) -> None:
    export_nvfp4(DEFAULT_CHECKPOINT, tmp_path, linears="fp8")
    name = "self_attn.q_b_proj.weight"

    read, plain = (
        load_checkpoint(folder)[1].within("model.layers.1").take(name, 256, 64)
        for folder in (tmp_path, DEFAULT_CHECKPOINT)
    )

    tensors = all_tensors(tmp_path)
    scale = tensors["layers.1.attn.wq_b.scale"].float()
    assert torch.equal(read, fp8_block_ref.decode(tensors["layers.1.attn.wq_b.weight"], scale))
    # Half a step of three mantissa bits, or half of the smallest step of the largest scale.
    bound = plain.abs() * 2**-4 + scale.max() * 2**-10
    assert bool(((read - plain).abs() <= bound).all())
    assert float((plain.abs() / scale.max()).max()) > 224 / 2


def test_nvfp4_experts_are_passed_on_byte_for_byte(tmp_path: Path) -> None:
    # Global scales twice as large as encoding would choose: encoding anew would show.
    def loose(w_NK: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = modelopt(w_NK)
        halved = (parts["weight_scale"].float() / 2).to(torch.float8_e4m3fn)
        return parts | {"weight_scale": halved, "weight_scale_2": parts["weight_scale_2"] * 2}

    tensors = {name: t for name, t in stored(weights(0)).items() if ".experts." not in name}
    for layer in range(CONFIG["num_hidden_layers"]):
        for expert in range(CONFIG["n_routed_experts"]):
            for projection, shape in (("w1", (64, 128)), ("w2", (128, 64)), ("w3", (64, 128))):
                parts = loose(torch.full(shape, 0.125) * (1 + torch.arange(shape[1]) % 4))
                tensors |= {f"layers.{layer}.ffn.experts.{expert}.{projection}.{k}": t for k, t in parts.items()}
    source = write(tmp_path / "source", tensors)

    export_nvfp4(source, tmp_path / "out")

    out = all_tensors(tmp_path / "out")
    kept = [name for name in tensors if ".experts." in name]
    assert any(name.endswith("input_scale") for name in kept)
    assert all(bytes_of(out[name]) == bytes_of(tensors[name]) for name in kept)
    encoded = nvfp4_ref.encode(
        nvfp4_ref.decode(
            *(out[f"layers.0.ffn.experts.0.w1.{part}"] for part in ("weight", "weight_scale", "weight_scale_2"))
        )
    )
    assert encoded[2] != out["layers.0.ffn.experts.0.w1.weight_scale_2"]


def test_experts_that_nvfp4_cannot_hold_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow = CONFIG | {"moe_intermediate_size": 24}
    source = write(tmp_path / "source", weights(0, narrow), narrow)

    assert main([str(source), str(tmp_path / "out")]) == 1

    assert "experts.down_proj cannot be stored as nvfp4" in capsys.readouterr().err


def test_a_folder_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")

    with pytest.raises(CheckpointError, match="is not empty"):
        export_nvfp4(DEFAULT_CHECKPOINT, tmp_path)
    assert main([str(tmp_path), str(tmp_path / "new")]) == 1
    assert "config.json does not exist" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
