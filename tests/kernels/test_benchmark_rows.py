"""What the benchmarks write, on the CPU: their `run` as it is, with references in the place of the kernels."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from benchmarks import result_file
from benchmarks.kernels import OPS, load
from benchmarks.kernels import norm as norm_bench
from benchmarks.kernels import route as route_bench
from benchmarks.kernels import sparse_attention as sparse_attention_bench
from benchmarks.kernels.experts import Shape
from kernels import (
    experts_ref,
    hyper_ref,
    hyper_site_ref,
    index_page_ref,
    norm_ref,
    nvfp4_ref,
    route_ref,
    sparse_attention_ref,
)

MACHINE = dict.fromkeys(result_file.MACHINE, "named")


class OnTheCpu(TorchFunctionMode):
    """Whatever asks for a CUDA device gets the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def here(value: Any) -> Any:
            return "cpu" if isinstance(value, str) and value.startswith("cuda") else value

        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(here, args), **{name: here(value) for name, value in (kwargs or {}).items()})


def stand_ins() -> dict[str, dict[str, Any]]:
    """By op: small SHAPES, their floor not yet 0.0 us, and references in the place of the kernels that `run` calls."""
    routers = {
        "v4": route_bench.Shape(num_experts=48, topk=2),
        "table": route_bench.Shape(num_experts=48, topk=2, table=True),
    }
    layer = {"small": Shape(dim=512, hidden=256, num_experts=5, topk=2)}
    return {
        "nvfp4": {
            "SHAPES": {"small": (3, 256, 512)},
            "encode": nvfp4_ref.encode,
            "decode": nvfp4_ref.decode,
            "ceilings": lambda: {"copy_tb_per_s": 4.0},
        },
        "route": {
            "SHAPES": routers,
            "TOKENS": (1, 5),
            "VOCABULARY": 100,
            "route": route_ref.route_ref,
            "table_route": route_ref.table_route_ref,
        },
        "hyper": {
            "SHAPES": {"small": 16},
            "premix": lambda x, fn, eps, precision: hyper_ref.premix_ref(x, fn, eps),
            "hyper": SimpleNamespace(read=hyper_site_ref.read_ref, write=hyper_site_ref.write_ref),
        },
        "swiglu": {
            "SHAPES": {"small": 300},
            "swiglu": experts_ref.swiglu_ref,
            "ceilings": lambda: {"copy_tb_per_s": 4.0},
        },
        "norm": {
            "SHAPES": {
                "weighed": norm_bench.Shape(tokens=16, width=4096),
                "rotated": norm_bench.Shape(tokens=16, heads=3, width=512, pairs=32),
            },
            "norm": norm_ref.norm_ref,
        },
        "index": {
            "SHAPES": {"small": (2, 2112)},
            "index_scores": index_page_ref.index_scores_ref,
            "index_select": index_page_ref.select_ref,
        },
        "sparse_attention": {
            "SHAPES": {"small": sparse_attention_bench.Shape(queries=3, picks=40)},
            "sparse_attention_rows": lambda *caches, rotation, **_: sparse_attention_ref.sparse_attention_rows_ref(
                *caches, rotation=rotation
            ),
        },
        "experts": {
            "SHAPES": layer,
            "experts_hopper": experts_ref.nvfp4_experts_ref,
            "repack": lambda weights: weights,
        },
        "experts_bf16": {"SHAPES": layer, "bf16_experts": experts_ref.experts_ref},
        "experts_fp8": {"SHAPES": layer, "fp8_experts": experts_ref.fp8_experts_ref},
    }


@pytest.mark.parametrize("op", OPS)
def test_the_rows_of_an_op_are_as_a_result_file_wants_them(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, generator = load(op), torch.Generator
    for name, stand_in in stand_ins()[op].items():
        monkeypatch.setattr(module, name, stand_in)
    for other in map(load, OPS):
        for timer in ("median_us", "clean_us"):
            if hasattr(other, timer):
                monkeypatch.setattr(other, timer, lambda call, **_: (call(), 1.5)[1])
    monkeypatch.setattr(torch, "Generator", lambda _: generator())
    # The peers of the experts need a GPU, those of the others are torch.
    given = {"token_counts": [1, 5], "peers": not op.startswith("experts"), "skewed": True}
    takes = inspect.signature(module.run).parameters

    with OnTheCpu():
        rows = module.run(list(module.SHAPES), **{name: value for name, value in given.items() if name in takes})

    limit = getattr(module, "ERROR_LIMIT", 0.0)
    assert result_file.problems({"machine": MACHINE, "error_limit": limit, "rows": rows}) == []
    assert all(row["us"] == 1.5 for row in rows)
    json.dumps(rows, allow_nan=False)
