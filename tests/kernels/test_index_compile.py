"""What can be said of the index kernels without a GPU: they compile for sm_90, spill nothing and move whole vectors."""

from __future__ import annotations

import re

import pytest

from tests.kernels.compiling import Compiled, compiled

CODE = """
from types import SimpleNamespace
from kernels.index import index_scores
from kernels.index_page_ref import empty_pages
from kernels.index_select import index_select

torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
for dtype, queries in ((torch.float8_e4m3fn, 1), (torch.bfloat16, 1), (torch.float8_e4m3fn, 5)):
    q, weights = torch.zeros(16, queries, 64, 128, dtype=torch.bfloat16), torch.zeros(16, queries, 64)
    table = torch.zeros(16, 1024, dtype=torch.int32)
    index_scores(q, empty_pages(1, 128, dtype), table, 65500, weights, 128**-0.5)
index_select(torch.zeros(16, 1, 65536), torch.zeros(16, 1, dtype=torch.int64), 2048)
"""


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    return compiled(CODE, tmp_path_factory.mktemp("launches"))


@pytest.fixture
def scores(launches: list[Compiled]) -> list[Compiled]:
    """Of fp8 and bf16 keys for one query, and of fp8 keys for five."""
    return launches[:3]


@pytest.fixture
def select(launches: list[Compiled]) -> list[Compiled]:
    return launches[3:]


def test_one_query_a_sequence_goes_to_the_hopper_kernel_and_more_to_the_plain_one(scores: list[Compiled]) -> None:
    assert [launch.name for launch in scores] == ["_score_pages", "_score_pages", "_index_scores"]


def test_three_programs_of_the_hopper_kernel_fit_a_multiprocessor_without_spilling(scores: list[Compiled]) -> None:
    for launch in scores[:2]:
        assert launch.registers <= 65536 // (3 * 128) // 8 * 8
        assert launch.stack_bytes == 0
        assert 3 * launch.shared_bytes <= 227 * 1024


@pytest.mark.parametrize(("number", "vectors", "conversions", "kind"), [(0, 4, 32, "f16"), (1, 8, 0, "bf16")])
def test_keys_come_in_whole_vectors_and_go_straight_to_the_tensor_core(
    scores: list[Compiled], number: int, vectors: int, conversions: int, kind: str
) -> None:
    ptx = scores[number].ptx
    loop = ptx[ptx.index("$L__BB0_", ptx.index("fence.proxy.async")) :]

    # Per thread: its part of one page, once in the loop and twice ahead of it.
    assert len(re.findall(r"ld\.global\.v4\.b32", loop)) == vectors
    assert ptx.count("cvt.rn.f16x2.e4m3x2") == conversions
    # The keys are the register operand: four registers, not a descriptor.
    pattern = rf"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.{kind}\.{kind} \{{[^}}]*\}}, \{{"
    assert len(re.findall(pattern, ptx)) == 128 // 16
    assert "st.shared" not in loop


def test_the_selection_takes_two_rounds_of_64k_scores_and_spills_nothing(select: list[Compiled]) -> None:
    assert [launch.name for launch in select] == ["_eliminate", "_eliminate", "_sort"]
    for launch in select:
        assert launch.stack_bytes == 0
        assert "ld.local" not in launch.ptx


def test_a_launch_says_what_it_reads_writes_and_computes(scores: list[Compiled], select: list[Compiled]) -> None:
    keys = 16 * 65500
    fp8, bf16, several = (launch.launch for launch in scores)

    assert (fp8["name"], bf16["name"]) == ("index_scores_hopper_fp8", "index_scores_hopper_bf16")
    assert fp8["bytes"] == keys * (132 + 4)
    assert bf16["bytes"] == keys * (256 + 4)
    assert fp8["flops"] == bf16["flops"] == keys * 64 * (2 * 128 + 3)
    assert several["flops"] == 5 * fp8["flops"]
    assert several["bytes"] == keys * (132 + 5 * 4)
    first, second, sort = (launch.launch for launch in select)
    kept = 16 * 8 * 2048 * 8
    assert first["bytes"] == 16 * 65536 * 4 + kept
    assert second["bytes"] == kept + 16 * 2048 * 8
    assert sort["bytes"] == 16 * 2048 * 16
