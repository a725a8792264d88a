"""The probes on the right engine, and on engines with one fault planted in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels.hyper_ref
import kernels.hyper_site_ref
import kernels.index_page_ref
from engine.events import Phase
from engine.moe import MoE
from engine.probes import differential, kl, microbench, needle, scaling, session
from engine.topk import HashTopK
from kernels.hyper_ref import postmix_ref, premix_ref

ROOT = Path(__file__).resolve().parents[2]
Event = dict[str, Any]
Probe = Callable[..., list[Event]]


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


def of(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def metric(events: list[Event], name: str, **tags: Any) -> float:
    (found,) = [event for event in of(events, "metric") if event["name"] == name and event.get("tags", {}) == tags]
    return float(found["value"])


def exponents(events: list[Event], branch: str) -> list[float]:
    return [
        float(event["value"])
        for event in of(events, "metric")
        if event["name"] == "exponent" and event["tags"]["branch"] == branch
    ]


NEEDLE = ("--lengths", "256,1024", "--contexts", "6", "--questions", "5")
KL = ("--contexts", "4", "--long", "2", "--lengths", "200")


def test_a_probe_says_who_it_is_first_and_how_it_ended_last(probe: Probe) -> None:
    events = probe(needle, "--lengths", "128", "--contexts", "2")

    identity, end = events[0], events[-1]
    assert identity["event"] == "identity"
    assert len(identity["commit"]) == 40
    assert Path(identity["files"]["engine.engine"][0]).samefile(ROOT / "engine" / "engine.py")
    assert (end["event"], end["status"]) == ("end", "ok")
    assert end["wall_s"] > 0
    assert [event["done"] for event in of(events, "progress")][-1] == of(events, "progress")[-1]["total"]


def test_needle_asks_every_depth_equally_often_and_recalls_every_fact(probe: Probe) -> None:
    events = probe(needle, *NEEDLE)

    items = of(events, "item")
    assert len(items) == 2 * 6 * 5
    assert {item["id"] for item in items if item["cluster"] == "L1024/c5"} == {f"L1024/c5/q{q}" for q in range(5)}
    assert all(item["ok"] for item in items)
    assert metric(events, "recall") == 1.0
    for depth in (0, 0.25, 0.5, 0.75, 1):
        assert metric(events, "recall", length=1024, depth=depth) == 1.0


def test_needle_asks_other_questions_under_another_seed(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe(needle, "--lengths", "128", "--contexts", "2")
    monkeypatch.setenv("LIVEPATH_SEED", "3")
    second = probe(needle, "--lengths", "128", "--contexts", "2")

    assert not {item["id"] for item in of(first, "item")} & {item["id"] for item in of(second, "item")}
    assert of(second, "item")[0]["cluster"] == "s3/L128/c0"


def test_needle_loses_facts_only_beyond_512_tokens_when_the_index_page_is_misread(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = kernels.index_page_ref.reader_layout
    dim = 32
    misread = replace(right(dim), value_stride=dim + 4, scale_stride=dim + 4, scale_base=dim)
    monkeypatch.setattr(kernels.index_page_ref, "reader_layout", lambda index_head_dim: misread)

    events = probe(needle, *NEEDLE)
    distances = probe(kl, *KL)

    recall = {length: [i["ok"] for i in of(events, "item") if i["tags"]["length"] == length] for length in (256, 1024)}
    assert all(recall[256])
    assert sum(recall[1024]) <= 0.8 * len(recall[1024])
    assert metric(distances, "kl_answer", where="answer") > 0.1


def test_the_exponent_is_one_on_the_routed_branch_and_zero_on_the_shared_one(probe: Probe) -> None:
    events = probe(scaling)

    assert exponents(events, "routed") == pytest.approx([1.0] * 4, abs=1e-4)
    assert exponents(events, "shared") == pytest.approx([0.0] * 4, abs=1e-4)
    assert metric(events, "exponent_error") < 1e-4
    assert {event["value"] for event in of(events, "constant")} == {2.5}


@pytest.mark.parametrize(("power", "expected"), [(1, 2.0), (-1, 0.0), (-2, -1.0)])
def test_a_factor_applied_silently_shows_in_the_exponent(
    power: int, expected: float, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def routed(self: MoE, x_TD: Tensor, ids_T: Tensor, *, phase: Any) -> Tensor:
        return original(self, x_TD, ids_T, phase=phase) * self.routed_scaling_factor**power

    original = MoE.routed
    monkeypatch.setattr(MoE, "routed", routed)

    events = probe(scaling)

    assert exponents(events, "routed") == pytest.approx([expected] * 4, abs=1e-3)
    assert metric(events, "exponent_error") > 0.5


def test_a_hard_wired_constant_shows_in_the_gain_although_its_exponent_is_right(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = MoE.routed
    monkeypatch.setattr(MoE, "routed", lambda self, *args, **how: 1.5 * original(self, *args, **how))

    events = probe(scaling)

    assert exponents(events, "routed") == pytest.approx([1.0] * 4, abs=1e-4)
    assert metric(events, "exponent_error") == pytest.approx(0.5, abs=1e-3)


def test_a_scaled_shared_expert_shows_on_its_own_branch(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    original = MoE.shared

    def scaled(self: MoE, x_TD: Tensor, *, phase: Phase) -> Tensor:
        return self.routed_scaling_factor * original(self, x_TD, phase=phase)

    monkeypatch.setattr(MoE, "shared", scaled)

    events = probe(scaling)

    assert exponents(events, "routed") == pytest.approx([1.0] * 4, abs=1e-4)
    assert exponents(events, "shared") == pytest.approx([1.0] * 4, abs=1e-3)


def test_kl_to_the_reference_with_the_same_experts_is_rounding(probe: Probe) -> None:
    events = probe(kl, *KL)

    assert metric(events, "kl_context", where="context") < 1e-6
    assert metric(events, "kl_answer", where="answer") < 1e-6
    assert metric(events, "agree_answer") == 1.0
    assert len(of(events, "item")) == 2 * (4 + 2)


def test_kl_sees_a_doubled_factor_at_context_positions_and_hardly_at_answers(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = MoE.routed
    monkeypatch.setattr(MoE, "routed", lambda self, *args, **how: 2.5 * original(self, *args, **how))

    events = probe(kl, *KL)

    context, answer = metric(events, "kl_context", where="context"), metric(events, "kl_answer", where="answer")
    assert context > 5e-4
    assert answer < context / 10


def test_a_fault_of_decoding_alone_is_seen(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    def routed(self: MoE, x_TD: Tensor, ids_T: Tensor, *, phase: Any) -> Tensor:
        return original(self, x_TD, ids_T, phase=phase) * (2.0 if phase == "decode" else 1.0)

    original = MoE.routed
    monkeypatch.setattr(MoE, "routed", routed)

    assert metric(probe(kl, *KL), "kl_context", where="context") > 1e-5
    assert metric(probe(differential, "--length", "96"), "difference", op="experts") > 0.1


def test_every_op_agrees_with_the_oracle_and_the_two_routers_with_each_other(probe: Probe) -> None:
    events = probe(differential)

    scores = {event["id"]: event["score"] for event in of(events, "item")}
    assert {"layer0/topk/prefill", "layer1/attention/decode", "layer1/write/decode"} <= scores.keys()
    assert max(scores.values()) < 1e-5


def test_the_transposed_mix_is_pinned_to_its_op(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.hyper_site_ref, "postmix_ref", lambda s, o, p, comb: postmix_ref(s, o, p, comb.mT))
    monkeypatch.setattr(
        kernels.hyper_site_ref, "postmix_of_one_ref", lambda s, o, gates: postmix_ref(s, o[0], gates[0], gates[1:].mT)
    )

    events = probe(differential, "--length", "96")

    assert metric(events, "difference", op="write") > 0.1
    assert metric(events, "difference", op="read") < 1e-5


def test_a_router_that_weighs_differently_is_seen(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: HashTopK, *args: Any) -> Any:
        out = original(self, *args)
        return out._replace(topk_weights_TK=out.topk_weights_TK.flip(-1))

    original = HashTopK.forward
    monkeypatch.setattr(HashTopK, "forward", forward)

    assert metric(probe(differential, "--length", "96"), "difference", op="topk") > 0.01


def test_microbench_measures_the_rounding_of_a_bf16_premix(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    right = metric(probe(microbench), "error")

    monkeypatch.setattr(
        kernels.hyper_ref, "premix_ref", lambda x, fn, eps: premix_ref(x.bfloat16(), fn.bfloat16().float(), eps)
    )
    events = probe(microbench)

    assert right < 1e-6
    assert 1e-4 < metric(events, "error") < 1e-2
    assert metric(events, "agree") > 0.9
    assert {event["tags"]["site"] for event in of(events, "item")} == {
        f"layer{layer}/{site}" for layer in (0, 1) for site in ("attn_hc", "ffn_hc")
    }


def test_microbench_measures_the_router(probe: Probe) -> None:
    events = probe(microbench, "--op", "router")

    assert metric(events, "error") < 1e-6
    assert len(of(events, "item")) == 2


def test_a_checkpoint_that_is_missing_ends_as_failed_with_one_clear_line(
    probe: Probe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = probe(needle, "--checkpoint", str(tmp_path / "none"), code=1)

    assert events[-1]["status"] == "failed"
    assert not of(events, "metric")
    assert "does not exist" in capsys.readouterr().err


def test_a_crash_is_no_measurement(probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(MoE, "forward", lambda *_: torch.zeros(1) @ torch.zeros(2))

    with pytest.raises(RuntimeError):
        probe(scaling)

    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["status"]) == ("end", "failed")


@pytest.mark.parametrize("argv", [["--lengths", "many"], ["--seed", "x"]])
def test_wrong_arguments_are_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        needle.main(argv)

    assert stopped.value.code == 2
    assert "usage: python -m engine.probes.needle" in capsys.readouterr().err


def test_the_interval_of_a_share_holds_it() -> None:
    assert session.wilson(0, 30) == (0.0, pytest.approx(0.1135, abs=1e-3))
    assert session.wilson(30, 30) == (pytest.approx(0.8865, abs=1e-3), 1.0)


@pytest.mark.e2e
def test_needle_runs_as_a_child_process_and_prints_a_table(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-m", "engine.probes.needle", "--lengths", "128", "--contexts", "2"]

    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"LIVEPATH_EVENTS": str(path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "of 8 questions" in done.stdout
    assert json.loads(path.read_text().splitlines()[-1])["status"] == "ok"
