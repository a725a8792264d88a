"""Sort the routed rows by expert and cut them into tiles, on the GPU and without a trip to the host.

Contract: rows (token, pick) are numbered flat, token * K + pick. `sorted_rows[p]` is the flat row at place p when rows
are ordered by expert, and by number within one expert (a stable sort: the same input gives the same order). Tile i
covers places tile_start[i] .. tile_end[i] - 1, all of expert tile_expert[i]; tiles that do not exist have expert -1.
An expert gets as few tiles of BLOCK_T + EXTRA_T rows as hold its rows, and a tile more than BLOCK_T rows only where the
expert needs it: the rows that tiles of BLOCK_T would leave over go to its first tiles. Rows whose id is no expert are
left out.
Live when: the experts run on a GPU; `experts_hopper` does without for one token. COMPARE_ALL: few rows, one launch;
otherwise `_count` runs before `_place`.
"""

# N routed rows, E experts.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from kernels.checks import overlapped
from kernels.launch import launch

# Up to here every program reads all ids and counts what goes before its own rows; beyond, a launch counts first.
ROWS_COMPARED = 1024
OWN_ROWS = 32
CHUNK = 128
MAX_PROGRAMS = 128


@dataclass(frozen=True, slots=True)
class Tiles:
    """Where every routed row went; see the module's contract."""

    sorted_rows: Tensor  # int32 [N]
    expert: Tensor  # int32 [max tiles]
    start: Tensor
    end: Tensor

    @property
    def max_tiles(self) -> int:
        return self.expert.shape[0]


def _count_metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": "align_count", "bytes": args["ids_N"].nbytes + args["counts"].nbytes, "flops": 0}


def _place_metadata(grid: Any, kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    counts = 0 if args["COMPARE_ALL"] else args["counts"].nbytes
    moved = args["ids_N"].nbytes + counts + args["sorted_rows"].nbytes + 3 * args["tile_expert"].nbytes
    return {"name": "align_place", "bytes": moved, "flops": 0}


@triton.jit
def _ids(ids_N, row, real, E: tl.constexpr):  # type: ignore[no-untyped-def]
    """The experts of these rows; what is no expert counts as E."""
    id = tl.load(ids_N + row, mask=real, other=-1).to(tl.int32)
    return tl.where((id >= 0) & (id < E), id, E)


@triton.jit(launch_metadata=_count_metadata)
def _count(  # type: ignore[no-untyped-def]
    ids_N,
    counts,
    num_rows,
    rows_each,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    first = tl.program_id(0) * rows_each
    count_E = tl.zeros([BLOCK_E], tl.int32)
    for start in range(first, first + rows_each, CHUNK):
        row_C = start + tl.arange(0, CHUNK)
        count_E += tl.histogram(_ids(ids_N, row_C, (row_C < num_rows) & (row_C < first + rows_each), E), BLOCK_E)
    tl.store(counts + tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E), count_E)


@triton.jit(launch_metadata=_place_metadata)
def _place(  # type: ignore[no-untyped-def]
    ids_N,
    counts,
    sorted_rows,
    tile_expert,
    tile_start,
    tile_end,
    num_rows,
    rows_each,
    num_programs,
    max_tiles,
    tiles_each,
    E: tl.constexpr,
    BLOCK_T: tl.constexpr,
    EXTRA_T: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr,
    COMPARE_ALL: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_wait()
    program = tl.program_id(0)
    expert_E = tl.arange(0, BLOCK_E)
    first = program * rows_each
    if COMPARE_ALL:
        n_N = tl.arange(0, BLOCK_N)
        id_N = _ids(ids_N, n_N, n_N < num_rows, E)
        total_E = tl.histogram(id_N, BLOCK_E)
        row_C = first + tl.arange(0, CHUNK)
        real_C = row_C < num_rows
        id_C = _ids(ids_N, row_C, real_C, E)
        goes_before_CN = (id_N[None, :] < id_C[:, None]) | (
            (id_N[None, :] == id_C[:, None]) & (n_N[None, :] < row_C[:, None])
        )
        place_C = tl.sum(goes_before_CN.to(tl.int32), axis=1)
        tl.store(sorted_rows + place_C, row_C, mask=real_C & (id_C < E))
    else:
        total_E = tl.zeros([BLOCK_E], tl.int32)
        next_E = tl.zeros([BLOCK_E], tl.int32)
        for start in range(0, num_programs, 16):
            p_P = start + tl.arange(0, 16)
            count_PE = tl.load(
                counts + p_P[:, None] * BLOCK_E + expert_E[None, :], mask=(p_P < num_programs)[:, None], other=0
            )
            total_E += tl.sum(count_PE, axis=0)
            next_E += tl.sum(tl.where((p_P < program)[:, None], count_PE, 0), axis=0)
        next_E += tl.cumsum(total_E, axis=0) - total_E
        for start in range(first, first + rows_each, CHUNK):
            offset_C = tl.arange(0, CHUNK)
            row_C = start + offset_C
            real_C = (row_C < num_rows) & (row_C < first + rows_each)
            id_C = _ids(ids_N, row_C, real_C, E)
            same_CC = (id_C[None, :] == id_C[:, None]) & (offset_C[None, :] < offset_C[:, None])
            place_C = tl.gather(next_E, id_C, 0) + tl.sum(same_CC.to(tl.int32), axis=1)
            tl.store(sorted_rows + place_C, row_C, mask=real_C & (id_C < E))
            next_E += tl.histogram(id_C, BLOCK_E)

    total_E = tl.where(expert_E < E, total_E, 0)
    expert_start_E = tl.cumsum(total_E, axis=0) - total_E
    num_tiles_E = (total_E + BLOCK_T + EXTRA_T - 1) // (BLOCK_T + EXTRA_T)
    tile_stop_E = tl.cumsum(num_tiles_E, axis=0)
    for offset in range(0, tiles_each, 16):
        tile_C = program * tiles_each + offset + tl.arange(0, 16)
        mine_C = (tile_C < max_tiles) & (tile_C < (program + 1) * tiles_each)
        owner_C = tl.sum((tile_stop_E[None, :] <= tile_C[:, None]).to(tl.int32), axis=1)
        is_owner_CE = (expert_E[None, :] == owner_C[:, None]).to(tl.int32)
        index_C = tile_C - tl.sum(is_owner_CE * (tile_stop_E - num_tiles_E)[None, :], axis=1)
        first_C = tl.sum(is_owner_CE * expert_start_E[None, :], axis=1)
        total_C = tl.sum(is_owner_CE * total_E[None, :], axis=1)
        left_over_C = tl.maximum(total_C - BLOCK_T * tl.sum(is_owner_CE * num_tiles_E[None, :], axis=1), 0)
        begin_C = index_C * BLOCK_T + tl.minimum(index_C * EXTRA_T, left_over_C)
        stop_C = (index_C + 1) * BLOCK_T + tl.minimum((index_C + 1) * EXTRA_T, left_over_C)
        tl.store(tile_expert + tile_C, tl.where(owner_C < E, owner_C, -1), mask=mine_C)
        tl.store(tile_start + tile_C, first_C + begin_C, mask=mine_C)
        tl.store(tile_end + tile_C, first_C + tl.minimum(stop_C, total_C), mask=mine_C)


def align(topk_ids_TK: Tensor, num_experts: int, block_t: int, extra_t: int = 0, overlap: bool = False) -> Tiles:
    """Sort the rows of `topk_ids_TK` (contiguous, integer) by expert and cut them into tiles, as the module says."""
    num_rows = topk_ids_TK.numel()
    device = topk_ids_TK.device
    max_tiles = min(num_rows, num_experts + num_rows // (block_t + extra_t))
    # Places that no row takes (ids out of range) are never read: no tile covers them.
    tiles = Tiles(*(torch.empty(n, dtype=torch.int32, device=device) for n in (num_rows, *[max_tiles] * 3)))
    block_e = triton.next_power_of_2(num_experts + 1)
    compare_all = num_rows <= ROWS_COMPARED
    if compare_all:
        rows_each, counts = OWN_ROWS, tiles.start
    else:
        rows_each = triton.cdiv(num_rows, min(MAX_PROGRAMS, triton.cdiv(num_rows, CHUNK)))
        counts = torch.empty(triton.cdiv(num_rows, rows_each) * block_e, dtype=torch.int32, device=device)
    programs = triton.cdiv(num_rows, rows_each)
    if not compare_all:
        launch(_count, (programs,))(
            topk_ids_TK,
            counts,
            num_rows,
            rows_each,
            E=num_experts,
            BLOCK_E=block_e,
            CHUNK=CHUNK,
            **overlapped(overlap),
        )
    launch(_place, (programs,))(
        topk_ids_TK,
        counts,
        tiles.sorted_rows,
        tiles.expert,
        tiles.start,
        tiles.end,
        num_rows,
        rows_each,
        programs,
        max_tiles,
        triton.cdiv(max_tiles, programs),
        E=num_experts,
        BLOCK_T=block_t,
        EXTRA_T=extra_t,
        BLOCK_E=block_e,
        BLOCK_N=triton.next_power_of_2(num_rows) if compare_all else 1,
        CHUNK=OWN_ROWS if compare_all else CHUNK,
        COMPARE_ALL=compare_all,
        **overlapped(overlap),
    )
    return tiles
