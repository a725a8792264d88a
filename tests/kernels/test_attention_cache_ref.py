from __future__ import annotations

import pytest
import torch

from kernels import attention_cache_ref as cache_ref
from kernels.errors import NumericsError, ShapeError


def test_a_key_of_512_takes_584_bytes_and_a_page_is_padded_to_whole_keys() -> None:
    assert cache_ref.data_bytes(512) == 576
    assert cache_ref.page_bytes(512) == 37440
    assert cache_ref.num_rows(cache_ref.empty_key_pages(3, 512)) == 192


def test_the_bytes_of_a_key_lie_where_the_layout_says() -> None:
    pages = cache_ref.empty_key_pages(2, 128)
    key = torch.zeros(1, 128)
    key[0, 0], key[0, 63], key[0, 64], key[0, 127] = 448.0, -1.0, 3.0, -2.0

    cache_ref.write_rows(pages, torch.tensor([64 + 5]), key)

    page, used = pages[1], [5 * 192, 5 * 192 + 63]
    assert page[used].tolist() == [0x7E, 0xB8]  # 448 = 1.75 * 2^8, -1
    assert page[5 * 192 + 64 : 5 * 192 + 192].view(torch.bfloat16)[[0, 63]].tolist() == [3.0, -2.0]
    assert page[64 * 192 + 5 * 8] == 127
    assert pages.count_nonzero() == 2 + 1 + 2 + 1  # 448, -1; 0x4040 and 0xc000 without their zero bytes; the scale
    assert pages[0].count_nonzero() == 0


def test_decoded_keys_are_within_e4m3_rounding_and_their_rotary_channels_exact(generator: torch.Generator) -> None:
    keys = torch.randn(200, 512, generator=generator) * torch.logspace(-6, 3, 200)[:, None]
    keys = keys.bfloat16().float()
    pages, numbers = cache_ref.empty_key_pages(4, 512), torch.randperm(256, generator=generator)[:200]

    cache_ref.write_rows(pages, numbers, keys)
    decoded = cache_ref.read_rows(pages, numbers, 512)

    _, exponents = cache_ref.quantise_keys(keys)
    scale = torch.exp2(exponents.float() - 127).repeat_interleave(64, 1)
    # Half a step of 3 mantissa bits, or of the smallest subnormal.
    bound = torch.maximum(keys[:, :448].abs() / 16, scale * 2.0**-10)
    assert ((decoded[:, :448] - keys[:, :448]).abs() <= bound).all()
    assert torch.equal(decoded[:, 448:], keys[:, 448:])
    assert torch.equal(decoded.bfloat16().float(), decoded)


def test_a_scale_is_the_least_power_of_two_that_reaches_the_largest_number(generator: torch.Generator) -> None:
    largest = torch.tensor([448.0, 448.5, 224.0, 57344.0, 1e-6, 0.0])
    keys = torch.zeros(6, 128)
    keys[:, 17] = largest

    values, exponents = cache_ref.quantise_keys(keys)

    assert (exponents.int() - 127).flatten().tolist() == [0, 1, -1, 7, -13, -13]
    assert values[:, 17].float().tolist() == [448.0, 224.0, 448.0, 448.0, pytest.approx(1e-6 * 2**13, rel=0.07), 0.0]


def test_encoding_what_was_decoded_loses_nothing_more(generator: torch.Generator) -> None:
    pages, numbers = cache_ref.empty_key_pages(1, 256), torch.arange(64)
    cache_ref.write_rows(pages, numbers, torch.randn(64, 256, generator=generator))
    decoded = cache_ref.read_rows(pages, numbers, 256)

    cache_ref.write_rows(pages, numbers, decoded)

    assert torch.equal(cache_ref.read_rows(pages, numbers, 256), decoded)


@pytest.mark.parametrize("packed", [True, False])
def test_rows_outside_of_the_cache_read_as_zeros(packed: bool, generator: torch.Generator) -> None:
    cache = cache_ref.empty_key_pages(1, 128) if packed else torch.zeros(64, 128)
    cache_ref.write_rows(cache, torch.arange(64), torch.randn(64, 128, generator=generator))

    keys = cache_ref.read_rows(cache, torch.tensor([[-1, 64, 63]]), 128)

    assert keys[0, :2].count_nonzero() == 0
    assert keys[0, 2].count_nonzero() > 0


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 57345.0])
def test_keys_without_a_scale_are_refused(number: float) -> None:
    keys = torch.zeros(1, 128)
    keys[0, 3] = number

    with pytest.raises(NumericsError, match="expected at most 57344"):
        cache_ref.quantise_keys(keys)


def test_a_head_dim_without_room_for_its_scales_is_refused() -> None:
    with pytest.raises(ShapeError, match="packed keys of head dim 576"):
        cache_ref.empty_key_pages(1, 576)
