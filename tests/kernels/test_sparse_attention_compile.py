"""What can be said of the sparse attention kernels without a GPU: compiled for sm_90 in the shapes made for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.sanitizer_arrivals import each_thread_arrives
from tests.kernels.compiling import Compiled, compiled

# A window of 128 and 512 picks of 512 channels; 64 heads, which have a kernel of their own on Hopper, or 48.
LAUNCHES = """
from kernels.attention_cache_ref import empty_key_pages
from kernels.sparse_attention import sparse_attention, sparse_attention_rows

def rows(queries, heads, cache):
    window, picks = (torch.zeros(queries, n, dtype=torch.int32) for n in (128, 512))
    q = torch.zeros(queries, heads, 512, dtype=torch.bfloat16)
    angles = torch.zeros(queries, 32)
    sparse_attention_rows(q, cache, window, cache, picks, torch.zeros(heads), 0.04, rotation=(angles, angles),
                          out_dtype=torch.bfloat16)

plain, packed = torch.zeros(64, 512, dtype=torch.bfloat16), empty_key_pages(1, 512)
for heads in (48, 64):
    rows(16, heads, plain)
    rows(128, heads, plain)
    rows(128, heads, packed)
rows(16, 64, packed)
sparse_attention(torch.zeros(128, 64, 512, dtype=torch.bfloat16), torch.zeros(128, 640, 512, dtype=torch.bfloat16),
                 torch.zeros(128, 640, dtype=torch.bool), torch.zeros(64), 0.04)
"""
PORTABLE = ["part", "whole", "packed", "gathered"]
HOPPER = ["hopper part", "hopper whole", "hopper packed", "hopper packed part"]
NAMES = ["part", "merge", "whole", "packed", *HOPPER[:1], "merge 64", *HOPPER[1:], "merge packed", "gathered"]
# Of one multiprocessor, for one program.
MAX_SHARED_BYTES = 227 * 1024


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    return dict(zip(NAMES, compiled(LAUNCHES, tmp_path_factory.mktemp("compiled")), strict=True))


def test_a_program_fits_a_multiprocessor_without_spilling(launches: dict[str, Compiled]) -> None:
    for name, launch in launches.items():
        assert launch.shared_bytes <= MAX_SHARED_BYTES, name
        # Triton 3.6 leaves 14 registers of the portable packed path in local memory, 3.7 none. Of Hopper's both leave
        # up to 4, none of them where keys are brought.
        limit = 64 if name == "packed" else 16 if "hopper packed" in name else 0
        assert launch.stack_bytes <= limit, name


@pytest.mark.parametrize("name", HOPPER)
def test_on_hopper_each_kind_of_warp_has_its_registers_and_its_products(
    name: str, launches: dict[str, Compiled]
) -> None:
    ptx = launches[name].ptx
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k16)\.f32\.(\w+)", ptx)
    key = "f16" if "packed" in name else "bf16"

    assert launches[name].name == "sparse_attention_hopper"
    assert products.count(("m64n64k16", key)) == 512 // 16
    assert products.count(("m64n128k16", key)) == 2 * 64 // 16
    grown = set(re.findall(r"setmaxnreg\.inc\.sync\.aligned\.u32\s+(\d+)", ptx))
    assert grown >= ({"136", "56"} if "packed" in name else {"80", "112"})


def test_on_hopper_plain_keys_are_copied_in_full_vectors(launches: dict[str, Compiled]) -> None:
    copies = re.findall(r"cp\.async\.cg\.shared\.global \[.*?\], \[.*?\], (0x[0-9a-f]+)", launches["hopper whole"].ptx)

    # 64 KB by 128 threads.
    assert copies == ["0x10"] * (65536 // 16 // 128)


def test_on_hopper_packed_keys_are_copied_ahead_and_decoded_in_full_vectors(launches: dict[str, Compiled]) -> None:
    ptx = launches["hopper packed"].ptx

    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global \[.*?\], \[.*?\], (0x[0-9a-f]+)", ptx)

    # 64 KB of a query by 256 threads, and its first half once more to where the tensor core wants it.
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == 65536 // 16 // 256
    # 576 bytes of 32 candidates by 128 threads, their scales and the rows of others: three times ahead of the loop and
    # twice in it.
    assert sorted(copies) == ["0x10"] * (5 * 576 * 32 // 16 // 128) + ["0x4"] * 5 + ["0x8"] * 5
    assert ptx.count("cvt.rn.f16x2.e4m3x2") == 448 * 64 // 128 // 2
    assert "satfinite" not in ptx


@pytest.mark.parametrize("name", HOPPER)
def test_on_hopper_a_thread_that_arrives_for_its_warps_does_so_right_after_a_barrier_of_theirs(
    name: str, launches: dict[str, Compiled]
) -> None:
    """What the others wrote or read before is then ordered before what waits for the arrival."""
    lines = launches[name].ptx.splitlines()
    shared = re.compile(r"\b(bar\.sync|st\.shared|ld\.shared|stmatrix|ldmatrix)")
    arrivals = [i for i, line in enumerate(lines) if re.search(r"@%p\d+ mbarrier\.arrive\.shared::cta", line)]

    # Of the query, of keys by halves or wholes, of probabilities, of places by halves or wholes, of the last factor.
    assert len(arrivals) == (7 if "packed" in name else 5)
    for arrival in arrivals:
        before = next(line for line in reversed(lines[:arrival]) if shared.search(line))
        assert "bar.sync" in before, before


@pytest.mark.parametrize("name", PORTABLE)
def test_no_warp_repeats_another_ones_product(name: str, launches: dict[str, Compiled]) -> None:
    """64 heads by 64 candidates of 512 on two warp groups: each takes half of the candidates, then half of the 512."""
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k16)", launches[name].ptx)

    assert products.count("m64n32k16") == 512 // 16
    assert products.count("m64n256k16") == 64 // 16


@pytest.mark.parametrize("name", PORTABLE)
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
    part, packed, merge = (launches[name].launch for name in ("part", "packed", "merge 64"))
    hopper_part, hopper_packed = (launches[name].launch for name in ("hopper part", "hopper packed"))

    assert part["flops"] == 4 * 16 * 640 * 48 * 512
    assert part["bytes"] == 16 * 640 * 1024 + 16 * 48 * 512 * 2 + 5 * 16 * 48 * 512 * 4
    assert packed["bytes"] == 128 * 640 * 584 + 2 * 128 * 48 * 512 * 2
    assert packed["name"] == "sparse_attention_part 128x48x512 of 640"
    assert hopper_part["flops"] == 4 * 16 * 640 * 64 * 512
    assert hopper_part["bytes"] == 16 * 640 * 1024 + 16 * 64 * 512 * 2 + 5 * 16 * 64 * 512 * 4
    assert hopper_packed["bytes"] == 128 * 640 * 584 + 2 * 128 * 64 * 512 * 2
    assert hopper_packed["name"] == "sparse_attention_hopper 128x64x512 of 640"
    assert merge["bytes"] == 5 * 16 * 64 * 512 * 4 + 16 * 64 * 512 * 2


def test_the_least_program_of_warp_roles_has_its_barriers_and_stores_that_racecheck_sees(tmp_path: Path) -> None:
    launch = "hand_over[(1,)](torch.empty(256, dtype=torch.int32), 5, ordered, num_warps=4)"
    code = f"from benchmarks.warp_roles import hand_over\nfor ordered in (True, False):\n    {launch}"

    ordered, unordered = (launch.ptx for launch in compiled(code, tmp_path))

    steps = [re.findall(r"mbarrier\.(?:arrive|try_wait)|ld\.shared\.v2", ptx) for ptx in (ordered, unordered)]
    assert [sorted(found) for found in steps] == [sorted(steps[0])] * 2
    # Who takes the numbers comes first: it waits before it reads them, or after.
    assert steps[0][:3] == ["mbarrier.try_wait", "ld.shared.v2", "mbarrier.arrive"]
    assert steps[1][:3] == ["ld.shared.v2", "mbarrier.try_wait", "mbarrier.arrive"]
    assert "stmatrix" not in ordered
    assert each_thread_arrives(ordered)[1] == 2


@pytest.mark.parametrize("name", HOPPER)
def test_for_the_sanitizer_each_thread_arrives_and_its_mbarrier_waits_for_all_of_them(
    name: str, launches: dict[str, Compiled]
) -> None:
    ptx, rewritten = each_thread_arrives(launches[name].ptx)

    inits = sorted(int(count) for count in re.findall(r"mbarrier\.init\.\S+ \[[^\]]+\], (\d+);", ptx))
    arrivals = sorted(int(count) for count in re.findall(r"\n\s*mbarrier\.arrive\.\S+ _, \[[^\]]+\], (\d+);", ptx))
    # Of 256 threads each counts 1, of 128 each 2. Two stages of keys wait for both halves, or for 128 copies and what
    # says which keys are there; all else for one kind of warps.
    assert inits == ([256] * 8 + [512] * 2 if "packed" in name else [256] * 6 + [384] * 2)
    assert arrivals == ([1] * 3 + [2] * 4 if "packed" in name else [1] * 2 + [2] * 3)
    assert rewritten == len(arrivals)
    assert not re.search(r"@%p\d+ mbarrier\.arrive", ptx)


def test_a_kernel_that_waits_for_bytes_is_left_as_it_is_for_the_sanitizer() -> None:
    ptx = "bar.sync 0, 128;\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];\n"

    assert each_thread_arrives(ptx) == ("bar.sync 0, 128;\nmbarrier.arrive.shared::cta.b64 _, [%r1], 2;\n", 1)
    bytes_too = ptx + "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;\n"
    assert each_thread_arrives(bytes_too) == (bytes_too, 0)
