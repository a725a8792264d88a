"""The routed-scaling contract: power 1 on every valid way, and a table that notices when it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

from engine import contract, experts, moe
from engine.contract import SIZES, Bench, Measured, Row, rows
from engine.methods import METHODS
from engine.probes import contract as probe
from engine.runners import RUNNERS
from engine.runners.cutlass import CutlassRunner
from engine.runners.layouts import swap_halves, with_rows
from engine.runners.reference import ReferenceRunner
from engine.topk import with_shared_expert

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield Bench(tmp_path)


def row(method: str, runner: str, **changes: object) -> Row:
    values = {"router": "standard", "renormalise": True, "fused": False, "size": 1, **changes}
    return Row(method=method, runner=runner, **values)


def measured(bench: Bench, one: Row) -> Measured:
    return next(bench.measure(one))


def test_every_valid_way_applies_the_factor_once_and_agrees_with_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVEPATH_EVENTS", str(tmp_path / "events"))
    shown = StringIO()

    with redirect_stdout(shown):
        assert probe.main(["--markdown"]) == 0

    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    items = [event for event in events if event["event"] == "item"]
    assert len(items) == 2 * len(list(rows())) > 1000
    assert [event["id"] for event in items if not event["ok"]] == []
    assert {round(event["tags"]["power_measured"]) for event in items} == {1}
    assert {round(event["tags"]["shared_power_said"]) for event in items} == {0}
    assert {event["tags"]["size"] for event in items} == set(SIZES)
    # The probe's own passes stay out of the caller's events.
    assert not [event for event in events if event["event"] == "constant"]
    table = (ROOT / "docs" / "contract.md").read_text().partition("--markdown -->\n")[2].partition("<!--")[0]
    assert table == shown.getvalue(), "docs/contract.md: python -m engine.probes.contract --markdown"


def test_the_table_has_every_method_with_every_runner_it_names() -> None:
    ways = {(one.method, one.runner) for one in rows()}

    assert ways == {(method, runner) for method in METHODS for runner in METHODS[method].runners}
    assert {runner for _, runner in ways} == set(RUNNERS)
    assert all(not one.fused for one in rows() if one.runner == "trtllm")


def test_a_flag_that_forgets_the_runner_doubles_the_factor(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "fuses_routed_scaling_factor_in_topk", lambda method, runner: method == "nvfp4")

    found = measured(bench, row("nvfp4", "marlin", router="hash"))

    assert found.said[0] == pytest.approx(2)
    assert found.exponent[0] == pytest.approx(2)
    assert found.sites == ("kernel", "topk")
    assert not found.right


def test_a_multiplication_that_says_nothing_is_measured_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ReferenceRunner.run
    monkeypatch.setattr(
        ReferenceRunner, "run", lambda self, *args: run(self, *args) * self.config.routed_scaling_factor
    )

    found = measured(bench, row("nvfp4", "reference"))

    assert found.said[0] == pytest.approx(1)
    assert found.exponent[0] == pytest.approx(2)
    assert not found.right


def test_a_factor_that_nobody_applies_has_power_zero(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts.FusedMoE, "leaves_factor_to_epilogue", False)

    found = measured(bench, row("mxfp4", "reference"))

    assert (found.said[0], found.sites) == (0, ())
    assert found.exponent[0] == pytest.approx(0, abs=1e-6)
    assert not found.right


@pytest.mark.parametrize(("runner", "size"), [("reference", 1), ("triton", 2)])
def test_a_fused_shared_expert_of_weight_one_is_scaled_or_counted_too_often(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, runner: str, size: int
) -> None:
    monkeypatch.setattr(moe, "with_shared_expert", lambda picked, expert, _: with_shared_expert(picked, expert, 1.0))

    found = measured(bench, row("fp8", runner, fused=True, size=size))

    assert found.exponent[1] == pytest.approx(1)
    assert not found.right


@pytest.mark.parametrize("fused", [False, True])
def test_a_shared_expert_that_every_process_adds_whole_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    one = row("nvfp4", "reference", fused=fused, size=4)
    assert measured(bench, one).right
    monkeypatch.setattr(moe, "with_shared_expert", lambda picked, expert, w: with_shared_expert(picked, expert, 4 * w))
    if not fused:
        monkeypatch.setattr(
            Bench,
            "output",
            lambda self, blocks, phase: sum(
                block.partial(self.x_TD, self.ids_T, phase=phase) + block.shared(self.x_TD, phase=phase)
                for block in blocks
            ),
        )

    found = measured(bench, one)

    assert found.stored_error > 0.1
    assert not found.right


def test_halves_in_the_wrong_order_are_beyond_the_tolerance(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runners.cutlass.swap_halves", lambda rows: rows)
    init = CutlassRunner.__init__
    monkeypatch.setattr(
        CutlassRunner,
        "__init__",
        lambda self, config, method, w13, w2: init(self, config, method, with_rows(w13, swap_halves), w2),
    )

    found = measured(bench, row("nvfp4", "cutlass"))

    assert found.error > 0.4
    assert not found.right


def test_an_activation_without_its_clamp_is_beyond_the_tolerance(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    free = contract.replace(contract.CONFIG, swiglu_limit=1e9)
    blocks = bench.blocks(row("nvfp4", "trtllm"), contract.FACTOR)
    monkeypatch.setattr(contract, "CONFIG", free)

    unclamped = bench.output(bench.blocks(row("nvfp4", "trtllm"), contract.FACTOR), "prefill")

    monkeypatch.undo()
    clamped = bench.output(blocks, "prefill")
    assert (unclamped - clamped).norm() / clamped.norm() > 0.28


def test_rows_can_be_chosen_by_name_and_a_name_of_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--only", "fp8/marlin/hash"]) == 0
    assert "modelopt" not in capsys.readouterr().out

    assert probe.main(["--only", "nothing"]) == 1
    assert "no row has that in its name" in capsys.readouterr().err
