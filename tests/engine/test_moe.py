"""The experts and who scales them: exactly once, for every method, runner, router and phase."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.experts import FusedMoE, fuses_routed_scaling_factor_in_topk
from engine.moe import MoE
from engine.runners.marlin import repack, unpack
from engine.settings import EngineSettings
from engine.topk import HashTopK, StandardTopK
from tests.engine.data.tiny import CONFIG, prompts, weights

ROWS = [
    ("none", "reference", "epilogue"),
    ("fp8", "reference", "kernel"),
    ("fp8", "marlin", "kernel"),
    ("nvfp4", "reference", "topk"),
    ("nvfp4", "marlin", "kernel"),
]
CONFIG_2 = {
    **CONFIG,
    "num_hidden_layers": 2,
    "layer_types": CONFIG["layer_types"][:2],
    "mlp_layer_types": ["hash_moe", "moe"],
}


def engine_of(quant: str, runner: str, factor: float = 1.5) -> Engine:
    torch.set_num_threads(1)
    settings = EngineSettings(expert_quant=quant, runner=runner)
    tensors = Tensors(weights(0, CONFIG_2), "tiny")
    return Engine(ModelConfig.from_dict(CONFIG_2), tensors, settings, routed_scaling_factor=factor)


def read_events(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("quant", "runner", "site"), ROWS)
def test_the_factor_is_said_to_be_applied_exactly_once(
    quant: str, runner: str, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    engine = engine_of(quant, runner)

    _, cache = engine.prefill(prompts(0)[:, :20])
    for step in range(3):
        engine.decode(torch.tensor([step]), cache)

    constants = [event for event in read_events(tmp_path / "events") if event["event"] == "constant"]
    said = [(event["layer"], event["phase"], event["site"], event["value"]) for event in constants]
    assert sorted(said) == [(layer, phase, site, 1.5) for layer in (0, 1) for phase in ("decode", "prefill")]


@pytest.mark.parametrize(("quant", "runner", "site"), ROWS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_measured_exponent_of_the_factor_is_one(quant: str, runner: str, site: str, phase: str, layer: int) -> None:
    x_TD = torch.randn(9, CONFIG["hidden_size"], generator=torch.Generator().manual_seed(1))
    ids_T = prompts(1)[0, :9]
    norms = {}
    for factor in (1.5, 3.0):
        block = engine_of(quant, runner, factor).model.layers[layer].mlp
        norms[factor] = block.routed(x_TD, ids_T, phase=phase).norm().item()

    exponent = math.log(norms[3.0] / norms[1.5]) / math.log(2)

    assert exponent == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("quant", "runner", "site"), ROWS)
def test_every_row_computes_the_scaled_sum_of_its_own_experts(quant: str, runner: str, site: str) -> None:
    engine = engine_of(quant, runner)
    x_TD = torch.randn(11, CONFIG["hidden_size"], generator=torch.Generator().manual_seed(2))
    ids_T = prompts(2)[0, :11]
    for layer in (0, 1):
        block = engine.model.layers[layer].mlp
        w13, w2 = engine.expert_weights(layer)
        picks, pick_weights = block.topk.forward(x_TD, ids_T, "prefill")
        pick_weights = pick_weights / pick_weights.sum(-1, keepdim=True)
        expected = torch.zeros_like(x_TD)
        for token in range(11):
            for pick, weight in zip(picks[token], pick_weights[token], strict=True):
                gate, up = (w13[pick] @ x_TD[token]).chunk(2)
                limit = CONFIG["swiglu_limit"]
                hidden = torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
                expected[token] += 1.5 * weight * (w2[pick] @ hidden)

        routed = block.routed(x_TD, ids_T, phase="decode")

        torch.testing.assert_close(routed, expected, atol=1e-6, rtol=1e-4)


def test_only_nvfp4_off_marlin_asks_the_router_to_scale() -> None:
    asked = {(quant, runner): fuses_routed_scaling_factor_in_topk(quant, runner) for quant, runner, _ in ROWS}

    assert [row for row, fused in asked.items() if fused] == [("nvfp4", "reference")]


@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "sigmoid", "softmax"])
def test_both_routers_give_the_same_weights_for_the_same_picks(scoring: str) -> None:
    config = replace(ModelConfig.from_dict(CONFIG), scoring_func=scoring, vocab_size=64)
    generator = torch.Generator().manual_seed(3)
    x_TD = torch.randn(64, config.hidden_size, generator=generator)
    gate_ED = torch.randn(8, config.hidden_size, generator=generator)
    bias_E = torch.randn(8, generator=generator)
    ids_T = torch.arange(64)
    shared = {"layer": 0, "routed_scaling_factor": 2.5, "apply_routed_scaling_factor_on_output": True}
    standard = StandardTopK(config, gate_ED, bias_E, **shared).forward(x_TD, ids_T, "prefill")
    table = HashTopK(config, gate_ED, standard.topk_ids_TK, **shared).forward(x_TD, ids_T, "prefill")
    plain = HashTopK(
        config, gate_ED, standard.topk_ids_TK, **{**shared, "apply_routed_scaling_factor_on_output": False}
    ).forward(x_TD, ids_T, "prefill")

    assert torch.equal(table.topk_ids_TK, standard.topk_ids_TK)
    torch.testing.assert_close(table.topk_weights_TK, standard.topk_weights_TK)
    torch.testing.assert_close(table.topk_weights_TK, 2.5 * plain.topk_weights_TK)
    torch.testing.assert_close(plain.topk_weights_TK.sum(-1), torch.ones(64))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("rows", "columns"), [(16, 8), (128, 64), (20, 9), (1, 1)])
def test_marlin_tiles_give_the_codes_back(rows: int, columns: int, dtype: torch.dtype) -> None:
    codes = torch.randint(0, 120, (3, rows, columns), dtype=torch.uint8).view(dtype)

    tiles = repack(codes)

    assert tiles.shape == (3, -(-rows // 16), -(-columns // 8), 8, 16)
    assert torch.equal(unpack(tiles, codes.shape).view(torch.uint8), codes.view(torch.uint8))


def test_packed_experts_are_stored_in_their_own_format() -> None:
    w13, w2 = torch.randn(2, 96, 48), torch.randn(2, 48, 48)
    fixed = {"layer": 0, "routed_scaling_factor": 1.0, "swiglu_limit": 1.0}

    nvfp4 = FusedMoE(w13, w2, EngineSettings(expert_quant="nvfp4"), **fixed).w13
    fp8 = FusedMoE(w13, w2, EngineSettings(expert_quant="fp8"), **fixed).w13

    assert (nvfp4.codes.dtype, nvfp4.codes.shape) == (torch.uint8, (2, 96, 24))
    assert (nvfp4.block_scale.dtype, nvfp4.block_scale.shape) == (torch.float8_e4m3fn, (2, 96, 3))
    assert nvfp4.global_scale.shape == (2,)
    assert (fp8.codes.dtype, fp8.codes.shape) == (torch.float8_e4m3fn, (2, 96, 48))
    assert (fp8.block_scale.dtype, fp8.block_scale.shape) == (torch.float32, (2, 1, 1))


def test_the_shared_expert_does_not_know_the_factor() -> None:
    x_TD = torch.randn(4, CONFIG["hidden_size"])
    blocks: list[MoE] = [engine_of("nvfp4", "auto", factor).model.layers[0].mlp for factor in (1.5, 3.0)]

    assert torch.equal(*(block.shared(x_TD, phase="decode") for block in blocks))


def test_a_runner_that_cannot_read_the_storage_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="runner 'marlin' cannot read 'none' experts, expected one of auto, reference"
    ):
        engine_of("none", "marlin")
