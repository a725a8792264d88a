from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import dispatch, experts_ref, fp8_block_ref, index_page_ref, nvfp4_ref
from kernels.errors import DeviceError, DtypeError
from kernels.fp8_block_ref import Fp8Experts
from kernels.nvfp4_layout import Nvfp4Experts, repack, round_global_scales

ROOT = Path(dispatch.__file__).resolve().parent.parent


def test_a_choice_names_the_function_that_ran() -> None:
    choices: list[dispatch.Choice] = []
    x, w13, w2 = torch.ones(2, 4), torch.ones(3, 4, 4), torch.ones(3, 4, 2)
    ids, gates = torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1)

    out = dispatch.experts(x, w13, w2, ids, gates, None, record=choices.append)

    assert torch.equal(out, experts_ref.experts_ref(x, w13, w2, ids, gates, None))
    (choice,) = choices
    assert (choice.op, choice.implementation, choice.requested) == ("experts", "reference", "auto")
    assert choice.file == "kernels/experts_ref.py"
    lines = (ROOT / choice.file).read_text(encoding="utf-8").splitlines()
    assert lines[choice.line - 1].startswith("def experts_ref(")


def test_index_scores_on_a_cpu_go_to_the_reference_with_the_reason() -> None:
    choices: list[dispatch.Choice] = []
    pages = index_page_ref.empty_pages(1, 16, torch.bfloat16)

    scores = dispatch.index_scores(
        torch.ones(1, 1, 2, 16),
        pages,
        torch.zeros(1, 1, dtype=torch.int32),
        5,
        torch.ones(1, 1, 2),
        1.0,
        record=choices.append,
    )

    assert torch.equal(scores, torch.zeros(1, 1, 5))
    assert choices[0].implementation == "reference"
    assert choices[0].reason == "tensors on cpu, not on a GPU"
    assert choices[0].line == inspect.getsourcelines(index_page_ref.index_scores_ref)[1]


def packed_experts(device: str) -> Nvfp4Experts:
    parts = (*nvfp4_ref.encode(torch.randn(3, 64, 48)), *nvfp4_ref.encode(torch.randn(3, 48, 32)))
    names = ("w13_codes", "w13_scale", "w13_global", "w2_codes", "w2_scale", "w2_global")
    return Nvfp4Experts(**{name: part.to(device) for name, part in zip(names, parts, strict=True)})


def test_packed_experts_on_a_cpu_go_to_the_reference_with_the_factor() -> None:
    choices: list[dispatch.Choice] = []
    weights, x = packed_experts("cpu"), torch.randn(2, 48)
    ids, gates = torch.tensor([[0, 2], [1, 1]], dtype=torch.int32), torch.ones(2, 2)

    plain, scaled = (
        dispatch.nvfp4_experts(x, weights, ids, gates, 10.0, factor=factor, record=choices.append)
        for factor in (None, 2.5)
    )

    assert torch.equal(scaled, plain * 2.5)
    assert [(choice.implementation, choice.file) for choice in choices] == [("reference", "kernels/experts_ref.py")] * 2


@pytest.mark.gpu
def test_packed_experts_on_a_gpu_go_to_the_kernel_that_fits() -> None:
    choices: list[dispatch.Choice] = []
    weights, x = packed_experts("cuda"), torch.randn(2, 48, device="cuda")
    ids, gates = torch.tensor([[0, 2], [1, 1]], dtype=torch.int32, device="cuda"), torch.ones(2, 2, device="cuda")

    for tokens, hopper in ((x, None), (x.bfloat16(), None), (x.bfloat16(), repack(weights))):
        dispatch.nvfp4_experts(tokens, weights, ids, gates, 10.0, hopper=hopper, record=choices.append)

    hopper_file = "kernels/experts_hopper.py" if torch.cuda.get_device_capability()[0] == 9 else "kernels/experts.py"
    assert [choice.file for choice in choices] == ["kernels/experts.py", "kernels/experts.py", hopper_file]


def test_global_scales_through_bf16_are_asked_for_by_dtype_and_named_in_the_reason() -> None:
    choices: list[dispatch.Choice] = []
    weights, x = packed_experts("cpu"), torch.randn(2, 48)
    ids, gates = torch.tensor([[0, 2], [1, 1]], dtype=torch.int32), torch.ones(2, 2)

    exact, peer = (
        dispatch.nvfp4_experts(x, weights, ids, gates, 10.0, global_scale_dtype=dtype, record=choices.append)
        for dtype in (torch.float32, torch.bfloat16)
    )

    rounded = round_global_scales(weights, torch.bfloat16)
    assert torch.equal(peer, dispatch.nvfp4_experts(x, rounded, ids, gates, 10.0))
    assert not torch.equal(peer, exact)
    assert [choice.reason.endswith("torch.bfloat16 global scales") for choice in choices] == [False, True]


def fp8_experts(device: str) -> Fp8Experts:
    parts = (*fp8_block_ref.encode(torch.randn(3, 64, 48)), *fp8_block_ref.encode(torch.randn(3, 48, 32)))
    names = ("w13", "w13_scale", "w2", "w2_scale")
    return Fp8Experts(**{name: part.to(device) for name, part in zip(names, parts, strict=True)})


def test_fp8_experts_on_a_cpu_go_to_the_reference_with_the_factor() -> None:
    choices: list[dispatch.Choice] = []
    weights, x = fp8_experts("cpu"), torch.randn(2, 48)
    ids, gates = torch.tensor([[0, 2], [1, 1]], dtype=torch.int32), torch.ones(2, 2)

    w8a8, w8a16 = (
        dispatch.fp8_experts(x, weights, ids, gates, 10.0, quantise_activations=quantise, record=choices.append)
        for quantise in (True, False)
    )

    assert not torch.equal(w8a8, w8a16)
    assert torch.equal(dispatch.fp8_experts(x, weights, ids, gates, 10.0, factor=2.5), w8a8 * 2.5)
    assert [(choice.op, choice.file) for choice in choices] == [("fp8_experts", "kernels/experts_ref.py")] * 2


@pytest.mark.gpu
def test_fp8_and_bf16_experts_on_a_gpu_go_to_their_kernel_and_other_plain_weights_to_the_reference() -> None:
    choices: list[dispatch.Choice] = []
    x, ids = torch.randn(2, 48, device="cuda"), torch.tensor([[0, 2], [1, 1]], dtype=torch.int32, device="cuda")
    gates = torch.ones(2, 2, device="cuda")
    w13, w2 = torch.randn(3, 64, 48, device="cuda"), torch.randn(3, 48, 32, device="cuda")

    dispatch.fp8_experts(x, fp8_experts("cuda"), ids, gates, 10.0, record=choices.append)
    dispatch.experts(x, w13.bfloat16(), w2.bfloat16(), ids.long(), gates.bfloat16(), 10.0, record=choices.append)
    dispatch.experts(x, w13, w2, ids, gates, 10.0, record=choices.append)
    dispatch.experts(x, w13.bfloat16(), w2.bfloat16(), ids, gates, 10.0, quantise=torch.round, record=choices.append)

    kernel, reference = "kernels/experts_plain.py", "kernels/experts_ref.py"
    assert [choice.file for choice in choices] == [kernel, kernel, reference, reference]
    assert choices[2].reason == "weights are torch.float32, the kernel takes bfloat16"
    with pytest.raises(DtypeError, match="triton was asked for, but weights are"):
        dispatch.experts(x, w13, w2, ids, gates, 10.0, requested="triton")


def test_asking_for_triton_on_a_cpu_is_refused_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(DeviceError, match="ask for `auto` or `reference`"):
        dispatch.pick("experts", torch.ones(1), "triton")


def test_asking_for_the_reference_is_always_granted() -> None:
    assert dispatch.pick("experts", torch.ones(1), "reference") == ("reference", "asked for")


def test_importing_the_package_loads_neither_torch_nor_triton() -> None:
    code = "import sys, kernels; print(sorted({'torch', 'triton'} & set(sys.modules)), hasattr(kernels, '__version__'))"

    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[] False"


def test_the_references_and_dispatch_load_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from kernels import dispatch, nvfp4_ref, fp8_block_ref, route_ref, hyper_ref, sparse_attention_ref\n"
        "print(dispatch.index_scores.__name__)"
    )

    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "index_scores"
