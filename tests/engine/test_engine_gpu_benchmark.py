"""The benchmark of the engine on a GPU, in its tiny shape on a processor: only that it runs and what its file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import engine_gpu, result_file
from benchmarks.random_model import FLASH, TINY, config_of, random_tensors


def result_of(folder: Path, what: str) -> dict:
    torch.set_num_threads(1)
    arguments = [what, "--tiny", "--quick", "--layers", "3", "--device", "cpu", "--out", str(folder)]
    assert engine_gpu.main(arguments) == 0
    (file,) = folder.glob("*.json")
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result_file.problems(result) == []
    return result


def test_rows_name_the_time_per_kernel_of_prefill_and_decode(tmp_path: Path) -> None:
    rows = result_of(tmp_path, "flash")["rows"]

    assert [row["op"] for row in rows] == ["prefill", "decode"]
    for row in rows:
        assert row["tokens_per_s"] > 0
        shares = [kernel["share"] for kernel in row["kernels"]]
        assert shares == sorted(shares, reverse=True)
        # The list is cut behind the longest.
        assert 0.5 < sum(shares) < 1.01
    # Of 16 steps over one entry a 4 tokens, a quarter close one.
    decode = rows[1]
    assert decode["us"] == pytest.approx(0.75 * decode["open_us"] + 0.25 * decode["closing_us"], rel=1e-3)


def test_the_trained_checkpoint_is_held_against_the_processor(tmp_path: Path) -> None:
    rows = result_of(tmp_path, "trained")["rows"]

    assert [row["shape"] for row in rows] == ["sliding-csa, float32", "sliding-csa, bfloat16"]
    assert rows[0]["error"] == 0.0
    assert 1e-4 < rows[1]["error"] < rows[1]["error_limit"]
    assert rows[1]["recall"] == rows[1]["recall_on_cpu"]


def test_a_kernel_is_named_without_its_template_arguments() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)"

    assert engine_gpu.short_name(name) == "at::native::vectorized_elementwise_kernel"
    assert engine_gpu.short_name("_mix_slice") == "_mix_slice"


def test_the_full_shape_has_every_kind_of_layer_and_its_experts_are_drawn_packed() -> None:
    config = config_of(FLASH, 4)

    assert [kind.split("_")[0] for kind in config.layer_types] == ["sliding", "compressed", "heavily", "compressed"]
    assert config.mlp_layer_types == ("hash_moe", "moe", "moe", "moe")
    small = config_of(TINY, 2)
    name = "model.layers.1.mlp.experts.down_proj"
    tensors = random_tensors(small, "cpu")
    stored = tensors.take_experts(name, *tensors.by_name.shapes[name])  # type: ignore[attr-defined]
    kept, again = (stored.kept_as("nvfp4") for _ in range(2))  # type: ignore[union-attr]
    assert kept.codes.shape == (8, 64, 16)
    assert torch.equal(kept.codes, again.codes)
    # Rows of weights with a deviation of one over the root of their inputs.
    assert 0.7 < float(kept.decode().std()) * 32**0.5 < 1.3
