"""The engine on GPUs: packed kernels under a runner's contract, and groups of processes over NCCL."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.disagg.transfer import receive_cache, send_cache
from engine.engine import Engine
from engine.parallel.launch import spawn
from engine.settings import EngineSettings
from tests.engine.data.tiny import CONFIG, prompts, weights

pytestmark = pytest.mark.gpu
# fp32 products on a GPU add up in another order, and index keys on an e4m3 boundary may round to the other side.
TOLERANCE = 1e-3


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    wanted = 2 if "two_gpus" in request.node.name else 1
    if torch.cuda.device_count() < wanted:
        pytest.skip(f"needs {wanted} CUDA device{'s' * (wanted > 1)}")


def generated(engine: Engine) -> tuple[Tensor, list[int]]:
    """The logits after a prompt, and the tokens that greedy decoding goes on with."""
    logits_BPV, cache = engine.prefill(prompts(7)[:, :50])
    token, tokens = logits_BPV[:, -1].argmax(-1), []
    for _ in range(4):
        tokens.append(int(token))
        token = engine.decode(token, cache).argmax(-1)
    return logits_BPV.cpu(), tokens


def engine_of(settings: EngineSettings) -> Engine:
    return Engine(ModelConfig.from_dict(CONFIG), Tensors(weights(0), "tiny", device=settings.device), settings)


def on_rank(rank: int, settings: EngineSettings) -> tuple[Tensor, list[int]]:
    return generated(engine_of(replace(settings, expert_parallel_rank=rank)))


def prefill_on_zero(rank: int) -> list[int] | None:
    engine = engine_of(EngineSettings(device="cuda"))
    if rank == 0:
        logits_BPV, cache = engine.prefill(prompts(7)[:, :50])
        send_cache(engine, cache, logits_BPV[:, -1].argmax(-1), to=1)
        return None
    cache, token = receive_cache(engine, source=0)
    tokens = []
    for _ in range(4):
        tokens.append(int(token))
        token = engine.decode(token, cache).argmax(-1)
    return tokens


@pytest.mark.parametrize("runner", ["marlin", "triton"])
def test_a_packed_runner_takes_the_triton_kernel_and_gives_the_answer_of_the_cpu(
    runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, tokens = generated(engine_of(EngineSettings(runner=runner)))
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))

    found, found_tokens = generated(engine_of(EngineSettings(runner=runner, device="cuda")))

    assert found_tokens == tokens
    assert (found - wanted).norm() / wanted.norm() < TOLERANCE
    said = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    kernels = {event["implementation"] for event in said if event.get("op") == "nvfp4_experts"}
    assert kernels == {"triton"}
    assert {event["site"] for event in said if event["event"] == "constant"} == {"kernel"}


def test_auto_goes_by_the_capability_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_DEVICE_CAPABILITY", raising=False)
    major = torch.cuda.get_device_capability()[0]

    chosen = engine_of(EngineSettings(device="cuda")).model.layers[0].mlp.experts.runner_name

    assert chosen == {8: "marlin", 9: "marlin", 10: "trtllm", 12: "cutlass"}[major]


@pytest.mark.parametrize("fused", [False, True])
def test_two_gpus_that_share_the_experts_give_the_tokens_of_one(fused: bool) -> None:
    settings = EngineSettings(device="cuda", fuse_shared_expert=fused)
    wanted, tokens = generated(engine_of(settings))

    ranks = spawn(2, on_rank, replace(settings, expert_parallel_size=2), device="cuda", timeout_s=120)

    for found, found_tokens in ranks:
        assert found_tokens == tokens
        assert (found - wanted).norm() / wanted.norm() < TOLERANCE


def test_two_gpus_hand_a_cache_over_and_go_on_with_the_same_tokens() -> None:
    _, tokens = generated(engine_of(EngineSettings(device="cuda")))

    assert spawn(2, prefill_on_zero, device="cuda", timeout_s=120)[1] == tokens
