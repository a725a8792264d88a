"""Runners: who is chosen and why, and layouts that give every byte back."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.experts import fuses_routed_scaling_factor_in_topk
from engine.methods import METHODS
from engine.methods.activations import per_block_mxfp8, per_block_nvfp4, per_group_e4m3, per_row_e4m3
from engine.methods.base import MoEMethod, Packed
from engine.runners import RUNNERS
from engine.runners.layouts import (
    deinterleave,
    interleave,
    swap_halves,
    swizzle_scales,
    unswizzle_scales,
    with_rows,
)
from engine.runners.selection import CAPABILITY_VARIABLE, RUNNER_VARIABLE, select_runner
from engine.settings import EngineSettings
from engine.topk import StandardTopK
from tests.engine.data.tiny import CONFIG, prompts, weights

PHASES = ("decode", "prefill")
CONFIG_2 = {
    **CONFIG,
    "num_hidden_layers": 2,
    "layer_types": CONFIG["layer_types"][:2],
    "mlp_layer_types": ["hash_moe", "moe"],
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (RUNNER_VARIABLE, CAPABILITY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


def selected(method: str, argument: str = "auto") -> str:
    return select_runner(method, METHODS[method].runners, argument, "cpu").runner


@pytest.mark.parametrize(
    ("capability", "four_bit", "eight_bit", "plain"),
    [
        ("none", "reference", "reference", "reference"),
        ("7.5", "reference", "reference", "reference"),
        ("8.6", "marlin", "triton", "triton"),
        ("9.0", "marlin", "triton", "triton"),
        ("10.0", "trtllm", "cutlass", "triton"),
        ("12.0", "cutlass", "triton", "triton"),
    ],
)
def test_auto_goes_by_the_capability_of_the_device(
    monkeypatch: pytest.MonkeyPatch, capability: str, four_bit: str, eight_bit: str, plain: str
) -> None:
    monkeypatch.setenv(CAPABILITY_VARIABLE, capability)

    assert [selected(method) for method in ("nvfp4", "mxfp4", "compressed_tensors_nvfp4")] == [four_bit] * 3
    assert [selected(method) for method in ("fp8", "modelopt_fp8")] == [eight_bit] * 2
    assert selected("none") == plain


def test_every_automatic_choice_is_one_that_reads_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in ("none", "8.0", "9.0", "10.3", "11.0", "12.1"):
        monkeypatch.setenv(CAPABILITY_VARIABLE, capability)
        for method in METHODS:
            assert selected(method) in METHODS[method].runners


def test_the_environment_chooses_where_no_argument_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNNER_VARIABLE, "cutlass")

    chosen = select_runner("nvfp4", METHODS["nvfp4"].runners, "auto", "cpu")

    assert (chosen.runner, chosen.requested) == ("cutlass", "cutlass")
    assert RUNNER_VARIABLE in chosen.reason


def test_variables_without_effect_are_said_to_be_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    monkeypatch.setenv(RUNNER_VARIABLE, "cutlass")
    monkeypatch.setenv(CAPABILITY_VARIABLE, "9.0")

    assert selected("nvfp4", "triton") == "triton"

    said = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert {(event["event"], event["setting"]) for event in said} == {
        ("ignored", RUNNER_VARIABLE),
        ("ignored", CAPABILITY_VARIABLE),
    }


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (RUNNER_VARIABLE, "warp", "ENGINE_MOE_RUNNER 'warp' cannot read 'nvfp4' experts, expected one of auto"),
        (CAPABILITY_VARIABLE, "hopper", "ENGINE_DEVICE_CAPABILITY is 'hopper', expected a capability such as 9.0"),
        (CAPABILITY_VARIABLE, "9", "ENGINE_DEVICE_CAPABILITY is '9'"),
    ],
)
def test_variables_of_no_valid_value_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigError, match=message):
        selected("nvfp4")


def test_the_flag_is_off_wherever_the_runner_multiplies_by_itself() -> None:
    for method in METHODS:
        for runner in METHODS[method].runners:
            asked = fuses_routed_scaling_factor_in_topk(method, runner)
            assert not (asked and RUNNERS[runner].applies_routed_scaling_factor), (method, runner)
            assert asked or runner != "trtllm"


def test_settings_that_a_runner_has_no_place_for_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    tensors = Tensors(weights(0, CONFIG_2), "tiny")
    config = ModelConfig.from_dict(CONFIG_2)

    Engine(config, tensors, EngineSettings(runner="trtllm", fuse_shared_expert=True, route_in_kernel=True))
    Engine(config, tensors, EngineSettings(runner="marlin", route_in_kernel=False))

    said = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    ignored = [(event["setting"], event["reason"]) for event in said if event["event"] == "ignored"]
    assert ignored == [
        ("fuse_shared_expert", "the runner trtllm has no place for it"),
        ("route_in_kernel", "layer 0 picks from a table of token ids"),
        ("route_in_kernel", "the runner marlin takes picks only"),
    ]


def test_the_runner_that_routes_inside_says_so_where_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPABILITY_VARIABLE, "10.0")

    routes = routes_of(EngineSettings(), tmp_path / "events", monkeypatch)

    found = sorted((one["layer"], one["phase"], one["implementation"]) for one in routes if one["op"] == "topk")
    assert found == sorted(
        [
            *((0, phase, "HashTopK.forward") for phase in PHASES),
            *((1, phase, "TrtllmRunner.route_inside") for phase in PHASES),
        ]
    )
    assert {one["reason"] for one in routes if one["op"] == "moe_runner"} == {
        "ENGINE_DEVICE_CAPABILITY: capability 10.0"
    }


@pytest.mark.parametrize(
    ("method", "runner"), [(method, runner) for method in METHODS for runner in METHODS[method].runners]
)
def test_every_choice_is_exactly_one_route_per_layer_and_phase(
    method: str, runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = routes_of(EngineSettings(expert_quant=method, runner=runner), tmp_path / "events", monkeypatch)

    count = Counter((one["op"], one["layer"], one["phase"]) for one in routes)
    assert set(count.values()) == {1}
    nvfp4 = METHODS[method].nvfp4_experts is not MoEMethod.nvfp4_experts and runner in ("triton", "marlin")
    fp8 = METHODS[method].fp8_experts is not MoEMethod.fp8_experts and runner != "reference"
    experts = "nvfp4_experts" if nvfp4 else "fp8_experts" if fp8 else "experts"
    expected = {"topk", "moe_method", "moe_runner", "moe_layout", experts, "attention"}
    expected |= {"hyper_premix", "hyper_read", "hyper_write", "norm", "swiglu"}
    expected |= {"moe_activations"} if RUNNERS[runner].quantises_activations else set()
    for layer in (0, 1):
        for phase in PHASES:
            # Layer 1 is the one with an indexer.
            ops = expected | ({"index_scores", "index_select", "rotate", "route"} if layer == 1 else {"table_route"})
            assert ops <= {op for op, at, of in count if (at, of) == (layer, phase)}
    assert all(one["reason"] for one in routes)


def routes_of(settings: EngineSettings, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Every route that a prefill and two steps of decoding give."""
    monkeypatch.setenv("LIVEPATH_EVENTS", str(path))
    torch.set_num_threads(1)
    engine = Engine(ModelConfig.from_dict(CONFIG_2), Tensors(weights(0, CONFIG_2), "tiny"), settings)
    _, cache = engine.prefill(prompts(0)[:, :20])
    for step in range(2):
        engine.decode(torch.tensor([step]), cache)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in events if event["event"] == "route"]


@pytest.mark.parametrize("method", METHODS)
def test_a_fused_shared_expert_gives_the_logits_of_one_beside(method: str) -> None:
    torch.set_num_threads(1)
    config, tensors = ModelConfig.from_dict(CONFIG_2), Tensors(weights(0, CONFIG_2), "tiny")
    settings = [EngineSettings(expert_quant=method, fuse_shared_expert=fused) for fused in (False, True)]

    apart, fused = (Engine(config, tensors, one).forward(prompts(3)[:, :40]) for one in settings)

    # Fused, the shared expert is rounded to the routed experts' format.
    assert (fused - apart).norm() / apart.norm() < (1e-5 if method == "none" else 0.1)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 9), st.sampled_from([torch.uint8, torch.float8_e4m3fn]))
def test_layouts_give_every_byte_back(num_experts: int, half: int, columns: int, dtype: torch.dtype) -> None:
    codes = torch.randint(0, 120, (num_experts, 2 * half, columns), dtype=torch.uint8).view(dtype)

    for there, back in ((swap_halves, swap_halves), (interleave, deinterleave)):
        assert torch.equal(back(there(codes)).view(torch.uint8), codes.view(torch.uint8))
    tiled = swizzle_scales(codes)
    assert torch.equal(unswizzle_scales(tiled, 2 * half, columns).view(torch.uint8), codes.view(torch.uint8))


def test_scales_of_blocks_stay_where_they_are_and_scales_of_rows_move() -> None:
    codes = torch.arange(8, dtype=torch.uint8).view(1, 4, 2)
    per_row, per_block = torch.arange(4.0).view(1, 4, 1), torch.ones(1, 1, 1)

    assert with_rows(Packed(codes, per_row), swap_halves).block_scale.flatten().tolist() == [2, 3, 0, 1]
    assert torch.equal(with_rows(Packed(codes, per_block), swap_halves).block_scale, per_block)


@pytest.mark.parametrize("rounded", [per_row_e4m3, per_group_e4m3, per_block_mxfp8, per_block_nvfp4])
def test_a_rounded_row_does_not_depend_on_its_neighbours(rounded: object) -> None:
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    rows[3] *= 1000
    rows[4] = 0

    together = rounded(rows)

    assert torch.equal(together, torch.cat([rounded(row[None]) for row in rows]))
    assert (together - rows).norm() / rows.norm() < 0.12
    assert torch.equal(together[4], rows[4])


def test_groups_keep_a_token_to_its_best_groups() -> None:
    config = ModelConfig.from_dict(CONFIG_2)
    generator = torch.Generator().manual_seed(4)
    gate_ED = torch.randn(8, config.hidden_size, generator=generator)
    bias_E, x_TD = torch.randn(8, generator=generator), torch.randn(50, config.hidden_size, generator=generator)
    fixed = {"layer": 0, "routed_scaling_factor": 1.0, "apply_routed_scaling_factor_on_output": False}
    router = StandardTopK(config, gate_ED, bias_E, num_groups=4, topk_groups=1, **fixed)

    picked = router.forward(x_TD, torch.zeros(50, dtype=torch.int64), "prefill")

    choice_TE = torch.nn.functional.softplus(x_TD @ gate_ED.T).sqrt() + bias_E
    # With two experts a group and two picks, the best group is the pair with the largest sum.
    best_T = choice_TE.view(50, 4, 2).sum(-1).argmax(-1)
    assert torch.equal(picked.topk_ids_TK // 2, best_T[:, None].expand(-1, 2))
    free = StandardTopK(config, gate_ED, bias_E, num_groups=4, topk_groups=4, **fixed)
    plain = StandardTopK(config, gate_ED, bias_E, **fixed)
    free_ids, plain_ids = (router.select(x_TD).topk_ids_TK for router in (free, plain))
    assert torch.equal(free_ids, plain_ids)
    with pytest.raises(ConfigError, match="5 of 4 groups of 8 experts"):
        StandardTopK(config, gate_ED, bias_E, num_groups=4, topk_groups=5, **fixed)
