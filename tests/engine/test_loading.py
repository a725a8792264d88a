"""Checkpoints by other people's names and formats: what is read, kept packed, and refused by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoint import Tensors, load_checkpoint
from engine.config import ModelConfig
from engine.engine import Engine
from engine.errors import CheckpointError, ConfigError
from engine.loading.experts import StoredExperts
from engine.loading.pieces import row_pieces
from engine.methods import METHODS
from engine.probes import needle
from engine.settings import EngineSettings
from kernels import fp8_block_ref, mxfp4_ref, nvfp4_ref
from tests.engine.data.forms import FORMS, bf16, dequantised, fp8, fp8_ue8m0, modelopt, numbers, stored, write
from tests.engine.data.tiny import CONFIG, Draw, prompts, weights

EXACT = EngineSettings(expert_quant="none", index_keys="fp32")
# Two layers, so that a checkpoint is written and read in a moment; one expert half is a whole FP8 block.
SMALL = CONFIG | {
    "num_hidden_layers": 2,
    "layer_types": CONFIG["layer_types"][:2],
    "mlp_layer_types": ["hash_moe", "moe"],
    "moe_intermediate_size": 128,
}
GATE = "layers.1.ffn.experts.3.w1"
UP = "layers.1.ffn.experts.3.w3"


def small_weights() -> dict[str, Tensor]:
    return weights(0, SMALL)


def logits_of(tensors: dict[str, Tensor], config: dict = SMALL) -> Tensor:
    return Engine(ModelConfig.from_dict(config), Tensors(tensors, "memory"), EXACT).forward(prompts(0))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_deepseek_names_and_shards_give_the_logits_of_the_state_dict_names(tmp_path: Path) -> None:
    original = {name: t.int() if name.endswith("tid2eid") else t for name, t in stored(weights(0)).items()}
    folder = write(tmp_path, original, shards=3)

    engine = Engine.load(folder, EXACT)

    assert "layers.1.attn.indexer.compressor.wgate.weight" in original
    assert torch.equal(engine.forward(prompts(0)), logits_of(weights(0), CONFIG))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_quantised_experts_give_the_logits_of_the_numbers_they_stand_for(form, tmp_path: Path) -> None:
    folder = write(tmp_path, stored(small_weights(), form), SMALL, shards=3)

    engine = Engine.load(folder, EXACT)

    assert torch.equal(engine.forward(prompts(0)), logits_of(dequantised(small_weights(), form)))


@pytest.mark.parametrize("storage", ["fp8", "mxfp4", "nvfp4", "modelopt_fp8"])
def test_experts_in_one_piece_are_read_one_by_one_and_kept_as_they_are(storage: str, tmp_path: Path) -> None:
    tensors, plain = small_weights(), small_weights()
    for name in [name for name in tensors if ".mlp.experts." in name]:
        w_ENK = tensors.pop(name)
        if storage == "fp8":
            values, scale = fp8_block_ref.encode(w_ENK)
            tensors |= {name: values, f"{name}_scale_inv": scale}
            plain[name] = fp8_block_ref.decode(values, scale)
        elif storage == "mxfp4":
            codes, scale = mxfp4_ref.encode(w_ENK)
            tensors |= {name: codes, f"{name}_scale": scale}
            plain[name] = mxfp4_ref.decode(codes, scale)
        elif storage == "nvfp4":
            codes, scale, factor_E = nvfp4_ref.encode(w_ENK, global_scale=w_ENK.abs().max() / 2688)
            tensors |= {name: codes, f"{name}_weight_scale": scale, f"{name}_weight_scale_2": factor_E[0].clone()}
            plain[name] = nvfp4_ref.decode(codes, scale, factor_E)
        else:
            factor = w_ENK.abs().max() / 448
            tensors |= {name: (w_ENK / factor).to(torch.float8_e4m3fn), f"{name}_weight_scale": factor}
            plain[name] = tensors[name].float() * factor
    folder = write(tmp_path, tensors, SMALL)

    engine = Engine.load(folder, EXACT)

    assert torch.equal(engine.forward(prompts(0)), logits_of(plain))
    kept = Engine.load(folder, EngineSettings(expert_quant=storage)).model.layers[1].mlp.experts.w2
    whole = tensors["model.layers.1.mlp.experts.down_proj"]
    assert torch.equal(kept.codes.view(torch.uint8), whole.view(torch.uint8))


@pytest.mark.parametrize(
    ("form", "method", "part"),
    [
        ("modelopt", "nvfp4", "weight"),
        ("compressed_tensors", "nvfp4", "weight_packed"),
        ("fp8", "fp8", "weight"),
        ("fp8_ue8m0", "fp8", "weight"),
    ],
)
def test_experts_stay_the_bytes_of_the_checkpoint(form: str, method: str, part: str, tmp_path: Path) -> None:
    tensors = stored(small_weights(), FORMS[form])
    folder = write(tmp_path, tensors, SMALL)

    experts = Engine.load(folder, EngineSettings(expert_quant=method)).model.layers[1].mlp.experts

    gate, up = tensors[f"{GATE}.{part}"].view(torch.uint8), tensors[f"{UP}.{part}"].view(torch.uint8)
    assert torch.equal(experts.w13.codes[3].view(torch.uint8), torch.cat((gate, up)))
    w13, _ = experts.dequantised()
    parts = {name.rsplit(".", 1)[1]: t for name, t in tensors.items() if name.startswith(f"{UP}.")}
    assert torch.equal(w13[3, 128:], numbers(parts))


def test_the_hybrid_config_is_read_by_its_tensors_and_held_to_its_word(tmp_path: Path) -> None:
    tensors = stored(small_weights(), modelopt)
    expected = dequantised(small_weights(), modelopt)
    for ours, theirs in (("self_attn.q_b_proj", "attn.wq_b"), ("mlp.shared_experts.up_proj", "ffn.shared_experts.w3")):
        parts = fp8_ue8m0(tensors.pop(f"layers.1.{theirs}.weight"))
        tensors |= {f"layers.1.{theirs}.{part}": t for part, t in parts.items()}
        expected[f"model.layers.1.{ours}.weight"] = fp8_block_ref.decode(parts["weight"], parts["scale"].float())
    hybrid = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "moe_quant_algo": "NVFP4"}
    folder = write(tmp_path / "a", tensors, SMALL, quantization_config=hybrid)
    other = write(tmp_path / "b", stored(small_weights(), fp8_ue8m0), SMALL, quantization_config=hybrid)
    blocks = write(tmp_path / "c", tensors, SMALL, quantization_config=hybrid | {"weight_block_size": [64, 64]})

    assert torch.equal(Engine.load(folder, EXACT).forward(prompts(0)), logits_of(expected))
    assert "moe_quant_algo is NVFP4, the experts are stored as fp8" in refusal(other)
    with pytest.raises(ConfigError, match=r"weight_block_size is \[64, 64\], expected \[128, 128\]"):
        load_checkpoint(blocks)


def test_halves_with_global_scales_of_their_own_are_each_read_by_their_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    tensors = stored(small_weights(), modelopt)
    tensors[f"{UP}.weight_scale_2"] *= 3
    folder = write(tmp_path / "model", tensors, SMALL)

    engine = Engine.load(folder, EXACT)

    parts = {name.rsplit(".", 1)[1]: t for name, t in tensors.items() if name.startswith(f"{UP}.")}
    assert torch.equal(engine.expert_weights(1)[0][3, 128:], numbers(parts))
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    reasons = {event["reason"] for event in events if event["event"] == "ignored"}
    assert {
        "gate and up have global scales of their own",
        "expert_quant is none, which takes none",  # of input_scale
    } <= reasons


def test_everything_that_does_not_fit_is_listed_at_once(tmp_path: Path) -> None:
    tensors = stored(small_weights(), modelopt)
    del tensors["layers.0.attn.attn_sink"], tensors["layers.1.ffn.experts.5.w2.weight"]
    tensors["layers.0.attn.bias"] = torch.zeros(3)
    tensors["layers.1.attn.wq_a.weight"] = torch.zeros(64, 127)
    tensors["layers.1.ffn.gate.weight"] = torch.zeros(8, 128, dtype=torch.int32)
    tensors["layers.0.ffn.gate.tid2eid"] = torch.zeros(512, 2)
    tensors[f"{GATE}.weight_scale"] = torch.zeros(128, 7).to(torch.float8_e4m3fn)
    tensors[f"{UP}.weight_scale"] = torch.zeros(128, 8)
    tensors["mtp.0.norm.weight"] = torch.zeros(128)

    message = refusal(write(tmp_path, tensors, SMALL))

    for line in (
        "has no tensor model.layers.0.self_attn.sinks",
        "model.layers.1.mlp.experts.5.down_proj has only input_scale, weight_scale, weight_scale_2, expected a weight",
        "has layers.0.attn.bias, which this architecture does not have",
        "layers.1.attn.wq_a.weight has shape (64, 127), config.json makes it (64, 128)",
        "model.layers.1.mlp.gate.weight is I32 without a scale, expected F32, BF16, F16, F64",
        "layers.0.ffn.gate.tid2eid is F32, expected I64 or I32",
        f"{GATE}.weight_scale has shape (128, 7), config.json makes it (128, 8)",
        f"{UP}.weight_scale is F32, expected F8_E4M3",
    ):
        assert line in message
    assert "8 things do not fit" in message


def test_a_width_that_four_bit_blocks_do_not_divide_is_refused(tmp_path: Path) -> None:
    tensors = stored(small_weights(), modelopt)

    message = refusal(write(tmp_path, tensors, SMALL | {"moe_intermediate_size": 121}))

    assert "layers.1.mlp.experts.3.down_proj has K = 121 columns, expected a multiple of 16" in message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (f"{GATE}.weight_scale_2", 22000.0, "is 22000, expected amax / 2688, which multiplies: this looks like"),
        (f"{GATE}.input_scale", 40.0, "is 40, expected amax / 2688, which multiplies"),
        (f"{GATE}.weight_scale_2", 0.0, "is 0, expected a positive number"),
        (f"{GATE}.weight_scale_2", float("nan"), "is nan, expected a positive number"),
        (f"{GATE}.weight_global_scale", 0.004, "is 0.004, expected 2688 / amax, which divides: this looks like"),
        (f"{GATE}.input_global_scale", 0.02, "is 0.02, expected 2688 / amax, which divides: this looks like"),
    ],
)
def test_a_global_scale_of_the_other_convention_is_refused(name: str, value: float, message: str, tmp_path) -> None:
    form = "compressed_tensors" if "global" in name else "modelopt"
    tensors = stored(small_weights(), FORMS[form])
    tensors[name] = torch.tensor(value)

    assert f"{name} {message}" in refusal(write(tmp_path, tensors, SMALL))


@pytest.mark.parametrize("std", [0.001, 0.02, 1.0])
@pytest.mark.parametrize(
    ("form", "inverted"),
    [
        ("modelopt", "weight_scale_2"),
        ("modelopt", "input_scale"),
        ("compressed_tensors", "weight_global_scale"),
        ("compressed_tensors", "input_global_scale"),
        ("modelopt_fp8", "weight_scale"),
        ("modelopt_fp8", "input_scale"),
    ],
)
def test_every_mix_of_conventions_is_found_and_no_right_checkpoint_is_refused(
    form: str, inverted: str, std: float, tmp_path: Path
) -> None:
    scaled = {name: t * (std / 0.02) if ".experts." in name else t for name, t in small_weights().items()}
    tensors = stored(scaled, FORMS[form])
    full = 448 if form == "modelopt_fp8" else 2688
    # Activations of about 5, as after a norm; and of 40, as after the gate.
    for name in [name for name in tensors if name.endswith(("weight", "weight_packed")) and ".experts." in name]:
        stem, amax = name.rpartition(".")[0], 40.0 if ".w2." in name else 5.0
        divisor = form == "compressed_tensors"
        tensors[f"{stem}.{'input_global_scale' if divisor else 'input_scale'}"] = torch.tensor(
            full / amax if divisor else amax / full
        )
    right = write(tmp_path / "right", tensors, SMALL)
    load_checkpoint(right)
    wrong = [name for name in tensors if name.endswith(f"experts.6.w2.{inverted}")]
    tensors |= {name: 1 / tensors[name] for name in wrong}

    message = refusal(write(tmp_path / "wrong", tensors, SMALL))

    assert len(wrong) == 2
    assert message.count("this looks like") == 2
    assert all(name in message for name in wrong)


def test_two_names_for_one_part_are_refused(tmp_path: Path) -> None:
    tensors = stored(small_weights(), modelopt)
    tensors[f"{GATE}.weight_global_scale"] = 1 / tensors[f"{GATE}.weight_scale_2"]
    tensors[f"{UP}.input_global_scale"] = torch.tensor(100.0)

    message = refusal(write(tmp_path, tensors, SMALL))

    assert "experts.3.gate_proj has weight_global_scale and weight_scale_2, expected one of them" in message
    assert "experts.3.up_proj has input_global_scale and input_scale, expected one of them" in message


@pytest.mark.parametrize("name", ["layers.1.attn.wq_a.weight", f"{GATE}.weight", f"{GATE}.weight_scale"])
def test_weights_that_are_not_finite_are_refused_by_name(name: str, tmp_path: Path) -> None:
    tensors = stored(small_weights(), modelopt if name.endswith("_scale") else None)
    nan = torch.tensor(torch.nan).to(tensors[name].dtype)
    tensors[name].view(-1)[5] = nan

    with pytest.raises(CheckpointError, match=re.escape(f"{name} in ") + ".* holds NaN or infinite values"):
        Engine.load(write(tmp_path, tensors, SMALL), EngineSettings())


def test_experts_that_the_wanted_form_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    narrow = SMALL | {"moe_intermediate_size": 24}
    folder = write(tmp_path, stored(weights(0, narrow)), narrow)
    broken = small_weights()
    broken["model.layers.1.mlp.experts.down_proj"][2, 0, 0] = torch.inf

    with pytest.raises(
        CheckpointError,
        match=r"layers\.0\.mlp\.experts\.down_proj cannot be stored as nvfp4: .*expected .* K a multiple of 16",
    ):
        Engine.load(folder, EngineSettings(expert_quant="nvfp4"))
    with pytest.raises(CheckpointError, match=r"experts of layer 1 cannot be stored as mxfp4: .*NaN or infinite"):
        Engine(ModelConfig.from_dict(SMALL), Tensors(broken, "memory"), EngineSettings(expert_quant="mxfp4"))


def test_a_probe_lists_all_faults_of_its_checkpoint_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = stored(small_weights(), modelopt)
    del tensors["norm.weight"]
    tensors["layers.0.attn.bias"] = torch.zeros(3)
    tensors[f"{GATE}.weight_scale_2"] = torch.tensor(26880.0)

    assert needle.main(["--checkpoint", str(write(tmp_path, tensors, SMALL))]) == 1

    said = capsys.readouterr().err
    assert "3 things do not fit config.json" in said
    assert "has no tensor model.norm.weight" in said
    assert "has layers.0.attn.bias, which" in said
    assert f"{GATE}.weight_scale_2 is 26880, expected amax / 2688, which multiplies" in said
    assert "Traceback" not in said


def test_expert_ids_of_the_hash_table_are_checked(tmp_path: Path) -> None:
    tensors = stored(small_weights())
    tensors["layers.0.ffn.gate.tid2eid"][7, 1] = 8

    with pytest.raises(CheckpointError, match=r"tid2eid holds expert ids from 0 to 8, expected 0 to 7"):
        Engine.load(write(tmp_path, tensors, SMALL), EXACT)


def test_shards_that_do_not_agree_with_their_index_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, stored(small_weights()), SMALL, shards=2)
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    moved = good["weight_map"] | {
        "norm.weight": "model-00001-of-00002.safetensors",
        "ghost": "model-00002-of-00002.safetensors",
    }
    moved.pop("head.weight")

    index.write_text(json.dumps({"weight_map": moved}))
    disagreeing = refusal(folder)
    index.write_text(json.dumps({"weight_map": good["weight_map"] | {"ghost": "gone.safetensors"}}))
    missing = refusal(folder)
    index.write_text(json.dumps(good))
    shard = folder / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    truncated = refusal(folder)
    shard.write_bytes(b"\xff" * 8 + whole[8:])
    corrupt = refusal(folder)
    shard.unlink()
    lost = refusal(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    outside = refusal(folder)
    index.write_text("[]")
    unreadable = refusal(folder)

    assert "norm.weight: the index says model-00001-of-00002.safetensors, it is in model-00002" in disagreeing
    assert "ghost: the index says model-00002-of-00002.safetensors, it is in no file" in disagreeing
    assert "head.weight: in model-00001-of-00002.safetensors, not in the index" in disagreeing
    assert "names files that are not there: gone.safetensors" in missing
    assert "model-00002-of-00002.safetensors cannot be read: " in truncated
    assert "cannot lie at bytes" in truncated
    assert "model-00002-of-00002.safetensors cannot be read: its header would be" in corrupt
    assert "names files that are not there: model-00002-of-00002.safetensors" in lost
    assert "names a file outside its folder" in outside
    assert "has no readable weight_map" in unreadable


def test_damaged_files_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    folder = write(tmp_path, stored(small_weights()), SMALL)
    file = folder / "model.safetensors"
    whole = file.read_bytes()

    file.write_bytes(whole[:-100])
    cut = refusal(folder)
    file.write_bytes(b"")
    empty = refusal(folder)
    file.write_bytes((1 << 40).to_bytes(8, "little") + whole[8:])
    long = refusal(folder)
    file.write_bytes(whole.replace(b'"F32"', b'"Q32"', 1))
    dtype = refusal(folder)
    header = json.dumps({"a": {"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    shape = refusal(folder)

    assert "cannot lie at bytes" in cut
    assert "cannot be read" in empty
    assert "its header would be 1099511627776 bytes long" in long
    assert "has dtype Q32, expected one of F64, F32" in dtype
    assert "a of shape (-1, -4) lies at bytes 0 to 16, expected whole numbers" in shape


def test_another_architecture_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="model_type is 'llama', expected deepseek_v4"):
        ModelConfig.from_dict(CONFIG | {"model_type": "llama"})
    with pytest.raises(ConfigError, match=r"architectures is \['Other'\], expected DeepseekV4ForCausalLM"):
        ModelConfig.from_dict(CONFIG | {"architectures": ["Other"]})


MEASURE = """
import sys, torch
from engine.engine import Engine
from engine.settings import EngineSettings
from benchmarks.memory import peak_of
torch.set_num_threads(1)
quant, runner, fuse = sys.argv[2], sys.argv[3], sys.argv[4] == "fused"
settings = EngineSettings(expert_quant=quant, runner=runner, index_keys="fp32", fuse_shared_expert=fuse)
peak, kept = peak_of(lambda: Engine.load(sys.argv[1], settings))
print(peak, kept)
"""


def peak_and_kept(folder: Path, quant: str, runner: str, shared: str = "apart") -> tuple[int, int]:
    """Bytes at the highest and in the end of loading it in a process of its own, beside what that held before."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), quant, runner, shared],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    peak, kept = map(int, done.stdout.split())
    return peak, kept


def test_loading_peaks_below_one_and_a_third_of_the_weights_kept(tmp_path: Path) -> None:
    config = SMALL | {
        "num_hidden_layers": 16,
        "n_routed_experts": 16,
        "moe_intermediate_size": 256,
        "hidden_size": 256,
        "layer_types": ["sliding_attention"] * 16,
        "mlp_layer_types": ["moe"] * 16,
    }
    folder = write(tmp_path, stored(weights(0, config), modelopt), config)

    peak, kept = peak_and_kept(folder, "nvfp4", "auto")

    assert kept > 200e6
    assert peak <= 1.3 * kept


@pytest.mark.parametrize(
    ("form", "quant", "runner"),
    [
        (bf16, "nvfp4", "triton"),
        (fp8, "compressed_tensors_nvfp4", "triton"),
        (modelopt, "mxfp4", "triton"),
        (modelopt, "nvfp4", "reference"),
    ],
)
def test_a_small_checkpoint_keeps_that_promise_where_its_experts_are_encoded_anew_or_unpacked(
    form, quant: str, runner: str, tmp_path: Path
) -> None:
    config = SMALL | {
        "n_routed_experts": 12,
        "moe_intermediate_size": 512,
        "hidden_size": 1024,
        "vocab_size": 10240,
        "mlp_layer_types": ["moe", "moe"],
    }
    folder = write(tmp_path, stored(weights(0, config), form), config, shards=3)

    peak, kept = peak_and_kept(folder, quant, runner)

    # Unpacked, the experts are fp32.
    assert kept < (320e6 if runner == "reference" else 140e6)
    assert peak <= 1.3 * kept


@pytest.mark.parametrize("form", [bf16, modelopt])
def test_the_only_layer_of_a_checkpoint_keeps_that_promise_with_a_fused_shared_expert(form, tmp_path: Path) -> None:
    config = SMALL | {
        "num_hidden_layers": 1,
        "layer_types": ["sliding_attention"],
        "mlp_layer_types": ["moe"],
        "n_routed_experts": 60,
        "moe_intermediate_size": 512,
        "hidden_size": 1024,
    }
    folder = write(tmp_path, stored(weights(0, config), form), config)

    peak, kept = peak_and_kept(folder, "nvfp4", "triton", "fused")

    assert kept > 50e6
    assert peak <= 1.3 * kept


@pytest.mark.parametrize("quant", METHODS)
@pytest.mark.parametrize(("rows", "columns"), [(300, 1024), (1, 32), (128, 2048), (4500, 64)])
def test_experts_encoded_and_decoded_in_pieces_are_the_bytes_of_whole_ones(quant: str, rows: int, columns: int) -> None:
    method = METHODS[quant]()
    w_ENK = Draw(0)(3, rows, columns)
    # The scale of a whole matrix must not be that of its first piece, nor that of zeros a zero.
    w_ENK[0, -1, 5] = -1
    w_ENK[1] = 0

    pieces, whole = method.load(w_ENK, 0), method.encode(w_ENK)

    for part in ("codes", "block_scale", "global_scale"):
        one, other = getattr(pieces, part), getattr(whole, part)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    assert torch.equal(method.unpacked(whole, torch.float32), method.decode(whole))
    assert torch.equal(method.unpacked(whole, torch.bfloat16), method.decode(whole).bfloat16())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_experts_read_in_pieces_are_the_numbers_of_whole_ones(form, tmp_path: Path) -> None:
    config = SMALL | {"moe_intermediate_size": 352, "hidden_size": 704, "n_routed_experts": 2}
    tensors = weights(0, config)
    _, opened = load_checkpoint(write(tmp_path, stored(tensors, form), config))

    name = "model.layers.1.mlp.experts.gate_up_proj"
    experts = opened.take_experts(name, 2, 704, 704)

    assert isinstance(experts, StoredExperts)
    assert torch.equal(torch.stack(list(experts.numbers())), dequantised(tensors, form)[name])


@pytest.mark.parametrize(("rows", "columns", "block_rows"), [(4096, 4096, 1), (1000, 7168, 128), (5, 1 << 20, 128)])
def test_pieces_are_whole_blocks_and_all_of_the_rows(rows: int, columns: int, block_rows: int) -> None:
    pieces = list(row_pieces(rows, columns, block_rows, torch.device("cpu")))

    assert [row for piece in pieces for row in range(rows)[piece]] == list(range(rows))
    assert all(piece.start % block_rows == 0 for piece in pieces)
    assert len(pieces) <= 33
    assert list(row_pieces(rows, columns, block_rows, torch.device("meta"))) == [slice(0, rows)]
