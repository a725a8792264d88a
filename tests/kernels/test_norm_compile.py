"""What can be said of the norm kernel without a GPU: what it compiles to for sm_90."""

from __future__ import annotations

import pytest

from tests.kernels.compiling import Compiled, compiled

# Of a prefill of 4096 tokens: a norm of the model's width, of 64 query heads with rotation, of keys that are part of a
# wider product, and index queries rotated alone. Then fp32 and the widest row.
LAUNCH = """
from kernels.norm import norm, rotate

bf16, turns = torch.bfloat16, torch.zeros(1, 4096, 1, 32, dtype=torch.complex64)
norm(torch.zeros(4096, 4096, dtype=bf16), 1e-6, torch.zeros(4096))
norm(torch.zeros(1, 4096, 64, 512, dtype=bf16), 1e-6, turns=turns)
norm(torch.zeros(1, 4096, 1024, dtype=bf16)[..., 512:], 1e-6, torch.zeros(512), turns[:, :, 0])
rotate(torch.zeros(1, 4096, 64, 128, dtype=bf16), turns)
norm(torch.zeros(1, 4096, 512), 1e-6, torch.zeros(512), turns[:, :, 0])
norm(torch.zeros(4096, 8192, dtype=bf16), 1e-6, torch.zeros(8192))
"""


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    return compiled(LAUNCH, tmp_path_factory.mktemp("compile"))


def test_nothing_spills_and_many_programs_share_a_multiprocessor(launches: list[Compiled]) -> None:
    assert [launch.name for launch in launches] == ["_norm"] * 6
    assert [launch.stack_bytes for launch in launches] == [0] * 6
    wide, heads, keys, index_queries, keys_fp32, widest = launches
    # Eight warps of a row of 4096 and sixteen of 8192; one warp of all the others.
    assert max(wide.registers, widest.registers) <= 40
    assert max(heads.registers, keys.registers, keys_fp32.registers) <= 104
    assert index_queries.registers <= 112
    assert max(launch.shared_bytes for launch in launches) <= 1024


def test_rows_are_moved_sixteen_bytes_at_a_time(launches: list[Compiled]) -> None:
    for launch in launches:
        # A weight's last 64 channels are two numbers a lane.
        assert launch.ptx.count("ld.global") - launch.ptx.count("ld.global.v4") <= 1
        assert launch.ptx.count("st.global") == launch.ptx.count("st.global.v4") > 0


def test_heads_wait_for_no_other_warp(launches: list[Compiled]) -> None:
    for launch in (launches[1], launches[3]):
        assert "bar.sync" not in launch.ptx


def test_every_launch_says_what_it_moves(launches: list[Compiled]) -> None:
    wide, heads, keys, index_queries, keys_fp32, _ = (launch.launch for launch in launches)

    turns = 4096 * 32 * 8
    assert wide["bytes"] == 2 * 4096 * 4096 * 2 + 4 * 4096
    assert heads["bytes"] == 2 * 4096 * 64 * 512 * 2 + turns
    assert keys["bytes"] == 2 * 4096 * 512 * 2 + 4 * 512 + turns
    assert index_queries["bytes"] == 2 * 4096 * 64 * 64 * 2 + turns
    assert keys_fp32["bytes"] == 2 * 4096 * 512 * 4 + 4 * 512 + turns
    assert (wide["name"], heads["name"]) == ("norm 4096 x 4096", "norm 262144 x 512, 64 rotated")
    assert index_queries["name"] == "rotate 262144 x 128, 64 rotated"
    assert wide["flops"] == 4 * 4096 * 4096
