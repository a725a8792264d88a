"""Index keys in pages of 64, their scores and their selection, in plain torch.

Contract: an fp8 page holds the e4m3 bytes of its 64 keys first and their 64 fp32 scales after them, 64 * (D + 4) bytes
in all; a page of plain keys holds 64 * D bfloat16 (or float32, to compare
implementations). score[t, s] = sum_h weight[t, h] * relu(scale * q[t, h] . key[s]), in fp32.
Ties go to the lower index, so that prefill and decode choose the same entries.
Live when: the index keys are scored on a machine without a GPU, or the reference is asked for.
"""

# B sequences, P pages of one sequence, S keys of one sequence, T queries, H index heads, D index head dim, K picks.

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernels.errors import DtypeError, ShapeError
from kernels.norm_ref import constant, divided, rounded

PAGE_SIZE = 64
SCALE_BYTES = 4
E4M3_MAX = 448.0
# Scores that are no numbers (a misread page can hold any bytes) rank last or first, but never above or below a mask.
SCORE_LIMIT = 1e20
# Elements of the largest intermediate: queries are scored in parts so that a long prefill stays small.
SCORE_CHUNK = 1 << 22
# Equal scores are told apart by this part of their size (and of TINY, for zeros) per index: two fp32 numbers differ by
# at least 2^-24 of it, float64 resolves 2^-52, so 2^25 keys find room in between.
TIE_STEP = 2.0**-50
TINY = 1e-60


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """Where key `i` of a page lies: its D value bytes at base + i * stride, and likewise its fp32 scale."""

    value_base: int
    value_stride: int
    scale_base: int
    scale_stride: int


def writer_layout(index_head_dim: int) -> PageLayout:
    """Values of all keys, then scales of all keys."""
    return PageLayout(
        value_base=0,
        value_stride=index_head_dim,
        scale_base=PAGE_SIZE * index_head_dim,
        scale_stride=SCALE_BYTES,
    )


def reader_layout(index_head_dim: int) -> PageLayout:
    """The layout that scores are read with; every reader, reference or GPU, asks here."""
    return PageLayout(
        value_base=0,
        value_stride=index_head_dim,
        scale_base=PAGE_SIZE * index_head_dim,
        scale_stride=SCALE_BYTES,
    )


def empty_pages(num_pages: int, index_head_dim: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Zeroed pages: uint8 [num_pages, 64 * (D + 4)] for float8_e4m3fn keys, [num_pages, 64 * D] of a plain type."""
    if dtype == torch.float8_e4m3fn:
        return torch.zeros(num_pages, PAGE_SIZE * (index_head_dim + SCALE_BYTES), dtype=torch.uint8, device=device)
    if dtype in (torch.bfloat16, torch.float32):
        return torch.zeros(num_pages, PAGE_SIZE * index_head_dim, dtype=dtype, device=device)
    raise DtypeError(f"index keys of {dtype}: expected float8_e4m3fn, bfloat16 or float32")


def quantise_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [..., D] to float8_e4m3fn with one fp32 scale each [...]; a key of zeros gets scale 1."""
    keys = keys.float()
    scale = divided(keys.abs().amax(-1), E4M3_MAX)
    scale = torch.where(scale == 0, 1.0, scale)
    return (keys / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale


def write_keys(pages: Tensor, slots: Tensor, keys: Tensor) -> None:
    """Store `keys` [..., D] at `slots` [...] (page * 64 + place in the page), in place, in the pages' own format."""
    dim = keys.shape[-1]
    flat, slots = keys.reshape(-1, dim), slots.reshape(-1)
    page, place = slots // PAGE_SIZE, slots % PAGE_SIZE
    if pages.dtype != torch.uint8:
        pages.view(-1, PAGE_SIZE, dim)[page, place] = flat.to(pages.dtype)
        return
    layout = writer_layout(dim)
    values, scale = quantise_keys(flat)
    pages[page[:, None], _bytes_of(place, layout.value_base, layout.value_stride, dim)] = values.view(torch.uint8)
    scale_bytes = scale.contiguous().view(torch.uint8).view(-1, SCALE_BYTES)
    pages[page[:, None], _bytes_of(place, layout.scale_base, layout.scale_stride, SCALE_BYTES)] = scale_bytes


def _bytes_of(place: Tensor, base: int, stride: int, width: int) -> Tensor:
    """Byte offsets within a page, [len(place), width]."""
    return base + place[:, None] * stride + torch.arange(width, device=place.device)


def read_keys(pages: Tensor, block_table_BP: Tensor, num_keys: int, index_head_dim: int) -> Tensor:
    """The fp32 keys [B, num_keys, D] of every sequence whose pages `block_table_BP` lists in order.

    Raises:
        ShapeError: the block table has too few pages for `num_keys`.
    """
    num_pages = -(-num_keys // PAGE_SIZE)
    if num_pages > block_table_BP.shape[1]:
        raise ShapeError(
            f"{num_keys} index keys in a block table of {block_table_BP.shape[1]} pages: expected at least {num_pages}"
        )
    pages_BPX = _pages_of(pages, block_table_BP[:, :num_pages])
    if pages.dtype != torch.uint8:
        return rounded(pages_BPX.view(pages_BPX.shape[0], -1, index_head_dim)[:, :num_keys], torch.float32)
    layout = reader_layout(index_head_dim)
    values = _records(pages_BPX, layout.value_base, layout.value_stride, index_head_dim).view(torch.float8_e4m3fn)
    scales = _records(pages_BPX, layout.scale_base, layout.scale_stride, SCALE_BYTES).view(torch.float32)
    return (values.float() * scales).flatten(1, 2)[:, :num_keys]


def _pages_of(pages: Tensor, table_BP: Tensor) -> Tensor:
    """The listed pages [B, P, X]; those of a lone sequence follow each other and on the CPU need no copy."""
    if table_BP.shape[0] == 1 and table_BP.is_cpu and table_BP.numel():
        (numbers,) = table_BP.tolist()
        first, end = numbers[0], numbers[0] + len(numbers)
        if numbers == list(range(first, end)):
            return pages[first:end].unsqueeze(0)
    return pages.index_select(0, table_BP.flatten().long()).view(*table_BP.shape, pages.shape[1])


def _records(pages_BPX: Tensor, base: int, stride: int, width: int) -> Tensor:
    """`width` bytes of each of the 64 keys of every page, contiguous: uint8 [B, P, 64, width]."""
    batch, num_pages, page_bytes = pages_BPX.shape
    sizes, strides = (batch, num_pages, PAGE_SIZE, width), (num_pages * page_bytes, page_bytes, stride, 1)
    # Offsets count from the start of the memory, and a lone sequence's pages may lie further on in it.
    return pages_BPX.as_strided(sizes, strides, pages_BPX.storage_offset() + base).contiguous()


def scores_ref(q_BTHD: Tensor, keys_BSD: Tensor, weights_BTH: Tensor, scale: float) -> Tensor:
    """Index scores fp32 [B, T, S]; NaN and infinities become -1e20 and +-1e20."""
    batch, num_queries, num_heads, _ = q_BTHD.shape
    step = max(1, SCORE_CHUNK // max(1, batch * num_heads * keys_BSD.shape[1]))
    if num_queries <= step:
        scores_BTS = _scores_of_part(q_BTHD, keys_BSD, weights_BTH, scale)
    else:
        parts = zip(q_BTHD.split(step, 1), weights_BTH.split(step, 1), strict=True)
        scores_BTS = torch.cat([_scores_of_part(q, keys_BSD, weights, scale) for q, weights in parts], 1)
    return torch.nan_to_num(scores_BTS, nan=-SCORE_LIMIT, posinf=SCORE_LIMIT, neginf=-SCORE_LIMIT)


def _scores_of_part(q_BTHD: Tensor, keys_BSD: Tensor, weights_BTH: Tensor, scale: float) -> Tensor:
    scaled_BTHD = rounded(q_BTHD, torch.float32) * constant(scale, q_BTHD.device)
    dots_BHS = torch.bmm(scaled_BTHD.flatten(1, 2), keys_BSD.mT).relu_()
    if q_BTHD.shape[1] == 1:
        return torch.bmm(rounded(weights_BTH, torch.float32), dots_BHS)
    dots_BTHS = dots_BHS.unflatten(1, q_BTHD.shape[1:3])
    return (weights_BTH.float().unsqueeze(2) @ dots_BTHS).squeeze(2)


def index_scores_ref(
    q_BTHD: Tensor, pages: Tensor, block_table_BP: Tensor, num_keys: int, weights_BTH: Tensor, scale: float
) -> Tensor:
    """Index scores fp32 [B, T, num_keys] straight from the pages."""
    return scores_ref(q_BTHD, read_keys(pages, block_table_BP, num_keys, q_BTHD.shape[-1]), weights_BTH, scale)


def select_ref(scores_BTS: Tensor, num_visible_BT: Tensor | None, index_topk: int) -> Tensor:
    """The best min(index_topk, S) visible keys of every query, int64 [B, T, K], best first; -1 where fewer are visible.

    `scores_BTS` must be finite. Equal scores go to the lower index. Without `num_visible_BT` all are visible.
    """
    num_keys = scores_BTS.shape[-1]
    if num_visible_BT is None and scores_BTS.is_cpu and scores_BTS.numel() == num_keys > index_topk:
        # One query: its scores need no ranks where the best of them, and the one after those, are all different.
        best = scores_BTS.topk(index_topk + 1, dim=-1)
        if all(score > after for score, after in pairwise(best.values.view(-1).tolist())):
            return best.indices[..., :index_topk]
    index_S = torch.arange(num_keys, dtype=torch.float64, device=scores_BTS.device)
    # torch.topk breaks ties as it likes, so it gets scores without ties: in float64 each is lowered by its index, in
    # steps far below what tells two fp32 scores apart. That is a fraction of the time of a stable sort.
    scores_BTS = scores_BTS.double()
    step_BTS = scores_BTS.abs() + constant(TINY, scores_BTS.device, torch.float64)
    ranked_BTS = torch.addcmul(scores_BTS, step_BTS, index_S, value=-TIE_STEP)
    if num_visible_BT is None:
        return ranked_BTS.topk(min(index_topk, num_keys), dim=-1).indices
    ranked_BTS.masked_fill_(index_S >= num_visible_BT[..., None], -torch.inf)
    picks_BTK = ranked_BTS.topk(min(index_topk, num_keys), dim=-1).indices
    return picks_BTK.masked_fill(picks_BTK >= num_visible_BT[..., None], -1)
