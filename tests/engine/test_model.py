"""The model against Hugging Face's recorded logits, and against itself along every way of feeding it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine import engine as engine_module
from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.settings import EngineSettings
from tests.engine.data.tiny import CONFIG, NUM_TOKENS, prompts, weights

RECORDED = load_file(Path(__file__).parent / "data" / "huggingface-logits.safetensors")
# Two fp32 implementations that sum in another order; Hugging Face's cached decoding differs from its forward by 8e-7.
TOLERANCE = 5e-6
EXACT = EngineSettings(expert_quant="none", index_keys="fp32")


def tiny_engine(seed: int) -> Engine:
    return Engine(ModelConfig.from_dict(CONFIG), Tensors(weights(seed), "tiny"), EXACT)


def decode_all(engine: Engine, ids_BT: Tensor, first: int) -> Tensor:
    """Logits of every position: `first` tokens at once, then one by one."""
    head, cache = engine.prefill(ids_BT[:, :first], range(first))
    steps = [engine.decode(ids_BT[:, position], cache) for position in range(first, ids_BT.shape[1])]
    return torch.cat((head, torch.stack(steps, 1)), 1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("way", ["forward", "chunks of 7", "decode from 1", "decode from 67"])
def test_logits_equal_hugging_face(seed: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ids = tiny_engine(seed), prompts(seed)
    if way == "chunks of 7":
        monkeypatch.setattr(engine_module, "STRETCH_TOKENS", 7)
    if way.startswith("decode"):
        logits = decode_all(engine, ids, int(way.rsplit(" ", 1)[1]))[0]
    else:
        logits = engine.forward(ids)[0]

    assert logits.shape == (NUM_TOKENS, CONFIG["vocab_size"])
    assert (logits[RECORDED["positions"]] - RECORDED[f"logits.{seed}"]).abs().max() <= TOLERANCE
    assert torch.equal(logits.argmax(-1).int(), RECORDED[f"argmax.{seed}"])


def test_a_dropped_part_of_the_architecture_moves_the_logits_far_beyond_the_tolerance() -> None:
    ids = prompts(0)
    for name in ("sinks", "position_bias", "correction_bias", "attn_hc.base", "kv_norm"):
        changed = {key: torch.zeros_like(t) if name in key else t for key, t in weights(0).items()}
        engine = Engine(ModelConfig.from_dict(CONFIG), Tensors(changed, "tiny"), EXACT)

        logits = engine.forward(ids)[0]

        assert (logits[RECORDED["positions"]] - RECORDED["logits.0"]).abs().max() > 100 * TOLERANCE, name


def test_logits_at_some_positions_equal_those_of_the_full_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ids = tiny_engine(0), prompts(3, batch=2)
    full = engine.forward(ids)
    monkeypatch.setattr(engine_module, "STRETCH_TOKENS", 64)

    shared, _ = engine.prefill(ids, [0, 31, 32, 159])
    own, _ = engine.prefill(ids, torch.tensor([[5, 6, 100], [40, 150, 159]]))
    last, _ = engine.prefill(ids)
    none, cache = engine.prefill(ids, [])

    torch.testing.assert_close(shared, full[:, [0, 31, 32, 159]], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(own[0], full[0, [5, 6, 100]], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(own[1], full[1, [40, 150, 159]], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(last[:, 0], full[:, -1], atol=TOLERANCE, rtol=0)
    assert none.shape == (2, 0, CONFIG["vocab_size"])
    assert cache.length == NUM_TOKENS


def test_a_batch_gives_what_each_prompt_gives_alone() -> None:
    engine, ids = tiny_engine(1), prompts(4, batch=3)

    together = engine.forward(ids)

    for row in range(3):
        torch.testing.assert_close(together[row], engine.forward(ids[row : row + 1])[0], atol=TOLERANCE, rtol=0)
