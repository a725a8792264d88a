from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import nvfp4_ref
from kernels.errors import DtypeError, ShapeError
from kernels.experts import experts
from kernels.experts_ref import experts_ref
from kernels.nvfp4_layout import Nvfp4Experts, round_global_scales
from tests.numerics import assert_close, relative_error

NUM_EXPERTS, TOPK = 5, 2


def make(
    generator: torch.Generator, device: str, num_tokens: int, dim: int = 80, hidden: int = 48
) -> tuple[Nvfp4Experts, Tensor, Tensor, Tensor]:
    w13 = nvfp4_ref.encode(torch.randn(NUM_EXPERTS, 2 * hidden, dim, generator=generator) * dim**-0.5)
    w2 = nvfp4_ref.encode(torch.randn(NUM_EXPERTS, dim, hidden, generator=generator) * hidden**-0.5)
    names = ("w13_codes", "w13_scale", "w13_global", "w2_codes", "w2_scale", "w2_global")
    weights = Nvfp4Experts(**{name: part.to(device) for name, part in zip(names, (*w13, *w2), strict=True)})
    x = 3 * torch.randn(num_tokens, dim, generator=generator)
    gates, ids = torch.randn(num_tokens, NUM_EXPERTS - 1, generator=generator).topk(TOPK)  # the last expert is idle
    return weights, x.to(device), ids.int().to(device), gates.softmax(-1).to(device)


def reference(weights: Nvfp4Experts, x: Tensor, ids: Tensor, gates: Tensor, limit: float | None) -> Tensor:
    w13 = nvfp4_ref.decode(weights.w13_codes, weights.w13_scale, weights.w13_global)
    w2 = nvfp4_ref.decode(weights.w2_codes, weights.w2_scale, weights.w2_global)
    return experts_ref(x, w13, w2, ids, gates, limit)


@pytest.mark.interpreter
@pytest.mark.parametrize("num_tokens", [1, 3, 63, 129])
def test_fp32_tokens_equal_the_reference(num_tokens: int, generator: torch.Generator, device: str) -> None:
    weights, x, ids, gates = make(generator, device, num_tokens)

    out = experts(x, weights, ids, gates, 2.0)

    assert_close(out, reference(weights, x, ids, gates, 2.0), "fp32")


@pytest.mark.interpreter
def test_no_limit_all_tokens_on_one_expert_and_ids_that_are_no_expert(generator: torch.Generator, device: str) -> None:
    weights, x, ids, gates = make(generator, device, 20)
    ids[:] = 2
    assert_close(experts(x, weights, ids, gates, None), reference(weights, x, ids, gates, None), "fp32")

    ids[::2, 0], ids[1::2, 1] = -1, NUM_EXPERTS

    assert_close(experts(x, weights, ids, gates, None), reference(weights, x, ids, gates, None), "fp32")


@pytest.mark.interpreter
def test_the_factor_multiplies_once(generator: torch.Generator, device: str) -> None:
    weights, x, ids, gates = make(generator, device, 3)

    plain, scaled = (experts(x, weights, ids, gates, 10.0, factor=factor) for factor in (None, 2.0))

    assert torch.equal(scaled, plain * 2.0)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 63, 300])
def test_bf16_tokens_stay_within_bf16_of_fp32_weights(num_tokens: int, generator: torch.Generator) -> None:
    weights, x, ids, gates = make(generator, "cuda", num_tokens, dim=320, hidden=176)
    x = x.bfloat16()

    out = experts(x, weights, ids, gates, 2.0)

    assert_close(out, reference(weights, x, ids, gates, 2.0), "bf16_layer")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_nan_stays_in_its_token_and_is_not_clamped_away(dtype: torch.dtype, generator: torch.Generator) -> None:
    weights, x, ids, gates = make(generator, "cuda", 33)
    x = x.to(dtype)
    clean = experts(x, weights, ids, gates, 2.0)
    x[4, 5] = float("nan")

    out = experts(x, weights, ids, gates, 2.0)

    assert out[4].isnan().all()
    assert torch.equal(torch.cat((out[:4], out[5:])), torch.cat((clean[:4], clean[5:])))


@pytest.mark.interpreter
def test_bad_input_is_refused_before_launch(generator: torch.Generator, device: str) -> None:
    weights, x, ids, gates = make(generator, device, 4)

    with pytest.raises(DtypeError, match="tokens"):
        experts(x.half(), weights, ids, gates, None)
    with pytest.raises(DtypeError, match="expert ids"):
        experts(x, weights, ids.long(), gates, None)
    with pytest.raises(DtypeError, match="routing weights"):
        experts(x, weights, ids, gates.half(), None)
    with pytest.raises(ShapeError, match="token width"):
        experts(x[:, :-16], weights, ids, gates, None)
    with pytest.raises(ShapeError, match="routing"):
        experts(x, weights, ids, gates[:, :-1], None)


@pytest.mark.interpreter
def test_an_id_of_no_expert_is_refused_before_launch_in_debug(
    generator: torch.Generator, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, x, ids, gates = make(generator, device, 4)
    ids[1, 0] = NUM_EXPERTS
    monkeypatch.setenv("KERNELS_DEBUG", "1")

    with pytest.raises(ShapeError, match=r"expert ids: \[5\], expected -1 or 0 to 4"):
        experts(x, weights, ids, gates, None)


@pytest.mark.interpreter
def test_global_scales_through_bf16_move_whole_experts_as_the_reference_says(
    generator: torch.Generator, device: str
) -> None:
    weights, x, ids, gates = make(generator, device, 5)
    rounded = round_global_scales(weights, torch.bfloat16)

    exact, peer = (experts(x, w, ids, gates, 2.0) for w in (weights, rounded))

    assert_close(peer, reference(rounded, x, ids, gates, 2.0), "fp32")
    assert 1e-4 < relative_error(peer, exact) < 1e-2
