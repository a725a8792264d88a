"""The recipe: its start, its curriculum, its losses, and a run of a few seconds through its command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint import DEFAULT_CHECKPOINT
from engine.config import ModelConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.recipe import evaluate
from engine.recipe import train as recipe
from engine.recipe.curriculum import MEASURED_STEPS, Curriculum, Stage
from engine.recipe.initial import initial_params
from engine.recipe.objective import index_divergence, losses, make_batch
from engine.task import FACT_TOKENS

STAGE = Stage(num_tokens=32, num_questions=4, batch=6, chatter=False)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_json(DEFAULT_CHECKPOINT / "config.json")


def test_the_start_has_the_names_and_shapes_of_the_shipped_checkpoint(config: ModelConfig) -> None:
    params = initial_params(config, torch.Generator().manual_seed(0))

    shipped = load_file(DEFAULT_CHECKPOINT / "model.safetensors")
    assert {name: value.shape for name, value in params.items()} == {n: v.shape for n, v in shipped.items()}


def test_the_start_routes_every_token_to_distinct_experts(config: ModelConfig) -> None:
    table = initial_params(config, torch.Generator().manual_seed(0))["model.layers.0.mlp.gate.tid2eid"]

    assert (table[:, 0] != table[:, 1]).all()


def test_the_curriculum_opens_the_next_stage_only_after_enough_steps_of_good_answers() -> None:
    stages = tuple(replace(STAGE, num_tokens=length) for length in (32, 64, 128))
    curriculum = Curriculum(stages, np.random.default_rng(0))

    opened = [curriculum.record(accuracy) for accuracy in (0.99, 0.96, 0.98, 0.99, 0.99, 0.99, 0.99)]

    assert MEASURED_STEPS == 25
    assert opened == [False, False, True, False, True, False, False]
    assert {curriculum.next_stage().num_tokens for _ in range(60)} == {32, 64, 128}


def test_a_batch_asks_behind_the_context_and_knows_where_each_answer_stands() -> None:
    batch = make_batch(np.random.default_rng(1), STAGE, torch.device("cpu"))

    rows = torch.arange(STAGE.batch).unsqueeze(1)
    assert batch.ids_BT.shape == (6, 32 + 4 * 5)
    assert torch.equal(batch.ids_BT[rows, batch.gold_at_BK], batch.answers_BK)
    assert torch.equal(batch.ids_BT[:, batch.at_Q[-4:] + 1], batch.answers_BK)
    assert torch.equal(batch.ids_BT[:, batch.at_Q[-4:] - 2], batch.ids_BT[rows, batch.gold_at_BK - (FACT_TOKENS - 2)])


def test_the_index_loss_is_zero_when_the_indexer_scores_what_attention_reads() -> None:
    mass = torch.tensor([[[0.1, 0.3, 0.0]]])

    same = index_divergence(torch.tensor([[[0.25, 0.75, 0.0]]]).log(), mass)
    other = index_divergence(torch.tensor([[[0.0, 0.0, -torch.inf]]]), mass)

    assert abs(float(same)) < 1e-6
    assert float(other) == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), rel=1e-5)


def test_the_trained_checkpoint_has_lower_losses_than_the_start(config: ModelConfig) -> None:
    batch = make_batch(np.random.default_rng(2), Stage(num_tokens=256, num_questions=8, batch=4), torch.device("cpu"))
    start = initial_params(config, torch.Generator().manual_seed(0))
    trained = load_file(DEFAULT_CHECKPOINT / "model.safetensors")

    with torch.inference_mode():
        before, after = (losses(params, config, batch, sinkhorn_iters=20) for params in (start, trained))

    assert float(after.accuracy) >= 0.95
    for name in ("answer", "context", "index", "gold"):
        assert getattr(after, name) < getattr(before, name), name


def test_a_model_that_does_not_end_in_sparse_attention_is_refused(config: ModelConfig) -> None:
    sliding = replace(config, layer_types=("sliding_attention", "sliding_attention"))
    batch = make_batch(np.random.default_rng(1), STAGE, torch.device("cpu"))

    with pytest.raises(ConfigError, match="the last layer is sliding_attention"):
        losses({}, sliding, batch, sinkhorn_iters=1)


def test_a_short_run_learns_and_leaves_a_checkpoint_that_the_engine_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe, "CPU_STAGES", (STAGE,))
    out = tmp_path / "mine"

    code = recipe.main(["--out", str(out), "--steps", "50", "--seed", "1"])

    assert code == 0
    report = json.loads((out / "train.json").read_text())
    curve = report["curve"]
    assert report["versions"]["torch"] == torch.__version__
    assert [row["step"] for row in curve] == [25, 50]
    assert curve[-1]["answer"] < curve[0]["answer"]
    assert "accuracy" in capsys.readouterr().out
    assert Engine.load(out).forward(torch.tensor([[0, 3, 20]])).shape == (1, 3, 512)


def test_the_evaluation_counts_right_answers_per_storage_length_and_depth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recall.json"

    code = evaluate.main(["--contexts", "3", "--lengths", "128", "--out", str(out)])

    cells = json.loads(out.read_text())["cells"]
    assert code == 0
    assert {cell["keys"] for cell in cells} == {"bf16", "fp8", "fp8-misread"}
    assert len(cells) == 3 * len(evaluate.DEPTHS)
    assert all(cell["ok"] == cell["n"] == 3 for cell in cells)
    assert "fp8-misread" in capsys.readouterr().out


def test_a_missing_configuration_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = recipe.main(["--out", str(tmp_path), "--config", str(tmp_path / "none.json"), "--minutes", "0.01"])

    err = capsys.readouterr().err
    assert code == 1
    assert "none.json does not exist" in err
    assert "Traceback" not in err


def test_the_evaluation_can_tell_right_answers_from_wrong_ones(tmp_path: Path, config: ModelConfig) -> None:
    (tmp_path / "config.json").write_text((DEFAULT_CHECKPOINT / "config.json").read_text())
    save_file(initial_params(config, torch.Generator().manual_seed(0)), tmp_path / "model.safetensors")
    out = tmp_path / "recall.json"

    evaluate.main(["--checkpoint", str(tmp_path), "--contexts", "4", "--lengths", "128", "--out", str(out)])

    cells = json.loads(out.read_text())["cells"]
    assert sum(cell["ok"] for cell in cells) <= 0.2 * sum(cell["n"] for cell in cells)
