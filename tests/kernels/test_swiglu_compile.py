"""What can be said of the SwiGLU kernel without a GPU: what it compiles to for sm_90."""

from __future__ import annotations

import pytest

from tests.kernels.compiling import Compiled, compiled

# bf16 with a limit, as the engine calls it, without one, and fp32.
LAUNCH = """
from kernels.swiglu import swiglu

x = torch.zeros(4096, 4096, dtype=torch.bfloat16)
swiglu(x, 10.0)
swiglu(x, None)
swiglu(x.float(), 10.0)
"""


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    return compiled(LAUNCH, tmp_path_factory.mktemp("compile"))


def test_nothing_spills_and_programs_fill_a_multiprocessor(launches: list[Compiled]) -> None:
    assert [launch.name for launch in launches] == ["_swiglu"] * 3
    assert [launch.stack_bytes for launch in launches] == [0] * 3
    # In bf16 sixteen programs of 128 threads share a multiprocessor, in fp32 twelve.
    assert [launch.registers <= most for launch, most in zip(launches, (32, 32, 40), strict=True)] == [True] * 3


def test_numbers_are_moved_sixteen_bytes_at_a_time(launches: list[Compiled]) -> None:
    # Eight numbers a thread.
    for launch, vectors in zip(launches, (1, 1, 2), strict=True):
        assert launch.ptx.count("ld.global.v4") == 2 * vectors
        assert launch.ptx.count("st.global.v4") == vectors


def test_the_operations_are_those_of_torch(launches: list[Compiled]) -> None:
    for launch in launches:
        # CUDA's exponential rounds its exponent down, and takes log2(e) in two parts.
        assert launch.ptx.count("fma.rm.ftz.f32") == 8
        assert launch.ptx.count("ex2.approx.ftz.f32") == 8
        assert launch.ptx.count("div.rn.f32") == 8
        assert "div.full" not in launch.ptx


def test_a_minimum_keeps_what_is_no_number(launches: list[Compiled]) -> None:
    assert [launch.ptx.count("min.NaN.f32") for launch in launches] == [16, 0, 16]
    assert [launch.ptx.count("max.NaN.f32") for launch in launches] == [8, 0, 8]


def test_every_launch_says_what_it_moves(launches: list[Compiled]) -> None:
    said = [launch.launch for launch in launches]

    numbers = 4096 * 2048
    assert [launch["bytes"] for launch in said] == [6 * numbers, 6 * numbers, 12 * numbers]
    assert said[0]["flops"] == 4 * numbers
    assert said[0]["name"] == "swiglu 4096 x 2048"
