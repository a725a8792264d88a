"""The best visible keys of every query on a GPU: masked, stable top-k by rounds of elimination and one sort.

Contract: `index_page_ref.select_ref` exactly, order and ties included. A candidate is its score's bits in an integer
order; a key that is not visible is no candidate. A program of `_eliminate` keeps the best K of one chunk, in the order
of their indices: it halves the range of the K-th best in registers until K lie above, then a prefix sum places them;
ties at the K-th go to the lower index. Rounds run until one chunk is left; `_sort` orders its K by (score, lower
index). Integers only, so bits repeat, and a row depends on no other.
Live when: scores and counts lie on a GPU. FIRST: candidates are the scores themselves, their index implied; otherwise
packed words of the round before. OVERLAP: a launch starts before the one ahead of it has ended.
Time: floor is one read of the scores at 4.3 TB/s, 1 us for 16 x 64k; three dependent launches cost more than that.
"""

# B sequences, T queries, R rows = B * T, S keys, K picks, C candidates of one chunk, G * L of them in one part.

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from kernels.checks import overlapped, overlaps, require, require_device
from kernels.errors import DtypeError, ShapeError
from kernels.launch import launch

# A chunk is what one program holds in registers: the first rounds spread a row over programs, the last takes it whole.
CHUNK = 8192
LAST_CHUNK = 16384
PART = 4096
# Candidates that one warp counts in one go.
LANE = tl.constexpr(128)
MAX_TOPK = 4096
# Counts of queries that see every key, kept by the shape of their scores.
KEPT_COUNTS = 64
# Below every score: no score but a NaN has these bits.
ABSENT = tl.constexpr(-(2**31))
ABSENT_WORD = tl.constexpr(-(2**63))
# Indices are packed reversed, so that a greater word is a lower index.
LOW = tl.constexpr(2**31 - 1)


def _metadata_of_round(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What a profiler is told: candidates read once, the kept written; no arithmetic on floats."""
    rows, chunks = grid
    read = rows * args["num_candidates"] * (4 if args["FIRST"] else 8)
    return {"name": "index_eliminate", "bytes": read + chunks * rows * args["K"] * 8, "flops": 0}


def _metadata_of_sort(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What a profiler is told: every pick read and written once."""
    return {"name": "index_sort", "bytes": grid[0] * args["K"] * 16, "flops": 0}


@triton.jit
def _key(score, visible):  # type: ignore[no-untyped-def]
    """The bits of fp32 scores in an integer order, -0.0 as 0.0."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    # The search wants a number above every key: the bits of the NaN that a GPU makes would leave none.
    return tl.where(visible, tl.minimum(bits ^ ((bits >> 31) & LOW), LOW - 1), ABSENT)


@triton.jit(launch_metadata=_metadata_of_round, do_not_specialize=["num_candidates"])
def _eliminate(  # type: ignore[no-untyped-def]
    candidates_RC,
    num_visible_R,
    kept_RK,
    num_candidates,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PART: tl.constexpr,
    FIRST: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    candidates_C = candidates_RC + row * num_candidates
    c_C = chunk * BLOCK_C + tl.arange(0, BLOCK_C)
    if FIRST:
        num_real = tl.minimum(num_candidates, tl.load(num_visible_R + row)).to(tl.int32)
        key_C = _key(tl.load(candidates_C + c_C, mask=c_C < num_real, other=0.0), c_C < num_real)
    else:
        num_real = num_candidates
        # The upper halves order them; the lower ones would only take registers.
        half_C = (candidates_C + c_C).to(tl.pointer_type(tl.int32), bitcast=True) + 1
        key_C = tl.load(half_C, mask=c_C < num_real, other=ABSENT)

    # At least K are at or above `low` and fewer at or above `high`; all are taken where no more than K are present.
    num_above = tl.sum((key_C > ABSENT).to(tl.int32), axis=0)
    low = tl.where(num_above > K, tl.min(tl.where(key_C > ABSENT, key_C, LOW), axis=0), ABSENT + 1)
    high = tl.max(key_C, axis=0) + 1
    while (num_above > K) & (low < high - 1):
        middle = (low & high) + ((low ^ high) >> 1)  # half of the sum, which could overflow
        num_above_middle = tl.sum((key_C >= middle).to(tl.int32), axis=0)
        enough = num_above_middle >= K
        low = tl.where(enough, middle, low)
        num_above = tl.where(enough, num_above_middle, num_above)
        high = tl.where(enough, high, middle)
    num_equal_kept = K - tl.sum((key_C > low).to(tl.int32), axis=0)

    # Once more over the chunk, in parts: a prefix sum of all of it would not fit in registers.
    kept_K = kept_RK + (row * tl.num_programs(1) + chunk) * K
    p_GL = tl.arange(0, PART // LANE)[:, None] * LANE + tl.arange(0, LANE)[None, :]
    num_before = 0  # in the parts before: those above `low`, and 2^16 times those equal to it
    for start in range(0, BLOCK_C, PART):
        c_GL = chunk * BLOCK_C + start + p_GL
        real_GL = c_GL < num_real
        if FIRST:
            key_GL = _key(tl.load(candidates_C + c_GL, mask=real_GL, other=0.0), real_GL)
            word_GL = (key_GL.to(tl.int64) << 32) | (c_GL ^ LOW).to(tl.int64)
        else:
            word_GL = tl.load(candidates_C + c_GL, mask=real_GL, other=ABSENT_WORD)
            key_GL = (word_GL >> 32).to(tl.int32)
        count_GL = (key_GL > low).to(tl.int32) + ((key_GL == low).to(tl.int32) << 16)
        count_G = tl.sum(count_GL, axis=1)
        before_GL = tl.cumsum(count_GL, axis=1) - count_GL + (tl.cumsum(count_G, axis=0) - count_G)[:, None]
        before_GL += num_before
        num_before += tl.sum(count_G, axis=0)
        kept_GL = (key_GL > low) | ((key_GL == low) & ((before_GL >> 16) < num_equal_kept))
        place_GL = (before_GL & 0xFFFF) + tl.minimum(before_GL >> 16, num_equal_kept)
        tl.store(kept_K + place_GL, word_GL, mask=kept_GL)
    k_K = tl.arange(0, BLOCK_K)
    tl.store(kept_K + k_K, tl.full([BLOCK_K], ABSENT_WORD, tl.int64), mask=(k_K >= num_above) & (k_K < K))


@triton.jit(launch_metadata=_metadata_of_sort)
def _sort(kept_RK, picks_RK, K: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    if OVERLAP:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    k_K = tl.arange(0, BLOCK_K)
    word_K = tl.load(kept_RK + row * K + k_K, mask=k_K < K, other=ABSENT_WORD)
    word_K = tl.sort(word_K, descending=True)
    pick_K = tl.where(word_K == ABSENT_WORD, -1, (word_K & LOW) ^ LOW)
    tl.store(picks_RK + row * K + k_K, pick_K, mask=k_K < K)


@lru_cache(KEPT_COUNTS)
def _all_visible(batch: int, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """Counts of queries that see every key; kept, because each layer of a decode step asks for the same ones."""
    with torch.inference_mode(False):
        return torch.full((batch, num_queries), num_keys, device=device)


def index_select(scores_BTS: Tensor, num_visible_BT: Tensor | None, index_topk: int) -> Tensor:
    """The best min(index_topk, S) visible keys of every query, int64 [B, T, K], best first; -1 where fewer are visible.

    Args:
        scores_BTS: fp32, free of NaN.
        num_visible_BT: int32 or int64; query t sees the first so many keys. None: all of them.
        index_topk: at most 4096.

    Raises:
        DtypeError: scores or counts of another type.
        ShapeError: counts that do not match, or a top-k out of range.
        DeviceError: the tensors are not on one GPU.
    """
    if num_visible_BT is None:
        num_visible_BT = _all_visible(*scores_BTS.shape, scores_BTS.device)
    require_device("index_select", scores_BTS, num_visible_BT)
    require(scores_BTS.dtype == torch.float32, DtypeError, "index scores", scores_BTS.dtype, "float32")
    require(
        num_visible_BT.dtype in (torch.int32, torch.int64),
        DtypeError,
        "visible counts",
        num_visible_BT.dtype,
        "int32 or int64",
    )
    batch, num_queries, num_keys = scores_BTS.shape
    require(
        num_visible_BT.shape == (batch, num_queries),
        ShapeError,
        "visible counts",
        tuple(num_visible_BT.shape),
        (batch, num_queries),
    )
    require(0 < index_topk <= MAX_TOPK, ShapeError, "index_topk", index_topk, f"1 to {MAX_TOPK}")
    topk, num_rows, device = min(index_topk, num_keys), batch * num_queries, scores_BTS.device
    picks_BTK = torch.empty(batch, num_queries, topk, dtype=torch.int64, device=device)
    if picks_BTK.numel() == 0:
        return picks_BTK
    overlap = overlapped(overlaps(device))
    block_k = triton.next_power_of_2(topk)
    candidates, num_visible = scores_BTS.contiguous(), num_visible_BT.contiguous()
    num_candidates, num_chunks, first = num_keys, 2, True
    while num_chunks > 1:
        last = num_candidates <= LAST_CHUNK
        block_c = max(triton.next_power_of_2(num_candidates), LANE.value) if last else CHUNK
        num_chunks = triton.cdiv(num_candidates, block_c)
        kept = torch.empty(num_rows, num_chunks * topk, dtype=torch.int64, device=device)
        launch(_eliminate, (num_rows, num_chunks))(
            candidates,
            num_visible,
            kept,
            num_candidates,
            K=topk,
            BLOCK_K=block_k,
            BLOCK_C=block_c,
            PART=min(block_c, PART),
            FIRST=first,
            num_warps=max(1, min(16, block_c // 512)),
            **overlap,
        )
        candidates, num_candidates, first = kept, num_chunks * topk, False
    launch(_sort, (num_rows,))(
        candidates, picks_BTK, K=topk, BLOCK_K=block_k, num_warps=max(1, min(16, block_k // 128)), **overlap
    )
    return picks_BTK
