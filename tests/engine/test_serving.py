"""Serving: requests of unequal length, side by side, with the tokens that each would get alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.errors import ConfigError, InputError
from engine.serving.ragged import Segment, forward_ragged
from engine.serving.scheduler import Scheduler
from engine.settings import EngineSettings
from tests.engine.data.tiny import CONFIG, prompts, weights

LENGTHS = (1, 37, 160, 5, 64, 90)


@pytest.fixture(scope="module")
def engine() -> Engine:
    torch.set_num_threads(1)
    return Engine(ModelConfig.from_dict(CONFIG), Tensors(weights(0), "tiny"), EngineSettings())


@pytest.fixture(scope="module")
def alone(engine: Engine) -> dict[str, list[int]]:
    """What every request gets by itself: eight tokens, greedily."""
    found = {}
    for number, length in enumerate(LENGTHS):
        logits_BPV, cache = engine.prefill(prompts(number)[:, :length])
        tokens = [int(logits_BPV[0, -1].argmax())]
        while len(tokens) < 8:
            tokens.append(int(engine.decode(torch.tensor(tokens[-1:]), cache).argmax()))
        found[f"r{number}"] = tokens
    return found


def add_all(scheduler: Scheduler, numbers: range = range(len(LENGTHS))) -> None:
    for number in numbers:
        scheduler.add(f"r{number}", prompts(number)[0, : LENGTHS[number]].tolist(), 8)


@settings(max_examples=6, deadline=None)
@given(step=st.integers(6, 200), running=st.integers(1, 6))
def test_requests_of_unequal_length_get_the_tokens_they_would_get_alone(
    engine: Engine, alone: dict[str, list[int]], step: int, running: int
) -> None:
    scheduler = Scheduler(engine, max_step_tokens=step, max_running=running)
    add_all(scheduler)

    assert scheduler.run() == alone


def test_prompts_are_taken_in_by_chunks_beside_requests_that_decode(
    engine: Engine, alone: dict[str, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    scheduler = Scheduler(engine, max_step_tokens=40, max_running=6)
    add_all(scheduler, range(2))
    first = scheduler.step()
    add_all(scheduler, range(2, 6))

    steps = [[request.name for request in scheduler.step()] for _ in range(4)]

    assert [request.name for request in first] == ["r0", "r1"]
    # The prompt of 160 tokens takes several steps, and the first two answer in each of them.
    assert all(names[:2] == ["r0", "r1"] for names in steps)
    assert "r2" not in steps[0] + steps[1] + steps[2]
    assert scheduler.run() == alone
    said = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    factors = {(one["layer"], one["phase"], one["site"]) for one in said if one["event"] == "constant"}
    assert factors == {(layer, phase, "topk") for layer in range(6) for phase in ("prefill", "decode")}


def test_a_mixed_pass_gives_the_logits_of_separate_ones(engine: Engine) -> None:
    ids = prompts(9)[0]
    with torch.inference_mode():
        caches = [engine.model.new_cache(1) for _ in range(3)]
        forward_ragged(engine.model, [Segment(cache=caches[0], ids_T=ids[:70], phase="prefill")])
        mixed = forward_ragged(
            engine.model,
            [
                Segment(cache=caches[0], ids_T=ids[70:71], phase="decode"),
                Segment(cache=caches[1], ids_T=ids[:33], phase="prefill"),
                Segment(cache=caches[2], ids_T=ids[:100], phase="prefill"),
            ],
        )

    whole = engine.forward(ids[None, :101])[0]
    torch.testing.assert_close(mixed, whole[[70, 32, 99]], atol=5e-6, rtol=1e-4)
    assert [cache.length for cache in caches] == [71, 33, 100]


def test_a_request_ends_at_a_stop_token(engine: Engine, alone: dict[str, list[int]]) -> None:
    stop = alone["r2"][3]
    scheduler = Scheduler(engine)
    scheduler.add("r2", prompts(2)[0].tolist(), 8, frozenset({stop}))

    tokens = scheduler.run()["r2"]

    assert tokens == alone["r2"][: alone["r2"].index(stop) + 1]


@pytest.mark.parametrize(
    ("prompt", "more", "message"),
    [
        ([], 1, "request 'a': the prompt is empty"),
        ([5, 512], 1, "request 'a': token ids from 5 to 512, expected 0 to 511"),
        ([1], 0, "max_new_tokens is 0, expected at least 1"),
        ([1] * 2000, 49, r"2000 tokens and 49 more, expected at most max_position_embeddings \(2048\)"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(
    engine: Engine, prompt: list[int], more: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Scheduler(engine).add("a", prompt, more)


def test_names_and_limits_are_checked(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    scheduler.add("a", [1], 1)

    with pytest.raises(InputError, match="request 'a' is there already"):
        scheduler.add("a", [1], 1)
    with pytest.raises(ConfigError, match="max_running is 9, expected 1 to max_step_tokens"):
        Scheduler(engine, max_step_tokens=8, max_running=9)
    assert scheduler.run().keys() == {"a"}
    assert scheduler.step() == []
