"""The oracle against Hugging Face's recorded logits, and the properties the recipe and the probes rely on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.checkpoint import DEFAULT_CHECKPOINT
from engine.config import ModelConfig
from engine.oracle import forward, routed_sum
from engine.recipe.evaluate import keys_fp8, keys_fp8_misread
from engine.task import ask, make_contexts
from tests.engine.data.tiny import CONFIG, prompts, weights

RECORDED = load_file(Path(__file__).parent / "data" / "huggingface-logits.safetensors")
TINY = ModelConfig.from_dict(CONFIG)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained() -> tuple[ModelConfig, dict[str, Tensor]]:
    config = ModelConfig.from_json(DEFAULT_CHECKPOINT / "config.json")
    return config, load_file(DEFAULT_CHECKPOINT / "model.safetensors")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_logits_equal_hugging_face_in_every_layer_kind(seed: int) -> None:
    with torch.inference_mode():
        logits = forward(prompts(seed), weights(seed), TINY).logits_BQV[0]

    assert (logits[RECORDED["positions"]] - RECORDED[f"logits.{seed}"]).abs().max() <= 5e-6
    assert torch.equal(logits.argmax(-1).int(), RECORDED[f"argmax.{seed}"])


def test_asking_for_few_positions_gives_the_same_logits_as_asking_for_all() -> None:
    ids, at = prompts(0)[:, :60], torch.tensor([0, 17, 18, 59])

    with torch.inference_mode():
        few = forward(ids, weights(0), TINY, at=at).logits_BQV
        every = forward(ids, weights(0), TINY).logits_BQV

    torch.testing.assert_close(few, every[:, at], atol=2e-6, rtol=0)


def test_a_later_token_changes_no_earlier_logit() -> None:
    ids = prompts(0)[:, :48]
    changed = ids.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % TINY.vocab_size

    with torch.inference_mode():
        before, after = (forward(part, weights(0), TINY).logits_BQV for part in (ids, changed))

    torch.testing.assert_close(before[:, :40], after[:, :40], atol=2e-6, rtol=0)
    assert (before[:, 40:] - after[:, 40:]).abs().max() > 1e-3


def test_the_indexer_takes_gradient_from_its_scores_alone() -> None:
    params = {
        name: value.requires_grad_() if value.is_floating_point() else value for name, value in weights(0).items()
    }
    out = forward(prompts(0)[:, :40], params, TINY, at=torch.tensor([39]), dense=True)
    selection = out.selections[TINY.num_hidden_layers - 1]

    selection.scores_BQN.masked_fill(selection.scores_BQN == -torch.inf, 0).sum().backward()

    taught = {name for name, value in params.items() if value.grad is not None and value.grad.abs().max() > 0}
    last = f"model.layers.{TINY.num_hidden_layers - 1}.self_attn.compressor.indexer."
    assert taught
    assert all(name.startswith(last) for name in taught)


def test_the_routed_sum_is_proportional_to_the_factor_and_the_experts_given_to_it() -> None:
    params, ids = weights(0), prompts(0)[0, :20]
    x = torch.randn(20, TINY.hidden_size, generator=torch.Generator().manual_seed(1))
    w13, w2 = (params[f"model.layers.2.mlp.experts.{name}"] for name in ("gate_up_proj", "down_proj"))

    once = routed_sum(x, ids, 2, params, TINY, routed_scaling_factor=1.0)
    own = routed_sum(x, ids, 2, params, TINY)
    halved = routed_sum(x, ids, 2, params, TINY, experts={2: (w13, w2 / 2)})

    torch.testing.assert_close(own, once * TINY.routed_scaling_factor)
    torch.testing.assert_close(halved, own / 2)


@pytest.mark.parametrize(("num_tokens", "whole"), [(480, True), (1500, False)])
def test_a_misread_index_page_loses_facts_only_beyond_the_reach_of_the_indexer(
    num_tokens: int, whole: bool, trained: tuple[ModelConfig, dict[str, Tensor]]
) -> None:
    config, params = trained
    contexts = make_contexts(np.random.default_rng(5), 12, num_tokens)
    questions, answers = ask(contexts, np.full((12, 1), contexts.num_facts // 3))
    ids = torch.from_numpy(np.concatenate((contexts.ids_BT, questions[:, 0]), axis=1))

    def recall(**how: object) -> float:
        with torch.inference_mode():
            out = forward(ids, params, config, at=torch.tensor([ids.shape[1] - 1]), **how)  # type: ignore[arg-type]
        return float((out.logits_BQV[:, 0].argmax(-1).numpy() == answers[:, 0]).mean())

    assert recall(key_store=keys_fp8) == 1.0
    misread = recall(key_store=keys_fp8_misread)
    assert misread == 1.0 if whole else misread <= 0.75
