"""Attention keys packed in pages: e4m3 numbers with one power-of-two scale per 64, and the rotary channels in bf16.

Contract: a page holds 64 keys, and row r of a cache is key r % 64 of page r // 64. The keys' data come first, key after
key: D - 64 e4m3 bytes, then the last 64 channels in bf16. The keys' scales follow, 8 bytes a key: one ue8m0 byte
(2^(byte - 127)) per 64 e4m3 numbers, the rest of the 8 unused. A page is padded to a multiple of a key's data bytes. At
D = 512 a key takes 576 + 8 bytes and a page 37440. A scale is the least power of two at or above max(amax / 448, 1e-4);
powers of two make every decoded number exact in bf16.
Live when: the keys of attention lie packed (uint8) in the cache; plain keys lie as rows [S, D] in bf16 or fp32.
Source: FlashMLA, `tests/quant.py`, layout MODEL1.
"""

# S rows, P pages, N numbers of keys asked for, D head dim, G scales of one key.

from __future__ import annotations

import torch
from torch import Tensor

from kernels.errors import NumericsError, ShapeError
from kernels.norm_ref import divided

KEYS_PER_PAGE = 64
ROPE_CHANNELS = 64
GROUP = 64
SCALE_BYTES = 8
E4M3_MAX = 448.0
MIN_SCALE = 1e-4
# Readers multiply by 2^120 * scale in bf16, which ends below 2^128.
MAX_SCALE_EXPONENT = 7


def data_bytes(head_dim: int) -> int:
    """Bytes of one key without its scales.

    Raises:
        ShapeError: `head_dim` is not 128, 256 or 512; more scales than 7 have no room.
    """
    if head_dim not in (128, 256, 512):
        raise ShapeError(f"packed keys of head dim {head_dim}: expected 128, 256 or 512")
    return head_dim - ROPE_CHANNELS + 2 * ROPE_CHANNELS


def page_bytes(head_dim: int) -> int:
    """Bytes of one page, with its padding."""
    key = data_bytes(head_dim)
    return -(-KEYS_PER_PAGE * (key + SCALE_BYTES) // key) * key


def empty_key_pages(num_pages: int, head_dim: int, device: torch.device | str = "cpu") -> Tensor:
    """Zeroed pages, uint8 [num_pages, page_bytes]."""
    return torch.zeros(num_pages, page_bytes(head_dim), dtype=torch.uint8, device=device)


def num_rows(cache: Tensor) -> int:
    """How many rows a packed or plain cache has room for."""
    return cache.shape[0] * (KEYS_PER_PAGE if cache.dtype == torch.uint8 else 1)


def quantise_keys(keys_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers before the rotary channels as float8_e4m3fn [N, D - 64], and their ue8m0 bytes uint8 [N, G].

    Raises:
        NumericsError: a number is not finite, or so large that its scale would be above 2^7.
    """
    groups_NGX = keys_ND[:, :-ROPE_CHANNELS].float().unflatten(1, (-1, GROUP))
    amax_NG = groups_NGX.abs().amax(-1)
    largest = float(amax_NG.max()) if amax_NG.numel() else 0.0
    # Written so that NaN, which no comparison holds for, is refused too.
    if not largest <= E4M3_MAX * 2.0**MAX_SCALE_EXPONENT:
        raise NumericsError(f"a key of magnitude {largest}: expected at most {E4M3_MAX * 2.0**MAX_SCALE_EXPONENT}")
    # The least power of two at or above x = m * 2^e with 0.5 <= m < 1 is 2^(e - 1) for m = 0.5, else 2^e.
    mantissa, exponent = torch.frexp(divided(amax_NG, E4M3_MAX).clamp_min(MIN_SCALE))
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    values_NGX = torch.ldexp(groups_NGX, -exponent[..., None]).clamp(-E4M3_MAX, E4M3_MAX)
    return values_NGX.to(torch.float8_e4m3fn).flatten(1), (exponent + 127).to(torch.uint8)


def write_rows(cache: Tensor, rows_N: Tensor, keys_ND: Tensor) -> None:
    """Stores keys at these rows of a packed or plain cache, in place."""
    if cache.dtype != torch.uint8:
        cache[rows_N] = keys_ND.to(cache.dtype)
        return
    values, scales_NG = quantise_keys(keys_ND)
    rope = keys_ND[:, -ROPE_CHANNELS:].to(torch.bfloat16).contiguous()
    data_PKX, scales_PKX = _parts(cache, keys_ND.shape[1])
    page, place = rows_N // KEYS_PER_PAGE, rows_N % KEYS_PER_PAGE
    data_PKX[page, place] = torch.cat((values.view(torch.uint8), rope.view(torch.uint8)), 1)
    scales_PKX[page[:, None], place[:, None], torch.arange(scales_NG.shape[1], device=cache.device)] = scales_NG


def read_rows(cache: Tensor, rows_N: Tensor, head_dim: int) -> Tensor:
    """The keys fp32 [..., D] at rows [...] of a packed or plain cache; rows outside of the cache give zeros."""
    real = (rows_N >= 0) & (rows_N < num_rows(cache))
    rows_N = torch.where(real, rows_N, 0).long()
    if num_rows(cache) == 0:
        return torch.zeros(*rows_N.shape, head_dim, device=cache.device)
    if cache.dtype != torch.uint8:
        return torch.where(real[..., None], cache[rows_N].float(), 0.0)
    data_PKX, scales_PKX = _parts(cache, head_dim)
    page, place = rows_N // KEYS_PER_PAGE, rows_N % KEYS_PER_PAGE
    data, num_values = data_PKX[page, place], head_dim - ROPE_CHANNELS
    values = data[..., :num_values].contiguous().view(torch.float8_e4m3fn).float().unflatten(-1, (-1, GROUP))
    exponent = scales_PKX[page, place][..., : num_values // GROUP].int() - 127
    rope = data[..., num_values:].contiguous().view(torch.bfloat16).float()
    keys = torch.cat((torch.ldexp(values, exponent[..., None]).flatten(-2), rope), -1)
    return torch.where(real[..., None], keys, 0.0)


def _parts(pages: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Views of all keys' data uint8 [P, 64, data bytes] and of all keys' scales uint8 [P, 64, 8]."""
    end = KEYS_PER_PAGE * data_bytes(head_dim)
    data_PKX = pages[:, :end].unflatten(1, (KEYS_PER_PAGE, -1))
    return data_PKX, pages[:, end : end + KEYS_PER_PAGE * SCALE_BYTES].unflatten(1, (KEYS_PER_PAGE, SCALE_BYTES))
