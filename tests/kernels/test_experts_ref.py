from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels import experts_ref as experts_module
from kernels import fp8_block_ref
from kernels.errors import ShapeError
from kernels.experts_ref import experts_ref, fp8_experts_ref
from kernels.fp8_block_ref import Fp8Experts
from tests.numerics import assert_close, relative_error

E, F_HIDDEN, D, K = 5, 24, 16, 2


def weights(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(E, 2 * F_HIDDEN, D, generator=generator), torch.randn(E, D, F_HIDDEN, generator=generator)


def one_token(x: Tensor, w13: Tensor, w2: Tensor, ids: list[int], gates: Tensor, limit: float) -> Tensor:
    out = torch.zeros(D)
    for expert, gate in zip(ids, gates, strict=True):
        hidden = w13[expert] @ x
        out += gate * (
            w2[expert] @ (F.silu(hidden[:F_HIDDEN].clamp(max=limit)) * hidden[F_HIDDEN:].clamp(-limit, limit))
        )
    return out


@pytest.mark.parametrize("num_tokens", [1, 3, 63])
def test_grouping_by_expert_equals_one_token_at_a_time(num_tokens: int, generator: torch.Generator) -> None:
    w13, w2 = weights(generator)
    x = torch.randn(num_tokens, D, generator=generator)
    ids = torch.randint(0, E, (num_tokens, K), generator=generator)
    gates = torch.rand(num_tokens, K, generator=generator)

    out = experts_ref(x, w13, w2, ids, gates, 2.0)

    expected = torch.stack([one_token(x[t], w13, w2, ids[t].tolist(), gates[t], 2.0) for t in range(num_tokens)])
    assert_close(out, expected, "fp32")


@pytest.mark.parametrize("num_tokens", [3, 9])
def test_all_tokens_on_one_expert_and_ids_out_of_range(num_tokens: int, generator: torch.Generator) -> None:
    w13, w2 = weights(generator)
    x = torch.randn(num_tokens, D, generator=generator)
    gates = torch.ones(num_tokens, K)
    only = experts_ref(x, w13, w2, torch.full((num_tokens, 1), 3), gates[:, :1], None)

    for nobody in (-1, E):
        ids = torch.tensor([[3, nobody]] * num_tokens)
        assert torch.equal(experts_ref(x, w13, w2, ids, gates, None), only)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 9])
def test_each_token_alone_equals_each_expert_with_its_tokens(
    num_tokens: int, quantised: bool, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    w13, w2 = weights(generator)
    x = torch.randn(num_tokens, D, generator=generator)
    ids = torch.randint(-1, E + 1, (num_tokens, K), generator=generator)
    gates = torch.rand(num_tokens, K, generator=generator)
    rounding = (torch.round, torch.trunc) if quantised else (None, None)
    found = []
    for limit in (0, 2 * 9):
        monkeypatch.setattr(experts_module, "MAX_SINGLE_PICKS", limit)
        found.append(experts_ref(x, w13, w2, ids, gates, 2.0, *rounding))

    assert found[0].shape == (num_tokens, D)
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-5)


def test_the_limit_is_one_sided_for_the_gate(generator: torch.Generator) -> None:
    w13 = torch.zeros(1, 2, 1)
    w2 = torch.ones(1, 1, 1)
    for gate, up, expected in ((-50.0, 1.0, F.silu(torch.tensor(-50.0))), (50.0, -50.0, torch.tensor(-100.0))):
        w13[0, 0, 0], w13[0, 1, 0] = gate, up
        out = experts_ref(torch.ones(1, 1), w13, w2, torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1), 10.0)
        assert torch.allclose(out, expected, rtol=1e-4)


def test_weights_that_do_not_fit_are_refused(generator: torch.Generator) -> None:
    w13, w2 = weights(generator)

    with pytest.raises(ShapeError, match="expected"):
        experts_ref(torch.ones(2, D), w13[:, 1:], w2, torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1), None)


def test_fp8_experts_are_the_decoded_weights_with_or_without_rows_through_e4m3(generator: torch.Generator) -> None:
    w13, w2 = weights(generator)
    x = torch.randn(6, D, generator=generator)
    ids, gates = torch.randint(0, E, (6, K), generator=generator), torch.rand(6, K, generator=generator)
    parts = (*fp8_block_ref.encode(w13), *fp8_block_ref.encode(w2))
    blocks = Fp8Experts(**dict(zip(("w13", "w13_scale", "w2", "w2_scale"), parts, strict=True)))
    decoded = fp8_block_ref.decode(*parts[:2]), fp8_block_ref.decode(*parts[2:])

    w8a16, w8a8 = (fp8_experts_ref(x, blocks, ids, gates, 2.0, quantise_activations=q) for q in (False, True))

    assert torch.equal(w8a16, experts_ref(x, *decoded, ids, gates, 2.0))
    assert 0.005 < relative_error(w8a8, w8a16) < 0.1
    assert torch.equal(fp8_experts_ref(x, blocks, ids, gates, 2.0, quantise_activations=False, factor=2.5), w8a16 * 2.5)
