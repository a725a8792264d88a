from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from kernels import nvfp4_ref
from kernels.errors import ShapeError
from kernels.nvfp4_layout import Nvfp4Experts, permuted_columns, repack, round_global_scales
from kernels.nvfp4_unpack import unpack


def experts(generator: torch.Generator, *, num_experts: int = 3, dim: int = 80, hidden: int = 48) -> Nvfp4Experts:
    w13 = nvfp4_ref.encode(torch.randn(num_experts, 2 * hidden, dim, generator=generator))
    w2 = nvfp4_ref.encode(torch.randn(num_experts, dim, hidden, generator=generator))
    names = ("w13_codes", "w13_scale", "w13_global", "w2_codes", "w2_scale", "w2_global")
    return Nvfp4Experts(**dict(zip(names, (*w13, *w2), strict=True)))


def bf16_of(bits: Tensor) -> Tensor:
    """Sixteen bits as the fp32 value of a bf16."""
    return (bits.to(torch.int32) << 16).view(torch.float32)


def as_the_kernel_decodes(words: Tensor, scales: Tensor) -> Tensor:
    """The fp32 matrix [R, K] in the order of the matrix instruction's rows and columns, by the kernel's own steps."""
    row_tiles, chunks = words.shape[:2]
    unsigned = words.long() & 0xFFFFFFFF
    pairs = {
        (0, 0): unsigned,
        (1, 0): unsigned << 3,
        (0, 1): unsigned << 6,
        (1, 1): (unsigned << 1 & 0x80008000) | (unsigned >> 3 & 0x01800180) | (unsigned >> 7 & 0x00400040),
    }
    scale = scales.view(torch.uint8).view(row_tiles, chunks, 128, 4, 2).long() * 16 + 0x7000  # thread sub h
    out = torch.empty(row_tiles, 4, 2, 8, chunks, 4, 4, 2, 4, 2)  # block warp h g chunk sub j d t c
    for (h, d), pair in pairs.items():
        for c in range(2):
            half = (pair & 0x81C081C0) >> (16 * c) & 0xFFFF
            value = bf16_of(half) * bf16_of(scale[..., h]).permute(0, 1, 3, 2)[..., None] * 512
            out[:, :, h, :, :, :, :, d, :, c] = value.view(row_tiles, chunks, 4, 4, 8, 4, 4).permute(
                0, 3, 4, 1, 2, 6, 5
            )
    return out.reshape(row_tiles * 64, chunks * 256)


def test_the_down_projection_decodes_from_its_words_exactly(generator: torch.Generator) -> None:
    weights = experts(generator)
    packed = repack(weights)

    for expert in range(3):
        decoded = as_the_kernel_decodes(packed.w2_words[expert], packed.w2_scales[expert])

        exact = nvfp4_ref.decode(weights.w2_codes[expert], weights.w2_scale[expert], torch.tensor(1.0))
        padded = torch.zeros(256, 256)
        padded[:80, :48] = exact
        assert torch.equal(decoded, padded[:, permuted_columns(256)])


def test_gate_and_up_of_one_hidden_channel_share_a_thread(generator: torch.Generator) -> None:
    weights = experts(generator)
    packed = repack(weights)

    decoded = as_the_kernel_decodes(packed.w13_words[1], packed.w13_scales[1])

    exact = nvfp4_ref.decode(weights.w13_codes[1], weights.w13_scale[1], torch.tensor(1.0))
    gate, up = torch.zeros(256, 256), torch.zeros(256, 256)
    gate[:48, :80], up[:48, :80] = exact[:48], exact[48:]
    halves = decoded.view(-1, 4, 2, 8, 256)
    columns = permuted_columns(256)
    assert torch.equal(halves[:, :, 0].reshape(256, 256), gate[columns][:, columns])
    assert torch.equal(halves[:, :, 1].reshape(256, 256), up[columns][:, columns])


def test_every_scale_byte_survives_the_five_bit_exponent() -> None:
    scale = torch.arange(1, 127, dtype=torch.uint8).view(126, 1)
    codes = nvfp4_ref.pack(torch.full((126, 16), 2, dtype=torch.uint8))
    weights = Nvfp4Experts(
        w13_codes=codes[:32].view(1, 32, 8),
        w13_scale=scale[:32].view(torch.float8_e4m3fn)[None],
        w13_global=torch.ones(1),
        w2_codes=codes[None, :16],
        w2_scale=scale[None, :16].view(torch.float8_e4m3fn),
        w2_global=torch.ones(1),
    )
    from kernels import nvfp4_layout

    stored = nvfp4_layout._five_bit_exponent(scale)

    assert weights.num_experts == 1
    assert torch.equal(bf16_of(stored.int() * 16 + 0x7000), scale.view(torch.float8_e4m3fn).float() * 2.0**117)


def test_permuted_columns_are_a_permutation_of_each_64() -> None:
    columns = permuted_columns(128)

    assert torch.equal(columns.view(2, 64).sort().values, torch.arange(128).view(2, 64))
    assert columns[:8].tolist() == [0, 1, 16, 17, 32, 33, 48, 49]


def test_weights_whose_shapes_disagree_are_refused(generator: torch.Generator) -> None:
    good = experts(generator)
    with pytest.raises(ShapeError, match="w13_scale"):
        Nvfp4Experts(
            w13_codes=good.w13_codes,
            w13_scale=good.w13_scale[:, :, :-1],
            w13_global=good.w13_global,
            w2_codes=good.w2_codes,
            w2_scale=good.w2_scale,
            w2_global=good.w2_global,
        )


def test_global_scales_through_bf16_are_off_by_up_to_two_to_the_minus_eight_and_nothing_else_changes(
    generator: torch.Generator,
) -> None:
    exact = (1 + torch.arange(256) / 256) * 2.0**-11
    weights = replace(experts(generator, num_experts=256, dim=16, hidden=16), w13_global=exact, w2_global=exact * 0.75)

    rounded = round_global_scales(weights, torch.bfloat16)

    for before, after in ((weights.w13_global, rounded.w13_global), (weights.w2_global, rounded.w2_global)):
        assert after.dtype == torch.float32
        assert torch.equal(after, after.bfloat16().float())
        assert 0.0035 < (after / before - 1).abs().max() <= 2.0**-8
    assert rounded.w2_codes is weights.w2_codes
    assert torch.equal(round_global_scales(weights, torch.float32).w2_global, weights.w2_global)


@pytest.mark.parametrize(("dim", "hidden"), [(80, 48), (256, 256), (304, 32)])
def test_what_was_repacked_comes_back_byte_for_byte(dim: int, hidden: int, generator: torch.Generator) -> None:
    def drawn(*shape: int, below: int = 256) -> Tensor:
        return torch.randint(below, shape, dtype=torch.uint8, generator=generator)

    packed = Nvfp4Experts(
        w13_codes=drawn(2, 2 * hidden, dim // 2),
        w13_scale=drawn(2, 2 * hidden, dim // 16, below=0x7F).view(torch.float8_e4m3fn),
        w13_global=torch.rand(2, generator=generator),
        w2_codes=drawn(2, dim, hidden // 2),
        w2_scale=drawn(2, dim, hidden // 16, below=0x7F).view(torch.float8_e4m3fn),
        w2_global=torch.rand(2, generator=generator),
    )

    again = unpack(repack(packed))

    for field in fields(packed):
        expected, found = getattr(packed, field.name), getattr(again, field.name)
        assert found.dtype == expected.dtype
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), field.name
