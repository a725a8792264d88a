from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import dispatch, experts_ref, index_page_ref, nvfp4_ref
from kernels.errors import DeviceError
from kernels.nvfp4_layout import Nvfp4Experts, repack

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


def test_asking_for_triton_on_a_cpu_is_refused_with_the_next_step() -> None:
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
