"""The small parts of a layer: rope, joined projections, compressors, RMS norm."""

from __future__ import annotations

import pytest
import torch

from engine.checkpoint import Tensors
from engine.compressor import Compressor
from engine.config import CSA, HCA, SLIDING, ModelConfig
from engine.projections import Projections
from engine.rope import Rope, make_ropes
from kernels.norm_ref import norm_ref, rotate_ref
from tests.engine.data.tiny import CONFIG


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("start", "number", "step"), [(0, 5, 1), (7, 1, 1), (3, 0, 1), (12, 4, 16)])
def test_turns_are_those_of_their_positions_whatever_was_asked_before(start: int, number: int, step: int) -> None:
    rope, fresh = Rope(10000.0, 8), Rope(10000.0, 8)
    for asked in (1, 2, 40):
        rope.turns(asked, 1)

    turns = rope.turns(start, number, step)

    angles = torch.arange(start, start + number * step, step).float()[:, None] * rope.frequency_F
    exact = torch.complex(angles.double().cos(), angles.double().sin())
    # Rounded once.
    torch.testing.assert_close(turns.to(torch.complex128), exact, atol=6e-8, rtol=0)
    assert torch.equal(turns, fresh.turns(start, number, step))


def test_turns_are_exact_from_the_first_table_on() -> None:
    # Where torch computed it, one thread's half of the first table of a process could be wrong by 5e-4.
    found = Rope(10000.0, 16).turns(0, 8192)

    angle = torch.arange(8192.0)[:, None] * Rope(10000.0, 16).frequency_F
    expected = torch.complex(angle.double().cos(), angle.double().sin())
    assert (found - expected).abs().max() < 1e-7


def test_the_last_channels_turn_in_interleaved_pairs_and_turn_back(generator: torch.Generator) -> None:
    rope = Rope(100.0, 4)
    x = torch.randn(2, 3, 5, 10, generator=generator)
    turns = rope.turns(6, 3)[None, :, None]

    turned = rotate_ref(x.clone(), turns)

    cos, sin = turns[0, 2, 0, 1].real, turns[0, 2, 0, 1].imag
    even, odd = x[1, 2, 4, 8], x[1, 2, 4, 9]
    torch.testing.assert_close(turned[1, 2, 4, 8:], torch.stack((even * cos - odd * sin, odd * cos + even * sin)))
    assert torch.equal(turned[..., :6], x[..., :6])
    torch.testing.assert_close(rotate_ref(turned, turns.conj_physical()), x)


def test_layers_that_compress_share_one_rope_and_the_others_another() -> None:
    ropes = make_ropes(ModelConfig.from_dict(CONFIG), "cpu")

    assert ropes[CSA] is ropes[HCA]
    assert ropes[CSA] is not ropes[SLIDING]
    assert (ropes[CSA].frequency_F[-1] < ropes[SLIDING].frequency_F[-1]).all()


def test_matrices_that_read_the_same_rows_give_what_each_gives_alone(generator: torch.Generator) -> None:
    matrices = [torch.randn(rows, 6, generator=generator) for rows in (3, 1, 8)]
    x = torch.randn(2, 5, 6, generator=generator)
    projections = Projections(matrices)

    for matrix, view, product in zip(matrices, projections.each(), projections.apply(x), strict=True):
        assert torch.equal(view, matrix)
        torch.testing.assert_close(product, x @ matrix.T)
    for first, end in ((0, 1), (1, 3), (2, 3)):
        for found, product in zip(projections.apply_some(x, first, end), projections.apply(x)[first:end], strict=True):
            torch.testing.assert_close(found, product)


def test_a_step_gets_its_turns_with_the_axes_of_heads_and_backwards() -> None:
    rope = make_ropes(ModelConfig.from_dict(CONFIG), "cpu")[CSA]
    for start, number in ((5, 3), (5, 3), (4096, 1), (5, 3)):
        step = rope.of_step(start, number)

        assert torch.equal(step.turns_TF, rope.turns(start, number))
        assert torch.equal(step.turns_1T1F, step.turns_TF[None, :, None])
        assert torch.equal(step.back_1T1F, step.turns_1T1F.conj().resolve_conj())


@pytest.mark.parametrize("number", [1, 3])
def test_a_step_gets_the_rotation_of_as_many_sequences_as_are_asked_for(number: int) -> None:
    rope = make_ropes(ModelConfig.from_dict(CONFIG), "cpu")[CSA]
    for batch in (1, 4, 1, 2):
        rotation = rope.of_step(9, number).rotation(batch)

        turns_QF = rope.turns(9, number).repeat(batch, 1)
        assert all(part_QF.is_contiguous() for part_QF in rotation)
        assert torch.equal(torch.complex(*rotation), turns_QF)


def test_an_open_window_in_bf16_closes_to_the_entries_of_its_numbers_in_fp32(generator: torch.Generator) -> None:
    config, closed = ModelConfig.from_dict(CONFIG), []
    norm, bias = torch.rand(64, generator=generator), torch.randn(4, 128, generator=generator)
    kv_BTU, gate_BTU = torch.randn(2, 2, 9, 128, generator=generator).bfloat16()
    for dtype in (torch.float32, torch.bfloat16):
        tensors = Tensors({"position_bias": bias, "kv_norm.weight": norm}, "tiny", dtype=dtype)
        rope = Rope(10000.0, 16)
        compressor = Compressor(tensors, config, rate=4, width=64, overlap=True, rope=rope, kernels="auto")
        state = compressor.new_state(2)
        for first, end in ((0, 1), (1, 6), (6, 7), (7, 9)):
            part = slice(first, end)
            entries = compressor.update(kv_BTU[:, part].to(dtype), gate_BTU[:, part].to(dtype), state, None)
            closed += [] if entries is None else [entries]
        assert state.pending_kv_BTU.dtype == dtype
        assert state.pending_kv_BTU.shape[1] == state.num_pending == 1

    assert [entries.dtype for entries in closed] == 4 * [torch.float32]
    assert torch.equal(torch.cat(closed[:2], 1), torch.cat(closed[2:], 1))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("width", [1, 6, 512])
def test_rms_norm_divides_by_the_root_mean_square_and_eps(rows: int, width: int, generator: torch.Generator) -> None:
    x, weight = torch.randn(rows, width, generator=generator), torch.randn(width, generator=generator)
    x[:-1] = 0

    normed = norm_ref(x, 0.25, weight)

    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 0.25).sqrt()
    torch.testing.assert_close(normed.double(), weight.double() * exact, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(norm_ref(x, 0.25).double(), exact, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(norm_ref(x[-1], 0.25).double(), exact[-1], atol=1e-6, rtol=1e-6)
