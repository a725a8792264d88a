"""The engine on the trained checkpoint, held against the independent forward of the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine import oracle
from engine.checkpoint import DEFAULT_CHECKPOINT
from engine.config import ModelConfig
from engine.engine import Engine
from engine.settings import EngineSettings
from engine.task import ask, make_contexts

# Logits of deviation 1.5, two fp32 implementations: the sums of 64 to 256 terms differ in the sixth digit.
TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def params() -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    return load_file(DEFAULT_CHECKPOINT / "model.safetensors")


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_json(DEFAULT_CHECKPOINT / "config.json")


@pytest.mark.parametrize("quant", ["none", "fp8", "nvfp4"])
def test_logits_equal_the_oracle_that_holds_the_same_experts(
    quant: str, params: dict[str, torch.Tensor], config: ModelConfig
) -> None:
    engine = Engine.load(settings=EngineSettings(expert_quant=quant, index_keys="fp32"))
    ids = torch.from_numpy(make_contexts(np.random.default_rng(1), 2, 700).ids_BT)
    experts = {layer: engine.expert_weights(layer) for layer in range(config.num_hidden_layers)}

    # Selection is a step: near-equal index scores may fall either way, so the positions beyond its reach are few.
    expected = oracle.forward(ids, params, config, experts=experts).logits_BQV

    difference_BT = (engine.forward(ids) - expected).abs().amax(-1)
    assert difference_BT[:, :512].max() <= TOLERANCE
    assert (difference_BT <= TOLERANCE).float().mean() >= 0.99


@pytest.mark.parametrize("index_keys", ["fp8", "bf16"])
def test_a_fact_far_beyond_the_reach_of_the_indexer_is_recalled(index_keys: str) -> None:
    engine = Engine.load(settings=EngineSettings(index_keys=index_keys))
    contexts = make_contexts(np.random.default_rng(2), 6, 1500)
    questions_BQ4, answers_BQ = ask(contexts, np.tile(np.array([0, 10, 25, 40]), (6, 1)))
    _, cache = engine.prefill(torch.from_numpy(contexts.ids_BT), [])
    cache = cache.fork(4)

    for token in range(4):
        logits = engine.decode(torch.from_numpy(questions_BQ4[:, :, token].reshape(-1)), cache)

    assert (logits.argmax(-1).numpy() == answers_BQ.reshape(-1)).all()
