"""What can be said of NVFP4 decode and encode without a GPU: they compile for sm_90, move words, and divide seldom."""

from __future__ import annotations

import pytest

from tests.kernels.compiling import Compiled, compiled

LAUNCHES = """
from kernels.nvfp4 import decode
from kernels import nvfp4_encode
from kernels.nvfp4_encode import encode

w = torch.zeros(2, 512, 4096, dtype=torch.bfloat16)
codes, scale, global_scale = encode(w, check=False)
encode(w, four_over_six=True, swizzled=True, global_scale=torch.ones(2), check=False)
decode(codes, scale, global_scale, dtype=torch.bfloat16)
nvfp4_encode.SEARCHING_PROGRAMS = 256  # those of one matrix
encode(w, four_over_six=True, check=False)
"""
WEIGHTS = 2 * 512 * 4096


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    return compiled(LAUNCHES, tmp_path_factory.mktemp("nvfp4"))


def test_24_warps_or_more_fit_a_multiprocessor_and_spill_next_to_nothing(launches: list[Compiled]) -> None:
    assert [launch.name for launch in launches] == [
        "amax",
        "_encode",
        "_encode",
        "_decode",
        "amax",
        "_encode",
        "_encode",
    ]
    # With four over six a few constants of the long arithmetic lie in memory, where the scale is found more than given.
    _, _, given, _, _, *found = launches
    assert [launches[i].stack_bytes for i in (0, 1, 3, 4)] == [0] * 4
    assert given.stack_bytes <= 16
    assert max(launch.stack_bytes for launch in found) <= 40
    for launch in launches:
        assert launch.registers <= 65536 // (24 * 32)


def test_memory_is_moved_in_wide_words(launches: list[Compiled]) -> None:
    amax, encode, _, decode, _, searching, _ = launches

    assert amax.ptx.count("ld.global.v4.b32") == 8 + 1  # 64 bf16 weights a thread, or 8 where a matrix ends
    assert amax.ptx.count("max.NaN.bf16x2") == 4 * (8 + 1)
    assert searching.ptx.count("ld.global.v4.b32") == 8 + 1 + 2
    assert encode.ptx.count("ld.global.v4.b32") == 4  # 32 bf16 weights a thread
    assert decode.ptx.count("st.global.v4.b32") == 4
    assert decode.ptx.count("cvt.rn.bf16x2.f32") == 16


def test_weights_are_divided_by_multiplying_and_nothing_else_is_fused(launches: list[Compiled]) -> None:
    _, encode, four_over_six, *_ = launches

    # A thread has 32 weights in 2 blocks, or with both candidates 16 in 1. A weight takes two to be divided and one to
    # be rounded, or two in all by the long arithmetic; a block's inverse takes four, and its scale two.
    assert encode.ptx.count("fma.rn.f32") == (3 + 2) * 32 + (4 + 2) * 2
    # With both candidates a weight takes two for each of its rough errors, the long arithmetic twice two, and the block
    # a scale more and what decides whether to trust the errors.
    assert four_over_six.ptx.count("fma.rn.f32") == (2 * 2 + 3 + 2 * 2) * 16 + (4 + 2 * 2 + 1)
    # The global scale, the inverse of what block scales divide by, and in the long arithmetic an inverse a block.
    assert encode.ptx.count("div.rn.f32") == 1 + 1 + 2
    assert four_over_six.ptx.count("div.rn.f32") == 2 * (1 + 1)
    assert encode.ptx.count("rcp.approx.ftz.f32") == four_over_six.ptx.count("rcp.approx.ftz.f32") == 2
    for launch in launches:
        assert "div.full" not in launch.ptx
        assert launch.ptx.count(".ftz") == launch.ptx.count("rcp.approx.ftz")  # codes lie in fp32's subnormals


def test_each_launch_says_what_it_moves(launches: list[Compiled]) -> None:
    amax, encode, _, decode, half_amax, searching, last = (launch.launch for launch in launches)

    packed = WEIGHTS // 2 + WEIGHTS // 16 + 2 * 4
    assert amax == {"name": "nvfp4_amax", "bytes": 2 * WEIGHTS, "flops": 0}
    assert encode == {"name": "nvfp4_encode", "bytes": 2 * WEIGHTS + packed, "flops": 8 * WEIGHTS}
    assert decode == {"name": "nvfp4_decode", "bytes": 2 * WEIGHTS + packed, "flops": 2 * WEIGHTS}
    half = WEIGHTS + packed // 2
    assert half_amax["bytes"] == WEIGHTS
    assert searching == {"name": "nvfp4_encode", "bytes": half + WEIGHTS, "flops": 18 * WEIGHTS // 2}
    assert last == {"name": "nvfp4_encode", "bytes": half, "flops": 18 * WEIGHTS // 2}
