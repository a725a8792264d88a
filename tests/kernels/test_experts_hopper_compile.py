"""What can be said of the Hopper kernel without a GPU: it compiles for sm_90 and keeps its promises on registers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kernels.compiling import Compiled, compiled

# Tokens that give the mean rows of decode and of prefill; tensors on the meta device have shapes and no memory.
LAUNCHES = """
from kernels.experts_hopper import experts_hopper
from kernels.nvfp4_layout import HopperExperts

def ints(*shape): return torch.empty(shape, dtype=torch.int32, device="meta")
def floats(*shape): return torch.empty(shape, device="meta")

weights = HopperExperts(
    w13_words=ints(256, 64, 16, 4, 128, 4), w13_scales=ints(256, 64, 16, 128, 2), w13_global=floats(256),
    w2_words=ints(256, 64, 8, 4, 128, 4), w2_scales=ints(256, 64, 8, 128, 2), w2_global=floats(256),
    num_experts=256, dim=4096, hidden=2048)
for num_tokens in (8, 2048, 2560, 4096):
    experts_hopper(floats(num_tokens, 4096).bfloat16(), weights, ints(num_tokens, 6), floats(num_tokens, 6), 10.0)
"""


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    return compiled(LAUNCHES, tmp_path_factory.mktemp("hopper"))


def test_two_programs_or_more_fit_a_multiprocessor_without_spilling(launches: list[Compiled]) -> None:
    gemms = [launch for launch in launches if launch.name == "expert_gemm"]

    assert len(gemms) == 8
    # Four words of four pairs in each of four column groups, once for each width of a tile.
    for gemm, packed_multiplies in zip(gemms, (64, 64, 128, 128, 192, 192, 192, 192), strict=True):
        assert gemm.registers <= 128
        assert gemm.stack_bytes == 0
        assert gemm.shared_bytes <= 113 * 1024
        assert gemm.ptx.count("mul.rn.bf16x2") == packed_multiplies


def test_products_are_in_flight_while_the_next_weights_are_decoded(launches: list[Compiled], tmp_path: Path) -> None:
    """Where registers are short ptxas waits for each product instead, which no count of registers shows."""
    import triton

    for gemm in (launch for launch in launches if launch.name == "expert_gemm"):
        (tmp_path / "gemm.ptx").write_text(gemm.ptx, encoding="utf-8")
        ptxas = str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")
        command = [ptxas, "-arch=sm_90a", "-v", "gemm.ptx"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
        assert "Used" in said
        assert "serialized" not in said


def test_the_clamp_lets_nan_through(launches: list[Compiled]) -> None:
    for gate_up in (launch for launch in launches if launch.launch["name"] == "nvfp4_experts_hopper_gate_up"):
        assert "min.NaN.f32" in gate_up.ptx
        assert "min.f32" not in gate_up.ptx


def test_every_launch_of_a_layer_says_its_name_its_bytes_and_its_flops(launches: list[Compiled]) -> None:
    said = [launch.launch for launch in launches[-6:]]

    assert [one["name"] for one in said] == [
        "align_count",
        "align_place",
        "permute_columns",
        "nvfp4_experts_hopper_gate_up",
        "nvfp4_experts_hopper_down",
        "combine",
    ]
    rows, weights = 4096 * 6, 256 * 4096 * 2048
    gate_up, down, combine = said[3:]
    assert gate_up["flops"] == 2 * rows * 4096 * 4096
    assert gate_up["bytes"] == 2 * weights * 0.5625 + 4096 * 4096 * 2 + rows * 2048 * 2
    assert down["flops"] == 2 * rows * 4096 * 2048
    assert down["bytes"] == weights * 0.5625 + rows * (2048 + 4096) * 2
    assert combine["bytes"] == rows * (4096 * 2 + 8) + 4096 * 4096 * 2


def test_few_rows_reach_few_experts_and_so_few_bytes(launches: list[Compiled]) -> None:
    (gate_up, *_) = (launch.launch for launch in launches if launch.name == "expert_gemm")

    assert gate_up["bytes"] == 48 * 2 * 4096 * 2048 * 0.5625 + 8 * 4096 * 2 + 48 * 2048 * 2
