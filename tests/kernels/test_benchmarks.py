from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.dom import minidom

import pytest
import torch

from benchmarks import gpu_tests, plot, result_file, run
from benchmarks.kernels import OPS, load, patterns_of
from benchmarks.kernels.experts import SHAPES, floor_us

RESULTS = [path for path in sorted(result_file.RESULTS.glob("*.json")) if "-sanitizer-" not in path.name]
MACHINE = {
    "gpu": "NVIDIA H200",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "driver": "580",
    "commit": "0123456789",
    "dirty": True,
    "clocks_before": {"clocks.sm": "345 MHz"},
}


def row(**more: Any) -> dict[str, Any]:
    return {
        "op": "experts",
        "shape": "tiny",
        "tokens": 1,
        "us": 5.0,
        "floor_us": 2.0,
        "error": 1e-3,
        "peers": {},
        **more,
    }


@pytest.fixture
def _as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_file_names_its_machine_and_gives_no_time_to_a_wrong_row(path: Path) -> None:
    assert result_file.problems(json.loads(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "rows: none"),
        ([{"op": "index", "us": 1.0}], "row 0: error, shape missing"),
        ([row(error=float("nan"))], "row 0: error nan above the limit of 0.0045, and yet a time"),
        ([row(), row(us=0.0)], "row 1: us is 0.0, expected microseconds"),
        ([row(peers={"torch": "fast"})], "row 0: torch is 'fast', expected microseconds"),
    ],
)
def test_a_result_that_is_not_as_it_must_be_is_said_by_row(rows: list[dict[str, Any]], problem: str) -> None:
    assert result_file.problems({"machine": MACHINE, "rows": rows}) == [problem]


def test_a_wrong_row_without_a_time_is_a_good_result_and_a_missing_commit_is_not() -> None:
    rows = [row(us=None, error=0.5)]

    assert result_file.problems({"machine": MACHINE, "rows": rows}) == []
    assert result_file.problems({"machine": {**MACHINE, "commit": ""}, "rows": rows}) == ["machine: commit is missing"]


def test_a_card_is_one_word_in_the_name_of_the_file(tmp_path: Path) -> None:
    assert result_file.path_of(tmp_path, "index", "NVIDIA H200").name.endswith("-index-h200.json")
    assert result_file.path_of(tmp_path, "index", "NVIDIA H100 80GB HBM3").name.endswith("-index-h100-80gb-hbm3.json")


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_shapes_and_gpu_tests_and_leaves_the_gpu_alone_when_it_is_imported(op: str) -> None:
    module = load(op)

    assert module.SHAPES
    assert callable(module.run)
    assert gpu_tests.files_with_gpu_tests(patterns_of(op))
    assert not torch.cuda.is_initialized()


def test_every_benchmark_module_is_in_the_registry() -> None:
    found = {path.stem for path in (result_file.RESULTS.parent / "kernels").glob("*.py")}

    assert found - {"__init__", "peers"} == set(OPS)


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
        row(peers={"a <peer>": 7.0}),
        row(tokens=8, us=None, floor_us=20.0, peers={"a <peer>": 70.0}),
        row(op="hyper", peers={"another op": 1.0}),
        row(routing="skewed", peers={"skewed is another chart": 1.0}),
    ]
    source = tmp_path / "result.json"
    source.write_text(json.dumps({"machine": MACHINE, "rows": rows}), encoding="utf-8")
    monkeypatch.setattr(plot, "IMAGES", tmp_path)

    assert plot.main([str(source)]) == 0

    assert {path.name for path in tmp_path.glob("*.svg")} == {"experts-tiny.svg", "experts-tiny-skewed.svg"}
    svg = minidom.parse(str(tmp_path / "experts-tiny.svg"))
    assert len(svg.getElementsByTagName("polyline")) == 3
    assert "a <peer>" in [text.firstChild.nodeValue for text in svg.getElementsByTagName("text")]


def test_a_table_has_a_row_per_row_with_the_fastest_in_bold_and_says_where_it_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        # The times of single kernels are no column.
        row(keys="fp8", us=112.3, floor_us=33.2, error=8.9e-08, peers={"torch": 99.0}, kernels=[{"us": 112.3}]),
        row(keys="bf16", us=None, floor_us=63.4, error=0.5),
    ]
    source = tmp_path / "result.json"
    source.write_text(json.dumps({"machine": MACHINE, "rows": rows, "stopped": "v3: no memory"}), encoding="utf-8")

    assert plot.main(["--table", str(source)]) == 0

    sentence, _, head, _, first, second = capsys.readouterr().out.splitlines()
    assert "One H200, torch 2.11.0" in sentence
    assert "commit 0123456 with uncommitted changes" in sentence
    assert sentence.endswith("Broke off: v3: no memory.")
    assert head == "| shape | keys | floor us | us | x floor | torch us | error |"
    assert first == "| tiny | fp8 | 33.2 | 112 | 3.38 | **99.0** | 8.9e-8 |"
    assert second == "| tiny | bf16 | 63.4 | wrong |  |  | 5.0e-1 |"


def test_times_from_a_clean_cache_have_columns_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "result.json"
    rows = [row(us=20.0, clean_us=15.0, floor_us=10.0, error=0.0)]
    source.write_text(json.dumps({"machine": MACHINE, "rows": rows}), encoding="utf-8")

    assert plot.main(["--table", str(source)]) == 0

    _, _, head, _, first = capsys.readouterr().out.splitlines()
    assert head == "| shape | floor us | us | x floor | clean us | x floor | error |"
    assert first == "| tiny | 10.0 | 20.0 | 2.00 | 15.0 | 1.50 | 0 |"


def test_without_a_result_file_the_plot_says_what_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert plot.main([]) == 2
    assert "name one result file" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_the_benchmarks_refuse_a_machine_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["experts"]) == 1
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.usefixtures("_as_if_on_a_gpu")
def test_a_red_op_gets_no_time_and_the_green_one_beside_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed: list[str] = []
    monkeypatch.setattr(run, "_in_a_child", lambda op, *rest: timed.append(op))
    outcomes = {"test_index.py": (False, 3, "1 failed, 3 passed"), "test_experts.py": (True, 4, "4 passed")}

    def run_files(files: list[Path], folder: Path) -> list[SimpleNamespace]:
        found = [(file, *outcomes.get(file.name, (True, 0, "none"))) for file in files]
        return [SimpleNamespace(file=file, green=green, passed=n, verdict=say) for file, green, n, say in found]

    monkeypatch.setattr(gpu_tests, "run_files", run_files)

    assert run.main(["index", "experts"]) == 1

    assert timed == ["experts"]
    assert "index: not timed, GPU tests are red: test_index.py: 1 failed, 3 passed" in capsys.readouterr().err


@pytest.mark.usefixtures("_as_if_on_a_gpu")
def test_an_op_of_which_no_gpu_test_ran_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gpu_tests,
        "run_files",
        lambda files, folder: [SimpleNamespace(file=file, green=True, passed=0) for file in files],
    )

    assert run.red(["index"]) == {"index": "not timed, no GPU test of it ran"}


@pytest.mark.usefixtures("_as_if_on_a_gpu")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["index", "--shapes", "16x64k,huge"], "index has no shape huge; expected some of 16x64k"),
        (["index", "--tokens", "8"], "index takes no token_counts"),
    ],
)
def test_what_an_op_does_not_have_or_take_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_what_was_measured_before_a_shape_broke_off_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import timing

    def run_one(shape_names: list[str]) -> list[dict[str, Any]]:
        if shape_names == ["large"]:
            raise RuntimeError("out of memory")
        return [row(shape=shape_names[0], error=0.01)]

    monkeypatch.setattr(run, "load", lambda op: SimpleNamespace(run=run_one, ERROR_LIMIT=0.02))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    for name, value in (("machine", dict(MACHINE)), ("ceilings", {}), ("clocks", {"pstate": "P0"})):
        monkeypatch.setattr(timing, name, lambda value=value: value)

    with pytest.raises(SystemExit, match="1"):
        run.measure("index", ["small", "large", "never"], {}, tmp_path)

    (path,) = tmp_path.glob("*-index-h200.json")
    result = json.loads(path.read_text(encoding="utf-8"))
    assert [item["shape"] for item in result["rows"]] == ["small"]
    assert result["stopped"] == "large: RuntimeError: out of memory"
    assert result["machine"]["clocks_after"] == {"pstate": "P0"}
    assert result_file.problems(result) == []


@pytest.mark.parametrize("module", ["run", "gpu", "gpu_tests", "sanitize", "plot"])
def test_help_starts_without_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; from benchmarks.{module} import main; main(['--help'])"

    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=run.result_file.RESULTS.parents[1],
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "usage:" in result.stdout
