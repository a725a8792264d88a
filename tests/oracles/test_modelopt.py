"""NVFP4 against nvidia-modelopt: bytes of the encoder, numbers of the decoder, checkpoints both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.engine import Engine
from engine.export import export_nvfp4
from engine.methods.activations import per_block_nvfp4
from engine.settings import EngineSettings
from kernels import nvfp4_ref
from tests.engine.data.forms import stored, write
from tests.engine.data.tiny import CONFIG, prompts, weights
from tests.oracles.peers import EXACT, assert_same_logits, transformers_logits

pytest.importorskip("modelopt")


def theirs_encode(w_NK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    # Its cast works in place on its input.
    quantised, scale, factor = NVFP4QTensor.quantize(w_NK.clone(), 16)
    return quantised._quantized_data, scale, factor


def theirs_decode(codes: Tensor, scale: Tensor, factor: Tensor) -> Tensor:
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    shape = (codes.shape[0], codes.shape[1] * 2)
    tensor = NVFP4QTensor(torch.Size(shape), torch.float32, codes)
    return tensor.dequantize(torch.float32, scale=scale, double_scale=factor, block_sizes={-1: 16})


def theirs_parts(w_NK: Tensor) -> dict[str, Tensor]:
    codes, scale, factor = theirs_encode(w_NK)
    return {"weight": codes, "weight_scale": scale, "weight_scale_2": factor}


def awkward(kind: str) -> Tensor:
    rng = torch.Generator().manual_seed(7)
    normal = torch.randn(192, 512, generator=rng)
    if kind == "heavy-tailed":
        return normal * 0.02 / torch.rand(192, 1, generator=rng).clamp_min(1e-3) ** 1.5 * normal.abs() ** 2
    if kind == "tiny":
        return normal * 1e-6 * (torch.arange(192)[:, None] % 3 > 0)
    if kind == "outliers":
        normal = normal * 0.02
        normal.view(-1)[::12345] = 40.0
        return normal
    if kind == "bf16 ties":
        return (normal * 0.02).bfloat16().float()
    return normal * 0.02


@pytest.mark.parametrize("kind", ["random", "heavy-tailed", "tiny", "outliers", "bf16 ties"])
def test_encoding_gives_the_same_bytes(kind: str) -> None:
    w_NK = awkward(kind)

    codes, scale, factor = nvfp4_ref.encode(w_NK)

    their_codes, their_scale, their_factor = theirs_encode(w_NK)
    assert torch.equal(factor, their_factor)
    assert torch.equal(scale.view(torch.uint8), their_scale.view(torch.uint8))
    assert torch.equal(codes, their_codes)


@pytest.mark.parametrize("factor", [0.25, 0.0123, 1e-5])
def test_every_code_with_every_scale_byte_decodes_to_the_same_numbers(factor: float) -> None:
    codes = nvfp4_ref.pack(torch.arange(16, dtype=torch.uint8)).expand(256, 8).contiguous()
    scale = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)[:, None]

    ours = nvfp4_ref.decode(codes, scale, torch.tensor(factor))

    theirs = theirs_decode(codes, scale, torch.tensor(factor))
    finite = ~theirs.isnan()
    assert int(finite.sum()) == 254 * 16  # bytes 127 and 255 are NaN
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours[finite], theirs[finite])  # its code 8 is 0, ours and torchao's is -0


@pytest.mark.parametrize("amax", [0.5, 3.0, 40.0])
def test_activations_of_a_calibrated_scale_round_to_the_same_numbers(amax: float) -> None:
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    x_ND = torch.randn(64, 256, generator=torch.Generator().manual_seed(5))
    x_ND[3] = 0
    input_scale = torch.tensor(amax / 2688)

    ours = per_block_nvfp4(x_ND, input_scale)

    quantised, scale, factor = NVFP4QTensor.quantize(x_ND.clone(), 16, weights_scaling_factor_2=input_scale)
    assert torch.equal(ours, theirs_decode(quantised._quantized_data, scale, factor))


def test_a_matrix_of_zeros_decodes_to_zeros_here() -> None:
    assert not nvfp4_ref.decode(*nvfp4_ref.encode(torch.zeros(16, 32))).any()
    assert theirs_encode(torch.zeros(16, 32))[1].float().isnan().all()  # which is why the rule is ours


def test_a_checkpoint_encoded_by_modelopt_gives_transformers_logits_on_what_modelopt_decodes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tensors = stored(weights(0))
    for layer in range(CONFIG["num_hidden_layers"]):
        for expert in range(CONFIG["n_routed_experts"]):
            stem = f"layers.{layer}.ffn.experts.{expert}"
            w1, w3 = tensors.pop(f"{stem}.w1.weight"), tensors.pop(f"{stem}.w3.weight")
            fused = theirs_parts(torch.cat((w1, w3)))
            for name, rows in (("w1", slice(0, 64)), ("w3", slice(64, 128))):
                tensors |= {f"{stem}.{name}.{k}": (t[rows] if t.ndim else t).clone() for k, t in fused.items()}
            tensors |= {f"{stem}.w2.{k}": t for k, t in theirs_parts(tensors.pop(f"{stem}.w2.weight")).items()}
    hybrid = {"quant_method": "fp8", "weight_block_size": [128, 128], "moe_quant_algo": "NVFP4"}
    folder = write(tmp_path, tensors, quantization_config=hybrid)
    plain = dict(weights(0))
    for name, tensor in plain.items():
        if ".experts." in name:
            plain[name] = torch.stack([theirs_decode(*theirs_encode(matrix)) for matrix in tensor])

    engine = Engine.load(folder, EXACT)

    assert_same_logits(engine.forward(prompts(0)), transformers_logits(plain, prompts(0)))
    kept = Engine.load(folder, EngineSettings(expert_quant="nvfp4")).expert_weights(3)
    assert torch.equal(kept[0], plain["model.layers.3.mlp.experts.gate_up_proj"])


def test_the_exported_checkpoint_is_read_back_equal_by_modelopts_decoder(tmp_path: Path) -> None:
    source = write(tmp_path / "source", weights(1))

    export_nvfp4(source, tmp_path / "out")

    tensors = {name: t for file in (tmp_path / "out").glob("*.safetensors") for name, t in load_file(file).items()}
    direct = Engine.load(source, EngineSettings(expert_quant="nvfp4"))
    for layer in range(CONFIG["num_hidden_layers"]):
        for expert in range(CONFIG["n_routed_experts"]):
            read = [
                theirs_decode(
                    *(
                        tensors[f"layers.{layer}.ffn.experts.{expert}.{w}.{part}"]
                        for part in ("weight", "weight_scale", "weight_scale_2")
                    )
                )
                for w in ("w1", "w3", "w2")
            ]
            w13, w2 = direct.expert_weights(layer)
            assert torch.equal(torch.cat(read[:2]), w13[expert])
            assert torch.equal(read[2], w2[expert])
