"""A decode step as CUDA graphs: what holds no state is captured once and replayed, attention runs between as it always
does.

Contract: the same kernels on the same numbers as `Model.forward` of one token per sequence, launched by one graph per
layer and one more in place of some hundred launches of the host. The first step of a batch size runs as ever, which
compiles and makes what is made once; the second captures. A part is captured for one batch size and bound to no cache:
forks, growing caches and other positions meet the same graphs.
Live when: `cuda_graph` is set, `obstacle` finds nothing, and events are off: a replayed line runs on the GPU alone, and
no tracer and no event sees it.
"""

# B sequences, D model dim, S streams, H heads, E head dim, V vocabulary, M mixing numbers.

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.attention import Asked
from engine.cache import Cache
from engine.model import Model
from engine.settings import EngineSettings
from kernels.choice import DEBUG_VARIABLE

# Batch sizes whose graphs are kept; each holds the activations of a step.
KEPT_BATCHES = 8


def obstacle(model: Model, settings: EngineSettings) -> str | None:
    """Why a decode step of this model cannot be captured, or None."""
    if torch.device(settings.device).type != "cuda":
        return f"no CUDA graph on {settings.device}"
    if settings.expert_parallel_size > 1:
        return "experts are shared by several processes"
    if os.environ.get(DEBUG_VARIABLE) == "1":
        return f"{DEBUG_VARIABLE} has expert ids looked at on the host"
    for layer in model.layers:
        if layer.self_attn.by_rows is None:
            return f"attention of layer {layer.layer} runs by references"
        if layer.mlp.experts.runner.kept is None or layer.mlp.bypasses_topk:
            return f"experts of layer {layer.layer} have no kernel of their own ({layer.mlp.experts.runner_name})"
    return None


class Captured:
    """A function of one tensor as a CUDA graph: called, it copies its argument in and gives what was written."""

    def __init__(self, run: Callable[[Tensor], Any], given: Tensor, pool: Any) -> None:
        self.given = given.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            # Kept for as long as the graph: their memory is the graph's, and no later capture may take it.
            self.written = run(self.given)

    def __call__(self, given: Tensor) -> Any:
        self.given.copy_(given)
        self._graph.replay()
        return self.written


class DecodeGraphs:
    """The captured parts of a model's decode step, for the batch sizes used last."""

    def __init__(self, model: Model) -> None:
        self.model = model
        # One memory for all: its graphs run one after the other.
        self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        self._of_batch: OrderedDict[int, list[Captured]] = OrderedDict()

    def step(self, ids_B1: Tensor, cache: Cache) -> Tensor:
        """Takes in one token of every sequence; logits float32 [B, 1, V]."""
        parts = self._of_batch.get(cache.batch)
        if parts is None:
            self._of_batch[cache.batch] = []
            if len(self._of_batch) > KEPT_BATCHES:
                self._of_batch.popitem(last=False)
            return self.model.forward(ids_B1, cache, "decode", None)
        self._of_batch.move_to_end(cache.batch)
        written = self._run(parts, 0, self._until_first, ids_B1)
        for number, (layer, layer_cache) in enumerate(zip(self.model.layers, cache.layers, strict=True), start=1):
            streams_B1SD, z_B1M, asked = written
            # An open window keeps the product, and the next step writes to the same memory.
            asked = asked._replace(product_B1R=asked.product_B1R.clone())
            out_B1HE = layer.self_attn.attend_newest(asked, layer_cache, cache.length, "decode")
            between = partial(self._between, number, streams_B1SD, z_B1M, parts[0].given)
            written = self._run(parts, number, between, out_B1HE)
        cache.length += 1
        return written.clone()

    def _until_first(self, ids_B1: Tensor) -> tuple[Tensor, Tensor, Asked]:
        return self.model.layers[0].until_attention(self.model.streams_of(ids_B1), "decode")

    def _between(self, number: int, streams_B1SD: Tensor, z_B1M: Tensor, ids_B1: Tensor, out_B1HE: Tensor) -> Any:
        """From the attention of the layer before to that of layer `number`, or to the logits behind the last layer."""
        layers = self.model.layers
        streams_B1SD = layers[number - 1].from_attention(out_B1HE, streams_B1SD, z_B1M, ids_B1, "decode")
        if number == len(layers):
            return self.model.logits_of(streams_B1SD, "decode")
        return layers[number].until_attention(streams_B1SD, "decode")

    def _run(self, parts: list[Captured], number: int, run: Callable[[Tensor], Any], given: Tensor) -> Any:
        if number == len(parts):
            parts.append(Captured(run, given, self._pool))
        return parts[number](given)
