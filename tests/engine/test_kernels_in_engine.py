"""The whole engine on Triton kernels by the CPU interpreter: whatever is wired wrong shows here, without a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

HAS_GPU = Path("/dev/nvidia0").exists()
if not HAS_GPU:
    # Before triton is first imported: its library functions are decorated then.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks.random_model import TINY, config_of, random_tensors  # noqa: E402
from engine.config import CSA, HCA  # noqa: E402
from engine.engine import Engine  # noqa: E402
from engine.errors import ConfigError  # noqa: E402
from engine.requested import KERNELS_VARIABLE, requested_kernels  # noqa: E402
from engine.runners.kept import kept_for_kernels  # noqa: E402
from engine.settings import EngineSettings  # noqa: E402
from kernels.launch import ROOT  # noqa: E402

# A sliding, a CSA and an HCA layer; the CSA one has more entries than it may pick.
SHAPE = TINY | {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "q_lora_rank": 16,
    "sliding_window": 4,
    "compress_rates": {CSA: 4, HCA: 8},
    "index_n_heads": 2,
    "index_topk": 2,
    "n_routed_experts": 4,
    "hc_sinkhorn_iters": 3,
}
CONFIG = config_of(SHAPE, 3)
PREFILLED, DECODED = 13, 2
OPS = {
    "hyper_premix",
    "hyper_read",
    "hyper_write",
    "index_scores",
    "index_select",
    "norm",
    "rotate",
    "route",
    "sparse_attention_rows",
    "swiglu",
    "table_route",
}
# In fp32 only the order of sums differs. In bf16 the interpreter cuts off where a GPU rounds, at each of some 60 ops.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.1}


def logits_of(settings: EngineSettings) -> Tensor:
    """At every position of a prompt and after two more tokens."""
    torch.set_num_threads(1)
    engine = Engine(CONFIG, random_tensors(CONFIG, "cpu"), settings)
    ids = torch.randint(CONFIG.vocab_size, (1, PREFILLED + DECODED), generator=torch.Generator().manual_seed(0))
    logits, cache = engine.prefill(ids[:, :PREFILLED], range(PREFILLED))
    steps = [engine.decode(ids[:, PREFILLED + step], cache)[:, None] for step in range(DECODED)]
    return torch.cat((logits, *steps), 1)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.interpreter
@pytest.mark.skipif(HAS_GPU, reason="the interpreter is for machines without a GPU")
@pytest.mark.parametrize(
    ("quant", "runner", "dtype", "experts"),
    [
        ("nvfp4", "marlin", torch.float32, "nvfp4_experts"),
        ("fp8", "cutlass", torch.bfloat16, "fp8_experts"),
    ],
)
def test_an_engine_on_kernels_alone_gives_the_logits_of_the_references(
    quant: Any, runner: Any, dtype: torch.dtype, experts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"expert_quant": quant, "runner": runner, "dtype": dtype}
    expected = logits_of(EngineSettings(kernels="reference", **settings))
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))

    found = logits_of(EngineSettings(kernels="triton", **settings))

    assert (found - expected).norm() / expected.norm() <= TOLERANCE[dtype]
    said = lines_of(tmp_path / "events")
    picked = [event for event in said if event["event"] == "route" and event["op"] in {*OPS, experts}]
    assert {event["op"] for event in picked} == {*OPS, experts}
    for event in picked:
        assert (event["implementation"], event["requested"]) == ("triton", "triton")
        for kernel in event["kernels"]:
            lines = (ROOT / kernel["file"]).read_text(encoding="utf-8").splitlines()
            head = lines[kernel["line"] - 1 : kernel["line"] + 1]
            assert any(line.startswith(f"def {kernel['name']}(") for line in head), kernel
    constants = {kernel["name"]: kernel["constants"] for event in picked for kernel in event["kernels"]}
    assert constants["_route"]["TOPK"] == SHAPE["num_experts_per_tok"]
    assert constants["_write"]["ITERS"] == SHAPE["hc_sinkhorn_iters"]
    assert not [event for event in said if event["event"] == "ignored"]
    # Nothing is said twice, whatever the number of calls.
    keys = [(event["op"], event["layer"], event["phase"]) for event in picked]
    assert len(keys) == len(set(keys))


def test_a_processor_takes_the_references_unless_kernels_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))

    logits_of(EngineSettings())

    routes = [event for event in lines_of(tmp_path / "events") if event["event"] == "route"]
    picked = [event for event in routes if event["op"] in {*OPS, "sparse_attention"}]
    assert {event["op"] for event in picked} == OPS - {"sparse_attention_rows"} | {"sparse_attention"}
    assert {event["implementation"] for event in picked} == {"reference"}
    assert not any("kernels" in event for event in picked)


def test_the_environment_names_the_kernels_and_the_argument_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    monkeypatch.setenv(KERNELS_VARIABLE, "triton")

    assert requested_kernels("auto") == "triton"
    assert requested_kernels("reference") == "reference"

    (ignored,) = lines_of(tmp_path / "events")
    assert (ignored["event"], ignored["setting"]) == ("ignored", KERNELS_VARIABLE)
    assert ignored["reason"] == "the argument kernels=reference comes first"
    monkeypatch.setenv(KERNELS_VARIABLE, "cuda")
    with pytest.raises(ConfigError, match="ENGINE_KERNELS is 'cuda', expected one of auto, reference, triton"):
        requested_kernels("auto")


@pytest.mark.interpreter
@pytest.mark.skipif(HAS_GPU, reason="the interpreter is for machines without a GPU")
def test_what_has_no_kernel_is_left_to_the_reference_and_the_setting_said_to_be_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    settings = EngineSettings(expert_quant="mxfp4", runner="triton", index_keys="fp32", kernels="triton")
    engine = Engine(CONFIG, random_tensors(CONFIG, "cpu"), settings)
    x_TD, ids_T = torch.ones(2, 32), torch.zeros(2, dtype=torch.int64)

    engine.model.layers[1].mlp.routed(x_TD, ids_T, phase="prefill")

    said = lines_of(tmp_path / "events")
    ignored = [event["reason"] for event in said if event["event"] == "ignored" and event["setting"] == "kernels"]
    assert ignored == ["experts of layer 1: plain weights are in fp32"]
    (experts,) = [event for event in said if event["event"] == "route" and event["op"] == "experts"]
    assert experts["implementation"] == "reference"


@pytest.mark.interpreter
@pytest.mark.skipif(HAS_GPU, reason="the interpreter is for machines without a GPU")
@pytest.mark.parametrize("quant", ["nvfp4", "compressed_tensors_nvfp4", "fp8", "none"])
def test_what_a_runner_keeps_for_kernels_stands_for_the_same_weights(quant: Any) -> None:
    settings = EngineSettings(expert_quant=quant, runner="triton")
    experts = Engine(CONFIG, random_tensors(CONFIG, "cpu"), settings).model.layers[1].mlp.experts

    kept = kept_for_kernels(experts.method, experts.w13, experts.w2, torch.bfloat16, "triton")

    assert kept is not None
    for found, expected in zip(kept.numbers(), experts.dequantised(), strict=True):
        exact = quant != "none"
        assert torch.equal(found, expected if exact else expected.bfloat16().float())
    assert kept_for_kernels(experts.method, experts.w13, experts.w2, torch.bfloat16, "auto") is None
