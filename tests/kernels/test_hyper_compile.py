"""What can be said of the hyper-connection kernels without a GPU: what they compile to for sm_90."""

from __future__ import annotations

import pytest

from tests.kernels.compiling import Compiled, compiled

# A prefill of 4096 tokens and four streams of 4096; the write of a decode differs in its number of blocks only.
LAUNCH = """
from kernels.hyper import read, write
from kernels.hyper_mix import premix

x = torch.zeros(4096, 4, 4096, dtype=torch.bfloat16)
z, base, scale = torch.zeros(4096, 24), torch.zeros(24), torch.zeros(3)
premix(x, torch.zeros(24, 16384), 1e-6)
read(x, z, base, scale, 1e-6)
write(x, torch.zeros(4096, 4096, dtype=torch.bfloat16), z, base, scale, 20, 1e-6)
"""
TOKENS, WIDTH, X_BYTES = 4096, 16384, 4096 * 16384 * 2


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    return {launch.name: launch for launch in compiled(LAUNCH, tmp_path_factory.mktemp("compile"))}


def test_nothing_spills(launches: dict[str, Compiled]) -> None:
    assert list(launches) == ["_mix_slice", "_add_slices", "_read", "_write"]
    assert {name: launch.stack_bytes for name, launch in launches.items()} == dict.fromkeys(launches, 0)


def test_the_premix_runs_three_exact_products_on_the_tensor_cores_and_two_programs_share_a_multiprocessor(
    launches: dict[str, Compiled],
) -> None:
    mix = launches["_mix_slice"]

    # Three parts of fn, each over a block of 64 numbers in steps of 16.
    assert mix.ptx.count("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16") == 12
    assert "cp.async.cg.shared.global" in mix.ptx
    assert mix.registers <= 128
    assert mix.shared_bytes <= 113 * 1024


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

    sums = 4 * 32 * TOKENS * 25
    assert said["_mix_slice"]["bytes"] == X_BYTES + 4 * 24 * WIDTH + sums
    assert said["_mix_slice"]["flops"] == 2 * TOKENS * WIDTH * 25
    assert said["_add_slices"]["bytes"] == sums + 4 * TOKENS * 24
    assert said["_read"]["bytes"] == X_BYTES * 5 // 4 + TOKENS * 16
    assert said["_write"]["bytes"] == X_BYTES * 9 // 4 + TOKENS * 80
    assert said["_mix_slice"]["name"] == "hyper premix 4096 x 16384 x 24 bf16x3"
