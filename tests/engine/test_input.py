"""Prompts the engine cannot take: each refused with what it is and what was expected."""

from __future__ import annotations

import pytest
import torch

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.errors import InputError
from engine.settings import EngineSettings
from tests.engine.data.tiny import CONFIG, weights


@pytest.fixture(scope="module")
def engine() -> Engine:
    torch.set_num_threads(1)
    config = ModelConfig.from_dict(CONFIG | {"max_position_embeddings": 20})
    return Engine(config, Tensors(weights(0), "tiny"), EngineSettings(expert_quant="none"))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[]], r"token ids of shape \(1, 0\), expected 2 axes and at least one token"),
        ([3, 4], r"token ids of shape \(2,\), expected 2 axes"),
        ([[3.0, 4.5]], "token ids of torch.float32, expected integers"),
        ([[3, 512]], "token ids from 3 to 512, expected 0 to 511"),
        ([[-1, 3]], "token ids from -1 to 3, expected 0 to 511"),
        ([[1] * 21], r"a context of 21 tokens, expected at most max_position_embeddings \(20\)"),
    ],
)
def test_a_prompt_that_cannot_be_taken_is_refused(engine: Engine, ids: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine.prefill(torch.tensor(ids))


def test_decoding_stops_at_the_maximum(engine: Engine) -> None:
    _, cache = engine.prefill(torch.ones(1, 19, dtype=torch.int64))
    engine.decode(torch.tensor([1]), cache)

    with pytest.raises(InputError, match="a context of 21 tokens, expected at most"):
        engine.decode(torch.tensor([1]), cache)
    assert cache.length == 20


def test_padding_is_refused_with_the_reason(engine: Engine) -> None:
    ids = torch.ones(2, 5, dtype=torch.int64)
    left, right = torch.ones(2, 5), torch.ones(2, 5)
    left[1, :2] = 0
    right[0, 3:] = 0

    with pytest.raises(InputError, match=r"left padding.*\n.*shift every window"):
        engine.prefill(ids, attention_mask_BT=left)
    with pytest.raises(InputError, match="right padding"):
        engine.prefill(ids, attention_mask_BT=right)
    with pytest.raises(InputError, match=r"attention mask of shape \(5,\), the ids have \(2, 5\)"):
        engine.prefill(ids, attention_mask_BT=torch.ones(5))
    masked, _ = engine.prefill(ids, attention_mask_BT=torch.ones(2, 5))
    assert torch.equal(masked, engine.prefill(ids)[0])
