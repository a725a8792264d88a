"""Configs, settings and checkpoints at the door: what is understood and what is refused, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint import load_checkpoint
from engine.config import CSA, HCA, SLIDING, ModelConfig, Yarn
from engine.engine import Engine
from engine.errors import CheckpointError, ConfigError
from engine.settings import EngineSettings
from tests.engine.data.tiny import CONFIG, weights


def test_older_lists_mean_the_same_architecture() -> None:
    older = {
        key: value for key, value in CONFIG.items() if key not in ("layer_types", "mlp_layer_types", "rope_parameters")
    }
    older["compress_ratios"] = [0, 4, 128, 4, 128, 4, 0]  # one more, for the multi-token-prediction block
    older["num_hash_layers"] = 2
    older["rope_scaling"] = {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 128}

    config = ModelConfig.from_dict(older)

    assert config.layer_types == (SLIDING, CSA, HCA, CSA, HCA, CSA)
    assert config.mlp_layer_types == ("hash_moe", "hash_moe", "moe", "moe", "moe", "moe")
    assert config.yarn == Yarn(factor=16.0, original_max_position_embeddings=128)
    assert [config.compress_rate(layer) for layer in range(3)] == [0, 4, 16]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": [SLIDING]}, "layer_types has 1 entries, num_hidden_layers is 6"),
        ({"layer_types": ["full_attention"] * 6}, "layer_types is 'full_attention'"),
        ({"scoring_func": "relu"}, "scoring_func is 'relu'"),
        ({"o_groups": 3}, r"num_attention_heads is 4, expected a multiple of o_groups \(3\)"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2"),
        ({"index_head_dim": 8}, r"index_head_dim is 8, expected at least qk_rope_head_dim \(16\)"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2, expected 1"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters.rope_type is 'linear'"),
        ({"layer_types": None}, "neither layer_types nor compress_ratios is given"),
        ({"layer_types": 5}, "layer_types is 5, expected a list"),
        ({"hidden_size": "128"}, "hidden_size is '128', expected a whole number of at least 1"),
        ({"hidden_size": -4, "o_groups": 0}, "(?s)hidden_size is -4, .*o_groups is 0, expected a whole number"),
        ({"routed_scaling_factor": float("nan")}, "routed_scaling_factor is nan, expected a number above 0"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob is 'yes', expected true or false"),
        ({"compress_rates": {CSA: 0, HCA: 16}}, rf"compress_rates\[{CSA}\] is 0, expected a whole number"),
        ({"compress_rates": {CSA: 4}}, rf"compress_rates\[{HCA}\] is None"),
        ({"compress_rates": [4]}, r"compress_rates is \[4\], expected an object"),
        ({"rope_parameters": 5}, "rope_parameters is 5, expected an object"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.factor is None, expected a number above 0"),
        ({"architectures": 5}, "architectures is 5, expected a list"),
        (
            {"scoring_func": "relu", "num_experts_per_tok": 9, "n_shared_experts": 2},
            "(?s)scoring_func is 'relu'.*n_shared_experts is 2.*num_experts_per_tok is 9",
        ),
    ],
)
def test_a_config_the_engine_cannot_compute_is_refused_by_key(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_dict({**CONFIG, **changes})


def test_all_missing_keys_are_named() -> None:
    raw = {key: value for key, value in CONFIG.items() if key not in ("q_lora_rank", "hidden_size")}
    older = {key: value for key, value in CONFIG.items() if key not in ("layer_types", "num_hidden_layers")}

    with pytest.raises(ConfigError, match=r"missing hidden_size, q_lora_rank$"):
        ModelConfig.from_dict(raw)
    with pytest.raises(ConfigError, match=r"missing num_hidden_layers$"):
        ModelConfig.from_dict(older | {"compress_ratios": [0, 4]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_quant": "int4"}, "expert_quant is 'int4', expected one of nvfp4, fp8, modelopt_fp8, "),
        ({"runner": "warp"}, "runner is 'warp'"),
        ({"index_keys": "fp16"}, "index_keys is 'fp16'"),
        ({"dtype": torch.float16}, "dtype is torch.float16, expected one of torch.float32, torch.bfloat16"),
        ({"kernels": "cuda"}, "kernels is 'cuda', expected one of auto, reference, triton"),
    ],
)
def test_an_unknown_setting_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**changes)


def test_a_checkpoint_folder_round_trips(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights(0), tmp_path / "model.safetensors")

    config, tensors = load_checkpoint(tmp_path)

    assert config == ModelConfig.from_dict(CONFIG)
    assert torch.equal(tensors.within("lm_head").take("weight", 512, 128), weights(0)["lm_head.weight"])


def test_what_is_wrong_with_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        Engine.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        Engine.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors file"):
        Engine.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Engine.load(tmp_path)
    tensors = weights(0)
    tensors["model.layers.2.self_attn.sinks"] = torch.zeros(5)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"layers\.2\.self_attn\.sinks has shape \(5,\), config\.json makes it \(4,\)"
    ):
        Engine.load(tmp_path)
    del tensors["model.layers.2.self_attn.sinks"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"has no tensor model\.layers\.2\.self_attn\.sinks"):
        Engine.load(tmp_path)
