"""What ships: the weights are the measured ones, small, and their measured recall is what the documents say."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from engine.checkpoint import DEFAULT_CHECKPOINT, load_checkpoint
from engine.recipe.evaluate import DEPTHS, LENGTHS
from engine.recipe.initial import BUFFERS

FOLDER = DEFAULT_CHECKPOINT.parent
LISTED = dict(re.findall(r"\| `([\w./-]+)` \| `([0-9a-f]{64})` \|", (FOLDER / "README.md").read_text("utf-8")))


def test_every_shipped_file_is_listed_and_has_its_digest() -> None:
    shipped = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.glob("*/*")}

    assert shipped.keys() == LISTED.keys()
    for name, path in shipped.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == LISTED[name], name


def test_the_shipped_weights_take_at_most_five_megabytes_and_load() -> None:
    config, tensors = load_checkpoint(DEFAULT_CHECKPOINT)

    assert sum(path.stat().st_size for path in FOLDER.rglob("*.safetensors")) <= 5_000_000
    assert sum(tensor.numel() for name, tensor in tensors.by_name.items() if not name.endswith(BUFFERS)) == 447_001
    assert config.index_topk * config.compress_rates["compressed_sparse_attention"] == 512


@pytest.mark.parametrize("keys", ["bf16", "fp8", "fp8 + nvfp4 experts"])
def test_the_recorded_recall_is_whole_in_every_cell_with_right_keys(keys: str) -> None:
    cells = _cells(keys)

    assert cells.keys() == {(length, depth) for length in LENGTHS for depth in DEPTHS}
    assert all(n >= 200 and ok / n >= 0.99 for ok, n in cells.values())


def test_the_recorded_recall_falls_with_the_page_fault_beyond_512_tokens_only() -> None:
    cells = _cells("fp8-misread")

    assert all(ok == n for (length, _), (ok, n) in cells.items() if length <= 512)
    assert all(ok / n <= 0.6 for (length, _), (ok, n) in cells.items() if length >= 2048)


def _cells(keys: str) -> dict[tuple[int, float], tuple[int, int]]:
    report = json.loads((DEFAULT_CHECKPOINT / "recall.json").read_text("utf-8"))
    return {(c["length"], c["depth"]): (c["ok"], c["n"]) for c in report["cells"] if c["keys"] == keys}
