"""The captured parts of a decode step and the attention between them, without a GPU: what stands in for a graph runs
its function again and writes over what it wrote before, as a graph does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HAS_GPU = Path("/dev/nvidia0").exists()
if not HAS_GPU:
    # Before triton is first imported: its library functions are decorated then.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from benchmarks.random_model import random_tensors  # noqa: E402
from engine import graph  # noqa: E402
from engine.engine import Engine  # noqa: E402
from engine.graph import DecodeGraphs, obstacle  # noqa: E402
from engine.settings import EngineSettings  # noqa: E402
from kernels.choice import DEBUG_VARIABLE  # noqa: E402
from kernels.launch import ROOT  # noqa: E402
from tests.engine.test_kernels_in_engine import CONFIG  # noqa: E402


class Replayed:
    made = 0

    def __init__(self, run: Callable[[Tensor], Any], given: Tensor, pool: Any) -> None:
        Replayed.made += 1
        self.given, self.run = given.clone(), run
        self.written = run(self.given)

    def __call__(self, given: Tensor) -> Any:
        self.given.copy_(given)
        for kept, new in zip(tree_leaves(self.written), tree_leaves(self.run(self.given)), strict=True):
            # Of a part that passes its argument on, both are the same.
            if kept.data_ptr() != new.data_ptr():
                kept.copy_(new)
        return self.written


@pytest.mark.interpreter
@pytest.mark.skipif(HAS_GPU, reason="the interpreter is for machines without a GPU")
def test_steps_by_captured_parts_give_every_bit_of_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(graph, "Captured", Replayed)
    monkeypatch.setattr(Replayed, "made", 0)
    tokens = torch.randint(CONFIG.vocab_size, (2, 14), generator=torch.Generator().manual_seed(1))
    settings = EngineSettings(runner="marlin", kernels="triton", dtype=torch.bfloat16)
    engine, found = Engine(CONFIG, random_tensors(CONFIG, "cpu"), settings), []
    for graphs in (None, DecodeGraphs(engine.model)):
        engine.graphs = graphs
        # The first step closes an entry, after which there are more than are picked; one sequence and forks in turn.
        _, alone = engine.prefill(tokens[:1, :11], [])
        forked = alone.fork(2)
        steps = []
        for at in range(11, tokens.shape[1]):
            steps += [engine.decode(tokens[:1, at], alone), engine.decode(tokens[:, at], forked)]
        found.append((steps, alone, forked))

    (expected, *caches), (steps, *graphed) = found
    # Logits of earlier steps are compared only now: a later step must not write over them.
    assert all(torch.equal(*pair) for pair in zip(expected, steps, strict=True))
    for cache, with_graphs in zip(caches, graphed, strict=True):
        assert with_graphs.length == cache.length
        for layer, other in zip(cache.layers, with_graphs.layers, strict=True):
            assert torch.equal(layer.window_BWD, other.window_BWD)
            if layer.entries is not None and other.entries is not None:
                assert torch.equal(layer.entries.all(), other.entries.all())
            if layer.compressor is not None and other.compressor is not None:
                assert torch.equal(layer.compressor.pending_kv_BTU, other.compressor.pending_kv_BTU)
    # One for each layer and one more, for each of two batch sizes.
    assert Replayed.made == 2 * (CONFIG.num_hidden_layers + 1)


def test_graphs_of_the_batch_size_used_longest_ago_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Engine(CONFIG, random_tensors(CONFIG, "cpu"), EngineSettings()).model
    graphs, ran = DecodeGraphs(model), []
    monkeypatch.setattr(type(model), "forward", lambda self, ids_B1, *rest: ran.append(len(ids_B1)))

    for batch in range(1, graph.KEPT_BATCHES + 2):
        graphs.step(torch.zeros(batch, 1, dtype=torch.int64), model.new_cache(batch))

    assert ran == list(range(1, graph.KEPT_BATCHES + 2))
    assert list(graphs._of_batch) == ran[1:]


def test_what_cannot_be_captured_is_said_and_runs_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    settings = EngineSettings(cuda_graph=True)

    engine = Engine(CONFIG, random_tensors(CONFIG, "cpu"), settings)

    assert engine.graphs is None
    said = [json.loads(line) for line in (tmp_path / "events").read_text(encoding="utf-8").splitlines()]
    ignored = {(event["setting"], event["reason"]) for event in said if event["event"] == "ignored"}
    assert ignored == {("cuda_graph", "no CUDA graph on cpu")}
    on_gpu = EngineSettings(device="cuda")
    assert obstacle(engine.model, on_gpu) == "attention of layer 0 runs by references"
    monkeypatch.setattr(engine.model.layers[0].self_attn, "by_rows", object())
    assert obstacle(engine.model, on_gpu) == "experts of layer 0 have no kernel of their own (reference)"
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    assert "KERNELS_DEBUG" in str(obstacle(engine.model, on_gpu))
    assert "several processes" in str(obstacle(engine.model, EngineSettings(device="cuda", expert_parallel_size=2)))


def test_the_engine_runs_where_triton_is_not_installed() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from engine.engine import Engine\n"
        "from engine.settings import EngineSettings\n"
        "engine = Engine.load(settings=EngineSettings(cuda_graph=True))\n"
        "logits, cache = engine.prefill(torch.zeros(1, 3, dtype=torch.int64))\n"
        "print(engine.decode(logits[:, -1].argmax(-1), cache).shape[0])\n"
    )

    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.stdout.strip() == "1", result.stderr[-2000:]
