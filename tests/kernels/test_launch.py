"""What a listener learns of the kernels that run, by the dispatcher and on its own."""

from __future__ import annotations

import pytest
import torch
import triton

from kernels import dispatch, hyper_ref, index_page_ref, nvfp4_ref, route_ref
from kernels.errors import DeviceError, DtypeError
from kernels.launch import ROOT, heard, launch

REFUSAL = "ask for `auto` or `reference`"


def test_a_listener_hears_each_kernel_with_its_file_its_first_line_and_its_constants(device: str) -> None:
    choices: list[dispatch.Choice] = []
    logits, bias = torch.randn(5, 8, device=device), torch.zeros(8, device=device)

    dispatch.route(logits, 2, bias_E=bias, requested="triton", record=choices.append)

    (said,) = choices[0].launches
    assert (said.name, said.file) == ("_route", "kernels/route.py")
    assert {"E": 8, "TOPK": 2, "SCORING": "sqrtsoftplus", "HAS_BIAS": True, "num_warps": 1}.items() <= (
        said.constants.items()
    )
    lines = (ROOT / said.file).read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("def _route(") for line in lines[said.line - 1 : said.line + 1])


def test_launches_of_one_call_come_in_their_order_and_none_of_them_twice(device: str) -> None:
    choices: list[dispatch.Choice] = []
    streams, fn = torch.randn(3, 4, 32, device=device), torch.randn(24, 128, device=device)

    for _ in range(2):
        dispatch.hyper_premix(streams, fn, 1e-6, requested="triton", record=choices.append)

    assert [[said.name for said in choice.launches] for choice in choices] == [["_mix_slice", "_add_slices"]] * 2


def test_a_reference_launches_nothing() -> None:
    choices: list[dispatch.Choice] = []

    dispatch.route(torch.randn(5, 8), 2, record=choices.append)

    assert (choices[0].implementation, choices[0].launches) == ("reference", ())


def test_without_a_listener_a_launch_is_the_kernel_itself() -> None:
    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> tuple[int, ...]:
            return grid

    assert launch(Kernel(), (3,)) == (3,)  # type: ignore[comparison-overlap]
    with heard():
        assert callable(launch(Kernel(), (3,)))
    assert launch(Kernel(), (3,)) == (3,)  # type: ignore[comparison-overlap]


@pytest.mark.interpreter
def test_the_interpreter_runs_tensors_of_the_cpu_only_where_triton_is_asked_for() -> None:
    streams, fn = torch.randn(3, 4, 32), torch.randn(24, 128)
    choices: list[dispatch.Choice] = []

    for requested in ("auto", "triton"):
        z = dispatch.hyper_premix(streams, fn, 1e-6, requested=requested, record=choices.append)
        torch.testing.assert_close(z, hyper_ref.premix_ref(streams, fn, 1e-6))

    assert [choice.implementation for choice in choices] == ["reference", "triton"]


def test_without_the_interpreter_triton_on_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    with pytest.raises(DeviceError, match=REFUSAL):
        dispatch.route(torch.randn(5, 8), 2, requested="triton")


@pytest.mark.interpreter
def test_index_keys_in_fp32_have_no_kernel_and_are_scored_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton.knobs.runtime.interpret
    pages = index_page_ref.empty_pages(1, 16, torch.float32)
    operands = (torch.ones(1, 1, 2, 16), pages, torch.zeros(1, 1, dtype=torch.int32), 5, torch.ones(1, 1, 2), 1.0)

    with pytest.raises(DtypeError, match="index keys are float32"):
        dispatch.index_scores(*operands, requested="triton")


@pytest.mark.interpreter
def test_every_op_can_be_asked_for_by_name_of_its_implementation() -> None:
    logits, table = torch.randn(4, 8), torch.randint(0, 8, (10, 2))
    weights = torch.randn(2, 16, 32)

    for requested in ("reference", "triton"):
        route = dispatch.table_route(logits, torch.arange(4), table, requested=requested)
        codes = dispatch.nvfp4_encode(weights, requested=requested)
        assert torch.equal(route[1].long(), table[:4])
        torch.testing.assert_close(route[0], route_ref.hash_route_ref(logits, table[:4]))
        assert torch.equal(codes[0], nvfp4_ref.encode(weights)[0])
