from __future__ import annotations

import json
from pathlib import Path
from xml.dom import minidom

import pytest
import torch

from benchmarks import plot, run
from benchmarks.kernels.experts import ERROR_LIMIT, SHAPES, floor_us

RESULTS = sorted(run.RESULTS.glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_file_names_its_machine_and_gives_no_time_to_a_wrong_row(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))

    assert {"gpu", "torch", "triton", "driver", "clocks_before"} <= result["machine"].keys()
    assert result["rows"]
    for row in result["rows"]:
        assert row["us"] is None or row["error"] <= ERROR_LIMIT


def test_the_floor_counts_only_the_experts_that_were_drawn() -> None:
    one_token = torch.tensor([[3, 9, 11, 40, 200, 7]])
    bytes_moved = 6 * 3 * 4096 * 2048 * 0.5625 + 4 * 4096 + 4 * 6 * 2048

    assert floor_us(SHAPES["flash"], 1, one_token) == pytest.approx(bytes_moved / 4.3e12 * 1e6)
    repeated = torch.full((16384, 6), 3)
    flops = 2 * 16384 * 6 * 3 * 4096 * 2048
    assert floor_us(SHAPES["flash"], 16384, repeated) == pytest.approx(flops / 790e12 * 1e6)


def test_the_plot_has_a_line_for_the_kernel_the_floor_and_each_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"shape": "tiny", "tokens": 1, "us": 5.0, "floor_us": 2.0, "peers": {"a <peer>": 7.0}},
        {"shape": "tiny", "tokens": 8, "us": None, "floor_us": 20.0, "peers": {"a <peer>": 70.0}},
    ]
    source = tmp_path / "result.json"
    source.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    monkeypatch.setattr(plot, "IMAGES", tmp_path)

    assert plot.main([str(source)]) == 0

    svg = minidom.parse(str(tmp_path / "experts-tiny.svg"))
    assert len(svg.getElementsByTagName("polyline")) == 3
    assert "a <peer>" in [text.firstChild.nodeValue for text in svg.getElementsByTagName("text")]


def test_without_a_result_file_the_plot_says_what_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert plot.main([]) == 2
    assert "name one result file" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_the_benchmarks_refuse_a_machine_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["experts"]) == 1
    assert "no CUDA device" in capsys.readouterr().err
