"""What the engine says of itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from engine import events
from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.settings import EngineSettings
from tests.engine.data.tiny import CONFIG, prompts, weights

ROOT = Path(__file__).resolve().parents[2]


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_nothing_is_written_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIVEPATH_EVENTS", raising=False)
    monkeypatch.chdir(tmp_path)

    events.emit("metric", name="recall", value=1.0)
    events.emit_once("key", "metric", name="recall", value=1.0)

    assert not events.enabled()
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_json_lacks_become_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))

    events.emit("metric", value=math.nan, tags={"low": -math.inf, "all": [math.inf, 1.0]})

    assert lines_of(tmp_path / "events") == [
        {"v": 1, "event": "metric", "value": "nan", "tags": {"low": "-inf", "all": ["inf", 1.0]}}
    ]


def test_a_repeated_event_is_said_once_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / name))
        for _ in range(3):
            events.emit_once(("topk", 0), "route", op="topk")

    assert len(lines_of(tmp_path / "first")) == len(lines_of(tmp_path / "second")) == 1


def test_the_path_is_read_once_where_asked_and_anew_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "first"))
    with events.path_read_once(), events.path_read_once():
        monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "second"))
        events.emit("metric", name="recall", value=1.0)
    events.emit("metric", name="recall", value=2.0)

    assert [line["value"] for line in lines_of(tmp_path / "first")] == [1.0]
    assert [line["value"] for line in lines_of(tmp_path / "second")] == [2.0]


def test_a_setting_without_effect_is_said_to_be_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    config = {
        **CONFIG,
        "num_hidden_layers": 1,
        "layer_types": CONFIG["layer_types"][:1],
        "mlp_layer_types": ["hash_moe"],
    }

    Engine(ModelConfig.from_dict(config), Tensors(weights(0, config), "tiny"), EngineSettings())

    ignored = [event for event in lines_of(tmp_path / "events") if event["event"] == "ignored"]
    assert [(event["setting"], event["reason"]) for event in ignored] == [("index_keys", "no layer has an indexer")]


def test_routes_name_the_function_that_is_really_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    torch.set_num_threads(1)
    engine = Engine(ModelConfig.from_dict(CONFIG), Tensors(weights(0), "tiny"), EngineSettings())
    _, cache = engine.prefill(prompts(0)[:, :60])
    engine.decode(torch.tensor([1]), cache)

    routes = [event for event in lines_of(tmp_path / "events") if event["event"] == "route"]

    for route in routes:
        line = (ROOT / route["file"]).read_text().splitlines()[route["line"] - 1]
        name = route["implementation"].rsplit(".", 1)[-1]
        assert line.lstrip().startswith("def "), route
        assert name in line or name == "reference", route
    # Layer 1 is CSA: picked entries in both phases; layer 0 slides: a stretch in prefill, one query in decode.
    attention = {(r["layer"], r["phase"]): r["implementation"] for r in routes if r["op"] == "attention"}
    assert attention[0, "prefill"] == "attend_stretch"
    assert attention[1, "prefill"] == "Attention._attend_gathered"
    assert attention[0, "decode"] == attention[1, "decode"] == "Attention._attend_newest"
    # The last mix of the streams comes after the last of six layers.
    assert {r["layer"] for r in routes if r["op"] == "hyper_read"} == {0, 1, 2, 3, 4, 5, 6}
    assert {r["layer"] for r in routes if r["op"] == "index_scores"} == {1, 3, 5}
    assert {r["implementation"] for r in routes if r["op"] == "moe_method"} == {"NvFp4MoEMethod.apply"}
