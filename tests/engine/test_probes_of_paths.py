"""The probes divergence, determinism and selection: quiet on the right engine, plain about a planted fault."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import kernels.index_page_ref
from engine.checkpoint import DEFAULT_CHECKPOINT
from engine.export import export_nvfp4
from engine.moe import MoE
from engine.probes import (
    contract,
    determinism,
    differential,
    divergence,
    kl,
    microbench,
    needle,
    scaling,
    selection,
)
from engine.probes.selection import NOT_PICKED, judge
from kernels.index_page_ref import PageLayout

Event = dict[str, Any]
Probe = Callable[..., list[Event]]
PROBES = (needle, scaling, contract, kl, differential, divergence, determinism, selection, microbench)
PARTS = ("attention", "experts", "routed", "streams")


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Runs a probe in this process and returns the events it wrote."""

    def run(module: ModuleType, *argv: str, code: int = 0) -> list[Event]:
        path = tmp_path / "events.jsonl"
        path.unlink(missing_ok=True)
        monkeypatch.setenv("LIVEPATH_EVENTS", str(path))
        assert module.main(list(argv)) == code
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return run


def items(events: list[Event], kind: str = "") -> list[Event]:
    return [one for one in events if one["event"] == "item" and kind in one["id"]]


def test_every_layer_is_recorded_in_both_phases(probe: Probe, tmp_path: Path) -> None:
    events = probe(divergence, "--contexts", "2", "--length", "60")

    said = {one["key"]: one for one in events if one["event"] == "tensor"}
    (file,) = {one["file"] for one in said.values()}
    assert Path(file).parent == tmp_path
    stored = load_file(file)
    assert stored.keys() == said.keys()
    layers = [f"{layer}.{part}" for layer in (0, 1) for part in PARTS]
    assert list(said) == [f"{name}.{phase}" for name in (*layers, "-1.logits") for phase in ("prefill", "decode")]
    assert stored["1.routed.decode"].shape == (2, 8, 64)
    assert stored["0.streams.prefill"].shape == (2, 52, 4, 64)
    assert (said["1.routed.decode"]["layer"], said["1.routed.decode"]["phase"]) == (1, "decode")


def test_the_first_tensor_that_rises_is_where_two_builds_part(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(divergence, "--length", "60", "--out", str(tmp_path / "old"))
    against = ("--length", "60", "--against", str(tmp_path / "old" / "divergence-s0.safetensors"))
    same = probe(divergence, *against)
    routed = MoE.routed

    def doubled(self: MoE, x_TD: Tensor, ids_T: Tensor, *, phase: Any) -> Tensor:
        return routed(self, x_TD, ids_T, phase=phase) * (2 if self.layer == 1 else 1)

    monkeypatch.setattr(MoE, "routed", doubled)
    faulty = probe(divergence, *against)

    assert [one["score"] for one in items(same)] == [0.0] * 18
    rising = [one["id"] for one in items(faulty) if one["score"] > 1e-3]
    assert set(rising) == {
        f"{name}.{p}" for name in ("1.experts", "1.routed", "1.streams", "-1.logits") for p in ("prefill", "decode")
    }
    assert {one["score"] for one in items(faulty, "1.routed")} == {1.0}


def test_recordings_that_do_not_fit_or_cannot_be_read_are_refused(
    probe: Probe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe(divergence, "--length", "60", "--out", str(tmp_path / "old"))
    probe(divergence, "--length", "70", "--against", str(tmp_path / "old" / "divergence-s0.safetensors"), code=1)
    assert "has shape (2, 62, 64), the earlier recording holds (2, 52, 64)" in capsys.readouterr().err

    probe(divergence, "--against", str(tmp_path / "absent"), code=1)
    assert "absent cannot be read" in capsys.readouterr().err


def test_the_engine_answers_alike_alone_beside_others_and_by_pieces(probe: Probe) -> None:
    events = probe(determinism, "--contexts", "2", "--length", "80")

    assert {one["id"].split("/")[1] for one in items(events)} == {"twice", "batch", "mixed", "chunked", "decode"}
    assert all(one["ok"] for one in items(events))


def test_a_result_that_depends_on_the_batch_is_noticed_and_a_random_one_twice(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed, generator = MoE.routed, torch.Generator().manual_seed(0)
    with monkeypatch.context() as patched:
        patched.setattr(
            MoE, "routed", lambda self, x, ids, *, phase: routed(self, x, ids, phase=phase) * (1 + 1e-3 * len(x))
        )
        batched = probe(determinism, "--contexts", "2", "--length", "80")
    monkeypatch.setattr(
        MoE,
        "routed",
        lambda self, x, ids, *, phase: (
            routed(self, x, ids, phase=phase) * (1 + 1e-3 * torch.rand((), generator=generator))
        ),
    )
    random = probe(determinism, "--contexts", "2", "--length", "80")

    assert all(one["ok"] for one in items(batched, "twice"))
    assert not any(one["ok"] for one in items(batched, "batch"))
    assert not any(one["ok"] for one in items(random, "twice"))


def test_the_indexer_picks_what_fp32_picks_and_the_gold_entry(probe: Probe) -> None:
    events = probe(selection, "--lengths", "700", "--contexts", "4")

    assert len(items(events)) == 4
    assert all(one["ok"] and one["tags"]["overlap"] > 0.85 for one in items(events))
    assert {one["tags"]["layer"] for one in items(events)} == {1}


def test_a_page_that_is_misread_loses_the_gold_entry(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    interleaved = PageLayout(value_base=0, value_stride=36, scale_base=32, scale_stride=36)
    monkeypatch.setattr(kernels.index_page_ref, "reader_layout", lambda dim: interleaved)

    events = probe(selection, "--lengths", "1500", "--contexts", "4", "--depths", "0.2,0.4")

    assert max(one["tags"]["overlap"] for one in items(events)) < 0.7
    assert any(not one["ok"] and one["tags"]["rank"] == NOT_PICKED for one in items(events))


def test_a_context_that_leaves_nothing_to_choose_is_refused(probe: Probe, capsys: pytest.CaptureFixture[str]) -> None:
    probe(selection, "--lengths", "300", code=1)

    assert "300 tokens give its indexer nothing to choose, expected more than 512" in capsys.readouterr().err


def test_the_judgement_of_one_query() -> None:
    scores = torch.tensor([0.1, 0.9, 0.5, 0.7])

    right = judge(torch.tensor([1, 3, -1]), scores, (3,))
    wrong = judge(torch.tensor([1, 0]), scores, (2, 3))
    hopeless = judge(torch.tensor([1, 3]), scores, (0,))

    assert (right.overlap, right.rank, right.reference_rank, right.ok) == (1.0, 1, 1, True)
    assert (wrong.overlap, wrong.rank, wrong.reference_rank, wrong.ok) == (0.5, NOT_PICKED, 1, False)
    assert (hopeless.rank, hopeless.ok) == (NOT_PICKED, True)


@pytest.mark.parametrize(
    ("module", "argv", "message"),
    [
        (determinism, ["--chunk", "0"], "'0' is not a number of at least 1"),
        (divergence, ["--contexts", "many"], "'many' is not a number of at least 1"),
        (selection, ["--contexts", "-2"], "argument --contexts"),
        (needle, ["--contexts", "0"], "'0' is not a number of at least 1"),
        (needle, ["--seed", "-1"], "'-1' is not a number of at least 0"),
        (scaling, ["--length", "0"], "argument --length"),
        (kl, ["--positions", "0"], "argument --positions"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_without_a_traceback(
    module: ModuleType, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        module.main(argv)

    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "argv", "message"),
    [
        (needle, ["--lengths", "5"], "a context of 0 tokens cannot hold 0 facts"),
        (needle, ["--lengths", "128", "--depths", "2"], "depth 2.0 is outside 0..1"),
        (kl, ["--contexts", "0", "--long", "0"], "--contexts and --long are 0"),
        (kl, ["--lengths", "3"], "cannot hold"),
        (scaling, ["--length", "9"], "cannot hold"),
        (microbench, ["--length", "3"], "cannot hold"),
    ],
)
def test_inputs_that_cannot_be_made_end_as_failed_with_one_clear_line(
    module: ModuleType, argv: list[str], message: str, probe: Probe, capsys: pytest.CaptureFixture[str]
) -> None:
    events = probe(module, *argv, code=1)

    assert events[-1]["status"] == "failed"
    assert message in capsys.readouterr().err


def test_short_contexts_are_tried_as_well(probe: Probe) -> None:
    events = probe(determinism, "--contexts", "2", "--length", "36", "--chunk", "50")

    assert len(items(events)) == 10
    assert all(one["ok"] for one in items(events))


def example_of(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> str:
    """The arguments of the example that --help prints."""
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out.partition(f"example: python -m {module.__name__} ")[2].strip()


def test_every_probe_has_its_line_with_its_example_in_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(contract.__file__).parent
    probes = {path.stem for path in folder.glob("*.py") if "def main(" in path.read_text()}
    assert probes == {module.__name__.rpartition(".")[2] for module in PROBES}

    lines = (folder.parents[1] / "docs" / "probes.md").read_text().splitlines()

    cells = [[cell.strip(" `") for cell in line.split("|")] for line in lines if line.startswith("| `")]
    assert {cell[1]: cell[-2] for cell in cells} == {
        module.__name__.rpartition(".")[2]: example_of(module, capsys) for module in PROBES
    }


@pytest.mark.parametrize("module", PROBES)
def test_the_example_of_help_runs_as_it_is_printed(
    module: ModuleType,
    probe: Probe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    events = probe(module, *shlex.split(example_of(module, capsys)))

    assert events[-1]["status"] == "ok"
    assert any(one["event"] in ("item", "tensor", "metric") for one in events)
    assert capsys.readouterr().out


@pytest.mark.parametrize("module", [kl, microbench, selection, scaling])
def test_a_checkpoint_in_other_names_shards_and_formats_is_measured_as_well(
    module: ModuleType, probe: Probe, exported: Path
) -> None:
    small = {
        kl: ("--lengths", "100", "--contexts", "1", "--long", "0"),
        microbench: ("--contexts", "1", "--length", "80"),
        selection: ("--lengths", "700", "--contexts", "1"),
        scaling: ("--contexts", "1", "--length", "80"),
    }[module]

    events = probe(module, "--checkpoint", str(exported), *small)

    worst = {"kl": "kl_context", "microbench": "error", "scaling": "exponent_error"}.get(
        module.__name__.rpartition(".")[2]
    )
    if worst:
        assert all(float(one["value"]) < 1e-4 for one in events if one.get("name") == worst)
    assert items(events) or module is scaling


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped checkpoint as ModelOpt would store it: NVFP4 experts, FP8 matrices, DeepSeek's names, shards."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_nvfp4(DEFAULT_CHECKPOINT, folder, linears="fp8", max_shard_bytes=300_000)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder
