"""The checkpoint's scales of activations: used where activations are rounded, said to be ignored where they are not."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.checkpoint import load_checkpoint
from engine.engine import Engine
from engine.events import Phase
from engine.loading.experts import StoredExperts
from engine.methods import METHODS
from engine.methods.activations import per_block_nvfp4, per_row_e4m3
from engine.parallel.experts import ExpertShard
from engine.settings import EngineSettings
from kernels import nvfp4_ref
from tests.engine.data.forms import FORMS, stored, write
from tests.engine.data.tiny import CONFIG, weights

SMALL = CONFIG | {
    "num_hidden_layers": 2,
    "layer_types": CONFIG["layer_types"][:2],
    "mlp_layer_types": ["hash_moe", "moe"],
    "swiglu_limit": 10.0,
}
FULL = {"modelopt": 2688, "compressed_tensors": 2688, "modelopt_fp8": 448}
# Per projection; one expert saw larger activations than the others.
AMAX = {"w1": 4.0, "w3": 4.0, "w2": 0.5}
LARGEST_OF_W13 = 6.0


def checkpoint(folder: Path, form: str, *, scaled: bool = True) -> Path:
    """Experts in this form, each with the scale of its input under the form's own name."""
    tensors = stored(weights(0, SMALL), FORMS[form])
    tensors = {name: t for name, t in tensors.items() if not name.endswith("input_scale")}
    for name in list(tensors):
        stem, _, part = name.rpartition(".")
        if not scaled or ".experts." not in name or part not in ("weight", "weight_packed"):
            continue
        amax = LARGEST_OF_W13 if stem.endswith("experts.5.w1") else AMAX[stem.rpartition(".")[2]]
        divides = form == "compressed_tensors"
        tensors[f"{stem}.input_global_scale" if divides else f"{stem}.input_scale"] = torch.tensor(
            FULL[form] / amax if divides else amax / FULL[form]
        )
    return write(folder, tensors, SMALL)


def method_of(form: str) -> str:
    return {"modelopt": "nvfp4", "compressed_tensors": "compressed_tensors_nvfp4"}.get(form, form)


def read_events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def routed(engine: Engine, phase: Phase = "decode") -> Tensor:
    x_TD = torch.randn(11, SMALL["hidden_size"], generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        return engine.model.layers[1].mlp.routed(x_TD, torch.arange(11), phase=phase)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.delenv("ENGINE_MOE_RUNNER", raising=False)


@pytest.mark.parametrize("form", FULL)
def test_one_scale_serves_all_experts_and_both_halves(form: str, tmp_path: Path) -> None:
    engine = Engine.load(checkpoint(tmp_path, form), EngineSettings(expert_quant=method_of(form), runner="cutlass"))

    runner = engine.model.layers[1].mlp.experts.runner

    assert float(runner.w13.input_scale) == pytest.approx(LARGEST_OF_W13 / FULL[form], rel=1e-6)
    assert float(runner.w2.input_scale) == pytest.approx(AMAX["w2"] / FULL[form], rel=1e-6)


@pytest.mark.parametrize("form", FULL)
@pytest.mark.parametrize("runner", ["cutlass", "trtllm"])
def test_runners_that_round_activations_round_by_the_checkpoints_scale(
    form: str, runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = METHODS[method_of(form)]
    seen: list[tuple[tuple[int, ...], float]] = []
    quantise = method.quantise_activations

    def watched(self: object, x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
        assert input_scale is not None
        seen.append((tuple(x_ND.shape), float(input_scale)))
        return quantise(self, x_ND, input_scale)

    monkeypatch.setattr(method, "quantise_activations", watched)
    settings = EngineSettings(expert_quant=method_of(form), runner=runner)
    with_scales = Engine.load(checkpoint(tmp_path / "with", form), settings)
    found = routed(with_scales)

    hidden, width = SMALL["hidden_size"], SMALL["moe_intermediate_size"]
    assert {(shape[1], round(scale * FULL[form], 4)) for shape, scale in seen} == {
        (hidden, LARGEST_OF_W13),
        (width, AMAX["w2"]),
    }
    monkeypatch.undo()
    without = routed(Engine.load(checkpoint(tmp_path / "without", form, scaled=False), settings))
    assert 1e-4 < (found - without).norm() / without.norm() < 0.3


@pytest.mark.parametrize("runner", ["reference", "triton", "marlin"])
def test_a_runner_that_rounds_no_activations_says_that_the_scale_has_no_effect(
    runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineSettings(runner=runner)
    without = routed(Engine.load(checkpoint(tmp_path / "without", "modelopt", scaled=False), settings))
    folder = checkpoint(tmp_path / "with", "modelopt")
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))

    found = routed(Engine.load(folder, settings))

    assert torch.equal(found, without)
    said = [(one["where"], one["reason"]) for one in read_events(tmp_path / "events") if one["event"] == "ignored"]
    assert said == [
        (f"engine/experts.py, layer {layer}", f"the runner {runner} does not round activations") for layer in (0, 1)
    ]


def test_the_rounding_of_activations_is_a_route_with_the_source_of_its_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    settings = EngineSettings(runner="cutlass")

    for scaled in (True, False):
        routed(Engine.load(checkpoint(tmp_path / str(scaled), "modelopt", scaled=scaled), settings), "prefill")
        if scaled:
            monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "more"))

    reasons = [
        [one["reason"] for one in read_events(tmp_path / file) if one.get("op") == "moe_activations"]
        for file in ("events", "more")
    ]
    rounds = "cutlass rounds them to 4 bits; scale: "
    assert reasons == [[f"{rounds}the checkpoint's input_scale"], [f"{rounds}their own"]]


@pytest.mark.parametrize(
    ("form", "quant", "reason"),
    [
        ("modelopt", "fp8", "expert_quant is fp8, which takes none"),
        ("modelopt", "modelopt_fp8", "expert_quant is modelopt_fp8, the scale is one for nvfp4"),
        ("modelopt_fp8", "nvfp4", "expert_quant is nvfp4, the scale is one for modelopt_fp8"),
    ],
)
def test_a_scale_for_another_format_is_said_to_be_ignored(
    form: str, quant: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "model", form)
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))

    engine = Engine.load(folder, EngineSettings(expert_quant=quant, runner="cutlass"))

    assert engine.model.layers[0].mlp.experts.w13.input_scale is None
    said = [one["reason"] for one in read_events(tmp_path / "events") if one.get("setting") == "input_scale"]
    assert said == [reason, reason]


def test_a_process_takes_the_scale_of_all_experts_not_of_its_own(tmp_path: Path) -> None:
    _, tensors = load_checkpoint(checkpoint(tmp_path, "modelopt"))
    stack = tensors.take_experts("model.layers.1.mlp.experts.gate_up_proj", 8, 128, 128)
    assert isinstance(stack, StoredExperts)

    first = ExpertShard(rank=0, size=4, num_experts=8).take(stack)

    assert isinstance(first, StoredExperts)
    assert len(first) == 2
    assert torch.equal(next(first.numbers()), next(stack.numbers()))
    assert float(first.input_scale()) == float(stack.input_scale()) == pytest.approx(LARGEST_OF_W13 / 2688)


def test_a_given_scale_rounds_by_the_definition_and_saturates() -> None:
    x_ND = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    scale = torch.tensor(0.5 / 2688)

    blocks = per_block_nvfp4(x_ND, scale)
    rows = per_row_e4m3(x_ND, scale * 6)

    for row, block in ((0, 0), (3, 1)):
        own = x_ND[row, 16 * block : 16 * block + 16]
        step = (own.abs().max() / 6 / scale).clamp(max=448).to(torch.float8_e4m3fn).float() * scale
        expected = torch.tensor([nvfp4_ref.E2M1_VALUES[code & 7] for code in nvfp4_ref.e2m1_codes(own / step)]) * step
        torch.testing.assert_close(blocks[row, 16 * block : 16 * block + 16].abs(), expected, rtol=1e-6, atol=0)
    # 0.5 is the largest number that either format can give.
    assert float(blocks.abs().max()) == pytest.approx(0.5)
    assert float(rows.abs().max()) == pytest.approx(0.5)
    assert {round(float(one), 6) for one in rows[x_ND.abs() >= 0.5].abs()} == {0.5}


def test_experts_of_another_form_are_read_and_encoded_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, stored(weights(0, SMALL)), SMALL)
    numbers = StoredExperts.numbers
    seen: list[weakref.ref[Tensor]] = []
    most = 0

    def watched(self: StoredExperts) -> Iterator[Tensor]:
        nonlocal most
        for matrix in numbers(self):
            seen.append(weakref.ref(matrix))
            most = max(most, sum(ref() is not None for ref in seen))
            yield matrix

    monkeypatch.setattr(StoredExperts, "numbers", watched)

    Engine.load(folder, EngineSettings(expert_quant="nvfp4", runner="triton"))

    assert len(seen) == 2 * 2 * 8
    assert most == 1
