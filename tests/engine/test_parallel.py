"""Expert parallelism: processes that share the experts say what one process says."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.parallel.experts import ExpertShard
from engine.parallel.launch import ProcessError, spawn
from engine.settings import EngineSettings
from engine.topk import TopKOutput
from tests.engine.data.tiny import CONFIG, prompts, weights

CONFIG_2 = {
    **CONFIG,
    "num_hidden_layers": 2,
    "layer_types": CONFIG["layer_types"][:2],
    "mlp_layer_types": ["hash_moe", "moe"],
}
WAYS = [
    EngineSettings(),
    EngineSettings(fuse_shared_expert=True),
    EngineSettings(expert_quant="fp8", runner="triton", fuse_shared_expert=True),
    EngineSettings(expert_quant="mxfp4", runner="trtllm"),
    EngineSettings(expert_quant="none", fuse_shared_expert=True),
]
NUM_DECODED = 4


def generate(rank: int, ways: list[EngineSettings], size: int) -> list[tuple[Tensor, list[int]]]:
    """Logits of a prompt's end and the tokens that greedy decoding goes on with, for every way."""
    config, tensors = ModelConfig.from_dict(CONFIG_2), Tensors(weights(0, CONFIG_2), "tiny")
    found = []
    for settings in ways:
        shared = replace(settings, expert_parallel_size=size, expert_parallel_rank=rank)
        engine = Engine(config, tensors, shared)
        logits_BPV, cache = engine.prefill(prompts(7)[:, :50])
        token, tokens = logits_BPV[:, -1].argmax(-1), []
        for _ in range(NUM_DECODED):
            tokens.append(int(token))
            token = engine.decode(token, cache).argmax(-1)
        found.append((logits_BPV, tokens))
    return found


def die_on_rank_one(rank: int) -> None:
    if rank == 1:
        os._exit(3)


def sleep_on_rank_one(rank: int) -> None:
    if rank == 1:
        time.sleep(600)


def fail_on_rank_one(rank: int) -> None:
    if rank == 1:
        raise ValueError("this rank is out of luck")


@pytest.mark.parametrize("size", [2, 4])
def test_processes_that_share_the_experts_give_the_tokens_of_one(size: int) -> None:
    torch.set_num_threads(1)
    alone = generate(0, WAYS, 1)

    together = spawn(size, generate, WAYS, size)

    for way, (logits, tokens) in enumerate(alone):
        for rank in range(size):
            theirs, their_tokens = together[rank][way]
            assert torch.equal(theirs, together[0][way][0])
            assert their_tokens == tokens
            torch.testing.assert_close(theirs, logits, atol=2e-6, rtol=1e-4)


def test_a_process_that_fails_is_named_with_its_traceback() -> None:
    with pytest.raises(ProcessError, match=r"process 1 of 2 failed:\n(.|\n)*ValueError: this rank is out of luck"):
        spawn(2, fail_on_rank_one)


def test_a_process_that_dies_or_hangs_is_named_and_the_rest_is_ended() -> None:
    with pytest.raises(ProcessError, match="process 1 of 2 died without an answer"):
        spawn(2, die_on_rank_one)
    with pytest.raises(ProcessError, match=r"processes \[1\] of 2 were not done in time"):
        spawn(2, sleep_on_rank_one, timeout_s=3)


def test_every_expert_lies_in_exactly_one_process() -> None:
    picked = TopKOutput(torch.tensor([[0, 7], [3, 4]]), torch.tensor([[0.5, 0.5], [0.25, 0.75]]))

    local = [ExpertShard(rank=rank, size=4, num_experts=8).localise(picked) for rank in range(4)]

    assert [one.topk_ids_TK.tolist() for one in local] == [
        [[0, -1], [-1, -1]],
        [[-1, -1], [1, -1]],
        [[-1, -1], [-1, 0]],
        [[-1, 1], [-1, -1]],
    ]
    assert all(torch.equal(one.topk_weights_TK, picked.topk_weights_TK) for one in local)


def test_sizes_that_do_not_divide_and_missing_groups_are_refused() -> None:
    config, tensors = ModelConfig.from_dict(CONFIG_2), Tensors(weights(0, CONFIG_2), "tiny")

    with pytest.raises(ConfigError, match="expert_parallel_size is 3, expected a divisor of n_routed_experts"):
        Engine(config, tensors, EngineSettings(expert_parallel_size=3))
    with pytest.raises(ConfigError, match=r"expert_parallel_rank is 2, expected 0 to 1"):
        EngineSettings(expert_parallel_size=2, expert_parallel_rank=2)
    with pytest.raises(ConfigError, match="a torch\\.distributed group of that size"):
        Engine(config, tensors, EngineSettings(expert_parallel_size=2)).prefill(prompts(0)[:, :5])
