"""What can be said of the hyper-connection kernels without a GPU: what they compile to for sm_90."""

from __future__ import annotations

import re

import pytest

from tests.kernels.compiling import Compiled, compiled

# A prefill of 4096 tokens and four streams of 4096; the write of a decode differs in its number of blocks only. Then
# the pre-mix of 1024 tokens and of one.
LAUNCH = """
from kernels.hyper import read, write
from kernels.hyper_mix import parts_of, premix

x, parts = torch.zeros(4096, 4, 4096, dtype=torch.bfloat16), parts_of(torch.zeros(24, 16384))
z, base, scale = torch.zeros(4096, 24), torch.zeros(24), torch.zeros(3)
premix(x, parts, 1e-6)
read(x, z, base, scale, 1e-6)
write(x, torch.zeros(4096, 4096, dtype=torch.bfloat16), z, base, scale, 20, 1e-6)
premix(x[:1024], parts, 1e-6)
premix(x[:1], parts, 1e-6)
"""
TOKENS, WIDTH, X_BYTES = 4096, 16384, 4096 * 16384 * 2


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    return compiled(LAUNCH, tmp_path_factory.mktemp("compile"))


@pytest.fixture(scope="module")
def launches(every: list[Compiled]) -> dict[str, Compiled]:
    """Those of the prefill."""
    return {launch.name: launch for launch in every[:4]}


def test_nothing_spills(every: list[Compiled]) -> None:
    names = [launch.name for launch in every]
    assert names == ["_mix_slice", "_add_slices", "_read", "_write", *["_mix_slice", "_add_slices"] * 2]
    assert [launch.stack_bytes for launch in every] == [0] * 8


def test_the_premix_runs_three_exact_products_on_the_tensor_cores_and_two_programs_share_a_multiprocessor(
    every: list[Compiled],
) -> None:
    for mix in (every[0], every[4], every[6]):
        # Three parts of fn, each over a block of 64 numbers in steps of 16.
        assert mix.ptx.count("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16") == 12
        assert "cp.async.cg.shared.global" in mix.ptx
        assert mix.registers <= 128
        assert mix.shared_bytes <= 113 * 1024


def test_a_block_of_products_starts_from_zero_and_is_whole_before_it_is_added(every: list[Compiled]) -> None:
    for mix in (every[0], every[4], every[6]):
        # Of each product: whether it reads its accumulator. Without the waits the sums that follow would be read early.
        found = re.findall(r"wgmma\.mma_async[^}]*}, %rd\d+, %rd\d+, ([^,]+),|wgmma\.(wait)_group", mix.ptx)
        order = "".join("|" if wait else "0" if reads == "0" else "+" for reads, wait in found)
        assert order == "0+++|++++|++++|"


def test_streams_are_moved_sixteen_bytes_at_a_time_and_several_programs_share_a_multiprocessor(
    launches: dict[str, Compiled],
) -> None:
    read, write = launches["_read"], launches["_write"]

    assert read.ptx.count("ld.global.v4") == 4
    assert read.ptx.count("st.global.v4") == 1
    assert read.registers <= 40
    # Four streams and the output in, four streams out; nothing else within the loop over columns.
    assert write.ptx.count("ld.global.v4") == 5
    assert write.ptx.count("st.global.v4") == 4
    assert write.registers <= 85
    last_loop = write.ptx[write.ptx.rindex("$L__BB0_3:") :]
    assert "bar.sync" not in last_loop
    assert "ld.global.b32" not in last_loop


def test_every_launch_says_what_it_moves(launches: dict[str, Compiled]) -> None:
    said = {name: launch.launch for name, launch in launches.items()}

    sums = 4 * 8 * TOKENS * 25
    assert said["_mix_slice"]["bytes"] == X_BYTES + 6 * 24 * WIDTH + sums
    assert said["_mix_slice"]["flops"] == 2 * TOKENS * WIDTH * 25
    assert said["_add_slices"]["bytes"] == sums + 4 * TOKENS * 24
    assert said["_read"]["bytes"] == X_BYTES * 5 // 4 + TOKENS * 16
    assert said["_write"]["bytes"] == X_BYTES * 9 // 4 + TOKENS * 80
    assert said["_mix_slice"]["name"] == "hyper premix 4096 x 16384 x 24 bf16x3"
