"""What can be said of the plain experts without a GPU: they compile for sm_90, do not spill and use what Hopper has."""

from __future__ import annotations

import pytest

from tests.kernels.compiling import Compiled, compiled

# Few tokens of every kind in the Flash shape, then many; then the portable NVFP4 kernel.
LAUNCHES = """
from kernels.experts import experts
from kernels.experts_plain import bf16_experts, fp8_experts
from kernels.fp8_block_ref import Fp8Experts
from kernels.nvfp4_layout import Nvfp4Experts

def empty(*shape, dtype=torch.bfloat16): return torch.empty(shape, dtype=dtype, device="meta")
e4m3, fp32 = torch.float8_e4m3fn, torch.float32

plain = empty(256, 4096, 4096), empty(256, 4096, 2048)
blocks = Fp8Experts(w13=empty(256, 4096, 4096, dtype=e4m3), w13_scale=empty(256, 32, 32, dtype=fp32),
                    w2=empty(256, 4096, 2048, dtype=e4m3), w2_scale=empty(256, 32, 16, dtype=fp32))
packed = Nvfp4Experts(
    w13_codes=empty(256, 4096, 2048, dtype=torch.uint8), w13_scale=empty(256, 4096, 256, dtype=e4m3),
    w13_global=empty(256, dtype=fp32), w2_codes=empty(256, 4096, 1024, dtype=torch.uint8),
    w2_scale=empty(256, 4096, 128, dtype=e4m3), w2_global=empty(256, dtype=fp32))
for num_tokens in (8, 16384):
    routing = empty(num_tokens, 6, dtype=torch.int32), empty(num_tokens, 6, dtype=fp32)
    bf16_experts(empty(num_tokens, 4096), *plain, *routing, 10.0)
    fp8_experts(empty(num_tokens, 4096), blocks, *routing, 10.0)
    if num_tokens == 8:
        fp8_experts(empty(num_tokens, 4096), blocks, *routing, 10.0, quantise_activations=False)
experts(empty(8, 4096), packed, empty(8, 6, dtype=torch.int32), empty(8, 6, dtype=fp32), 10.0)
"""
LAYERS = [("few", "bf16"), ("few", "w8a8"), ("few", "w8a16"), ("many", "bf16"), ("many", "w8a8")]
PRODUCT = {"bf16": "f32.bf16.bf16", "w8a8": "f32.e4m3.e4m3", "w8a16": "f32.bf16.bf16"}


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    return compiled(LAUNCHES, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def gemms(launches: list[Compiled]) -> dict[tuple[str, str, str], Compiled]:
    """By tokens, kind and half of the layer."""
    found = [launch for launch in launches if launch.name == "_expert_gemm"][: 2 * len(LAYERS)]
    keys = [(*layer, half) for layer in LAYERS for half in ("gate_up", "down")]
    return dict(zip(keys, found, strict=True))


def test_no_kernel_of_the_layers_spills(launches: list[Compiled]) -> None:
    assert {launch.name: launch.stack_bytes for launch in launches if launch.stack_bytes} == {}


def test_products_are_of_a_warp_group_and_tiles_come_by_asynchronous_copies(
    gemms: dict[tuple[str, str, str], Compiled],
) -> None:
    for (_, kind, _), gemm in gemms.items():
        assert "wgmma.mma_async.sync.aligned.m64n" in gemm.ptx
        assert PRODUCT[kind] in gemm.ptx
        assert "mma.sync" not in gemm.ptx.replace("wgmma.mma_async.sync", "")
        assert "cp.async.cg.shared.global" in gemm.ptx


def test_a_sum_of_bf16_products_goes_on_while_the_next_tile_is_fetched(
    gemms: dict[tuple[str, str, str], Compiled],
) -> None:
    for (_, kind, _), gemm in gemms.items():
        assert ("wgmma.wait_group.sync.aligned 1" in gemm.ptx) == (kind == "bf16")


def test_e4m3_becomes_bf16_without_the_slow_conversion_from_fp16(gemms: dict[tuple[str, str, str], Compiled]) -> None:
    for half in ("gate_up", "down"):
        ptx = gemms["few", "w8a16", half].ptx
        assert "cvt.rn.f16x2.e4m3x2" in ptx
        assert "cvt.bf16.f16" not in ptx


def test_for_few_tokens_three_programs_fit_a_multiprocessor(gemms: dict[tuple[str, str, str], Compiled]) -> None:
    for (tokens, _, _), gemm in gemms.items():
        if tokens == "few":
            assert gemm.registers * 128 * 3 <= 65536
            assert gemm.shared_bytes * 3 <= 227 * 1024
        assert gemm.shared_bytes <= 227 * 1024


def test_the_clamp_lets_nan_through(launches: list[Compiled]) -> None:
    for gate_up in (launch for launch in launches if str(launch.launch["name"]).endswith("gate_up")):
        assert "min.NaN.f32" in gate_up.ptx
        assert "min.f32" not in gate_up.ptx


def test_every_launch_says_its_name_its_bytes_and_its_flops(launches: list[Compiled]) -> None:
    said = [launch.launch for launch in launches]

    assert all({"name", "bytes", "flops"} == one.keys() for one in said)
    names = [one["name"] for one in said]
    assert names[:4] == ["align_place", "bf16_experts_gate_up", "bf16_experts_down", "combine"]
    assert names[5:9] == ["fp8_rows", "fp8_experts_gate_up", "fp8_rows", "fp8_experts_down"]
    assert names[-3:] == ["nvfp4_experts_gate_up", "nvfp4_experts_down", "combine"]
    weights = 48 * 2 * 4096 * 2048
    assert said[1]["bytes"] == 2 * weights + 2 * 8 * 4096 + 2 * 48 * 2048
    assert said[6]["bytes"] == weights * (1 + 4 / 128**2) + 8 * 4096 + 4 * 48 * 2048
    assert said[-3]["bytes"] == weights * 0.5625 + 2 * 8 * 4096 + 2 * 48 * 2048
    assert said[1]["flops"] == said[6]["flops"] == said[-3]["flops"] == 2 * weights
    assert said[7] == {"name": "fp8_rows", "bytes": 48 * 2048 * 5 + 48 * 16 * 4, "flops": 2 * 48 * 2048}
