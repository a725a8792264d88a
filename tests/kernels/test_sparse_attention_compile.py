"""What can be said of the sparse attention kernels without a GPU: compiled for sm_90 in the shapes made for."""

from __future__ import annotations

import re

import pytest

from tests.kernels.compiling import Compiled, compiled

# 64 heads of 512, a window of 128 and 512 picks.
LAUNCHES = """
from kernels.attention_cache_ref import empty_key_pages
from kernels.sparse_attention import sparse_attention, sparse_attention_rows

def rows(queries, cache):
    window, picks = (torch.zeros(queries, n, dtype=torch.int32) for n in (128, 512))
    q = torch.zeros(queries, 64, 512, dtype=torch.bfloat16)
    angles = torch.zeros(queries, 32)
    sparse_attention_rows(q, cache, window, cache, picks, torch.zeros(64), 0.04, rotation=(angles, angles),
                          out_dtype=torch.bfloat16)

plain = torch.zeros(64, 512, dtype=torch.bfloat16)
rows(16, plain)
rows(128, plain)
rows(128, empty_key_pages(1, 512))
sparse_attention(torch.zeros(128, 64, 512, dtype=torch.bfloat16), torch.zeros(128, 640, 512, dtype=torch.bfloat16),
                 torch.zeros(128, 640, dtype=torch.bool), torch.zeros(64), 0.04)
"""
NAMES = ["part", "merge", "whole", "packed", "gathered"]
# Of one multiprocessor, for one program.
MAX_SHARED_BYTES = 227 * 1024


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    return dict(zip(NAMES, compiled(LAUNCHES, tmp_path_factory.mktemp("compiled")), strict=True))


def test_a_program_fits_a_multiprocessor_without_spilling(launches: dict[str, Compiled]) -> None:
    for name, launch in launches.items():
        assert launch.shared_bytes <= MAX_SHARED_BYTES, name
        # Triton 3.6 leaves 14 registers of the packed path in local memory, 3.7 none.
        assert launch.stack_bytes <= (64 if name == "packed" else 0), name


@pytest.mark.parametrize("name", ["part", "whole", "packed", "gathered"])
def test_no_warp_repeats_another_ones_product(name: str, launches: dict[str, Compiled]) -> None:
    """64 heads by 64 candidates of 512 on two warp groups: each takes half of the candidates, then half of the 512."""
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k16)", launches[name].ptx)

    assert products.count("m64n32k16") == 512 // 16
    assert products.count("m64n256k16") == 64 // 16


@pytest.mark.parametrize("name", ["part", "whole", "packed", "gathered"])
def test_keys_are_copied_ahead_in_full_vectors(name: str, launches: dict[str, Compiled]) -> None:
    ptx = launches[name].ptx
    copies = re.findall(r"cp\.async\.cg\.shared\.global \[.*?\], \[.*?\], (0x[0-9a-f]+)", ptx)

    # 64 KB plain, or 32 KB of codes (masked beyond 448) and 8 KB: by 256 threads, once ahead of the loop, once in it.
    assert len(copies) == 2 * ((32768 + 8192 if name == "packed" else 65536) // 16 // 256)
    assert set(copies) == {"0x10"}
    assert not re.search(r"ld\.local|st\.local", ptx)


def test_packed_keys_are_decoded_without_a_conversion(launches: dict[str, Compiled]) -> None:
    ptx = launches["packed"].ptx

    assert ptx.count("fma.rn.bf16x2") == 64 * 512 // 256 // 2
    assert "e4m3" not in ptx


def test_each_launch_says_what_it_moves_and_computes(launches: dict[str, Compiled]) -> None:
    part, packed, merge = (launches[name].launch for name in ("part", "packed", "merge"))

    assert part["flops"] == 4 * 16 * 640 * 64 * 512
    assert part["bytes"] == 16 * 640 * 1024 + 16 * 64 * 512 * 2 + 5 * 16 * 64 * 512 * 4
    assert packed["bytes"] == 128 * 640 * 584 + 2 * 128 * 64 * 512 * 2
    assert merge["bytes"] == 5 * 16 * 64 * 512 * 4 + 16 * 64 * 512 * 2
    assert packed["name"] == "sparse_attention_part 128x64x512 of 640"
