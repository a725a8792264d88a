"""Attention over window and selected entries with a sink per head on a GPU: parts of the candidates, then their merge.

Contract: as `sparse_attention_ref`, with bf16 operands and fp32 sums for bf16 queries, full fp32 for fp32 queries.
Bitwise repeatable. A query's bits depend on the other queries only through the size of a split, which `choose_split`
takes from the shape; with `split_size` given (`BATCH_INVARIANT_SPLIT` is the named choice) they do not depend on them,
for the same number of candidates.
Floor: every gathered row read once per query (2 * D bytes, or 584 packed at D = 512) at 4.3 TB/s, or 4 * D flops per
candidate and head at 790 TFLOP/s, the longer.
Live when: tensors lie on a GPU of sm_80 or newer. One split: one launch of `sparse_attention_hopper` where it `fits`
(sm_90, bf16 queries, blocks of 64 heads of 512, rows of caches), else of `sparse_attention_part`; more: their fp32
parts are merged by `sparse_attention_merge`. Their heads say which lines are live under which constants.
"""

# B queries (batch and tokens flattened), H heads, D head dim, N candidates, W window rows, K entry rows, S cache rows,
# F rotated pairs, R parts.

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from kernels.attention_cache_ref import data_bytes, num_rows, page_bytes
from kernels.checks import interpreting, overlapped, overlaps, require, require_device
from kernels.errors import DtypeError, ShapeError
from kernels.launch import launch
from kernels.sparse_attention_hopper import HEADS, fits, sparse_attention_hopper
from kernels.sparse_attention_merge import sparse_attention_merge
from kernels.sparse_attention_part import sparse_attention_part
from kernels.sparse_attention_ref import Rotation

# Candidates of a split whatever the batch, so that a query's bits do not depend on it.
BATCH_INVARIANT_SPLIT = 256
# Programs that run at a time on an H200; one fills a multiprocessor.
PROGRAMS = 132
BLOCK_N = 64
# Blocks that `sparse_attention_hopper` takes sooner as they are than in two parts that are then merged.
HOPPER_WHOLE_BLOCKS = 10


def choose_split(num_programs: int, num_candidates: int, whole_blocks: int = 0) -> int:
    """Candidates of a split, a multiple of `BLOCK_N`: as many splits as keep an H200 busy, one if it is so anyway.

    Args:
        num_programs: queries times blocks of heads.
        whole_blocks: so many blocks or fewer are not cut in two.
    """
    blocks = max(1, -(-num_candidates // BLOCK_N))
    splits = min(blocks, max(1, PROGRAMS // max(1, num_programs)))
    if splits == 2 and blocks <= whole_blocks:
        splits = 1
    return -(-blocks // splits) * BLOCK_N


def sparse_attention(
    q_BHD: Tensor,
    entries_BND: Tensor,
    valid_BN: Tensor | None,
    sinks_H: Tensor,
    scale: float,
    *,
    split_size: int | None = None,
    rotation: Rotation | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The attention output [B, H, D] over entries gathered already; those that do not count are not read.

    Args:
        q_BHD: bf16 or fp32; bf16 queries take bf16 entries.
        valid_BN: bool, which entries count; None for all.
        scale: of the logits, usually D ** -0.5.
        split_size: candidates of a split, None for `choose_split`.
        rotation: cos and sin [B, F]; the last 2 * F channels of the output are rotated back by them.
        out_dtype: fp32 or bf16.

    Raises:
        DtypeError, ShapeError, DeviceError: before any launch.
    """
    batch, num_candidates = q_BHD.shape[0], entries_BND.shape[1]
    expected = (batch, num_candidates, q_BHD.shape[2])
    require(tuple(entries_BND.shape) == expected, ShapeError, "entries", tuple(entries_BND.shape), expected)
    if valid_BN is None:
        valid_BN = torch.ones(expected[:2], dtype=torch.bool, device=q_BHD.device)
    require(valid_BN.dtype == torch.bool, DtypeError, "valid", valid_BN.dtype, "bool")
    require(tuple(valid_BN.shape) == expected[:2], ShapeError, "valid", tuple(valid_BN.shape), expected[:2])
    rows = entries_BND.contiguous().flatten(0, 1)
    valid = valid_BN.contiguous().view(torch.uint8)
    return _run(q_BHD, (rows, valid), None, sinks_H, scale, split_size, rotation, out_dtype)


def sparse_attention_rows(
    q_BHD: Tensor,
    window_SD: Tensor,
    window_rows_BW: Tensor,
    entries_SD: Tensor | None,
    entry_rows_BK: Tensor | None,
    sinks_H: Tensor,
    scale: float,
    *,
    split_size: int | None = None,
    rotation: Rotation | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The attention output [B, H, D] over rows of two caches, gathered by the kernel.

    Args:
        window_SD, entries_SD: both plain rows [S, D] or both pages uint8 of `attention_cache_ref`; no entries in a
            layer without compression.
        window_rows_BW, entry_rows_BK: int32 or int64 rows of each query; what is no row of the cache (-1) is no
            candidate.

    On Hopper, bf16 queries of 64 heads of 512 meet packed keys in fp16: their rotary channels lose bits below 2^-14 and
    are infinite above 65504. Other arguments and errors are those of `sparse_attention`.
    """
    batch = q_BHD.shape[0]
    window = (window_SD, window_rows_BW)
    entries = None if entries_SD is None or entry_rows_BK is None else (entries_SD, entry_rows_BK)
    require(
        (entries_SD is None) == (entry_rows_BK is None),
        ShapeError,
        "entries and their rows",
        "one given",
        "both or none",
    )
    for what, (cache, rows) in {"window": window, "entry": entries or window}.items():
        require(rows.dtype in (torch.int32, torch.int64), DtypeError, f"{what} rows", rows.dtype, "int32 or int64")
        require(
            rows.ndim == 2 and rows.shape[0] == batch, ShapeError, f"{what} rows", tuple(rows.shape), f"[{batch}, rows]"
        )
        require(
            cache.dtype == window_SD.dtype, DtypeError, f"{what} cache", cache.dtype, f"{window_SD.dtype} as the window"
        )
        require(
            rows.dtype == window_rows_BW.dtype,
            DtypeError,
            f"{what} rows",
            rows.dtype,
            f"{window_rows_BW.dtype} as the window's",
        )
    return _run(q_BHD, window, entries, sinks_H, scale, split_size, rotation, out_dtype)


def _run(
    q_BHD: Tensor,
    window: tuple[Tensor, Tensor],
    entries: tuple[Tensor, Tensor] | None,
    sinks_H: Tensor,
    scale: float,
    split_size: int | None,
    rotation: Rotation | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """Checks what both forms share and launches; a cache comes with its rows, or with which of them count (uint8)."""
    batch, num_heads, dim = q_BHD.shape
    gathered, packed = window[1].dtype == torch.uint8, window[0].dtype == torch.uint8
    cos_BF, sin_BF = rotation or (sinks_H, sinks_H)
    tensors = (q_BHD, *window, *(entries or ()), sinks_H, cos_BF, sin_BF)
    require_device("sparse_attention", *tensors)
    require(q_BHD.dtype in (torch.bfloat16, torch.float32), DtypeError, "queries", q_BHD.dtype, "bf16 or fp32")
    require(sinks_H.dtype == torch.float32, DtypeError, "sinks", sinks_H.dtype, "float32")
    require(out_dtype in (torch.bfloat16, torch.float32), DtypeError, "output", out_dtype, "bf16 or fp32")
    require(tuple(sinks_H.shape) == (num_heads,), ShapeError, "sinks", tuple(sinks_H.shape), (num_heads,))
    require(dim % 16 == 0, ShapeError, "head dim", dim, "a multiple of 16")
    require(
        split_size is None or (split_size > 0 and split_size % BLOCK_N == 0),
        ShapeError,
        "split size",
        split_size,
        f"a multiple of {BLOCK_N}",
    )
    if rotation is not None:
        require(cos_BF.dtype == sin_BF.dtype == torch.float32, DtypeError, "rotation", cos_BF.dtype, "float32")
        require(
            cos_BF.shape == sin_BF.shape and cos_BF.shape[0] == batch and 2 * cos_BF.shape[1] <= dim,
            ShapeError,
            "rotation",
            (tuple(cos_BF.shape), tuple(sin_BF.shape)),
            f"two of [{batch}, at most {dim // 2}]",
        )
    width = page_bytes(dim) if packed else dim
    plain = (torch.bfloat16,) if q_BHD.dtype == torch.bfloat16 else (torch.bfloat16, torch.float32)
    for cache, _ in (window, entries or window):
        require(packed or cache.dtype in plain, DtypeError, f"keys for {q_BHD.dtype} queries", cache.dtype, plain)
        require(cache.ndim == 2 and cache.shape[1] == width, ShapeError, "cache", tuple(cache.shape), f"[S, {width}]")
        require(cache.is_contiguous(), ShapeError, "cache strides", cache.stride(), "contiguous rows")
        require(cache.data_ptr() % 16 == 0, ShapeError, "cache address", cache.data_ptr(), "a multiple of 16")
    out_BHD = torch.empty(batch, num_heads, dim, dtype=out_dtype, device=q_BHD.device)
    if out_BHD.numel() == 0:
        return out_BHD

    upcast = interpreting() or q_BHD.dtype == torch.float32
    hopper = not interpreting() and torch.cuda.get_device_capability(q_BHD.device)[0] == 9
    # 64 heads by 64 candidates take most of an H200's shared memory, 16 by 32 at most 104 KB. Row look-ups add a stage.
    block_h, block_n, stages = (64, BLOCK_N, 2 if gathered else 3) if hopper else (16, 32, 2)
    if upcast:
        block_h, block_n, stages = 16, 16, 1
    block_h = min(block_h, max(16, triton.next_power_of_2(num_heads)))
    num_window, num_entries = window[1].shape[1], 0 if entries is None else entries[1].shape[1]
    programs = batch * triton.cdiv(num_heads, block_h)
    num_candidates = (triton.cdiv(num_window, BLOCK_N) * BLOCK_N if num_entries else num_window) + num_entries
    num_pairs = 0 if rotation is None else cos_BF.shape[1]
    by_blocks = fits(q_BHD, window, num_pairs)
    split_size = split_size or choose_split(programs, num_candidates, HOPPER_WHOLE_BLOCKS if by_blocks else 0)
    num_parts = max(1, triton.cdiv(num_candidates, split_size))
    whole = num_parts == 1
    q_BHD, sinks_H, cos_BF, sin_BF = (tensor.contiguous() for tensor in (q_BHD, sinks_H, cos_BF, sin_BF))
    parts_RBHD, lse_RBH = out_BHD, sinks_H
    if not whole:
        parts_RBHD = torch.empty(num_parts, *out_BHD.shape, dtype=torch.float32, device=q_BHD.device)
        lse_RBH = torch.empty(parts_RBHD.shape[:3], dtype=torch.float32, device=q_BHD.device)
    last = entries or window
    # That kernel reads pages by words.
    caches = [cache.view(torch.int32) if by_blocks and packed else cache for cache, _ in (window, last)]
    operands = (
        q_BHD,
        caches[0],
        window[1].contiguous(),
        caches[1],
        last[1].contiguous(),
        sinks_H,
        cos_BF,
        sin_BF,
        parts_RBHD,
        lse_RBH,
        scale * math.log2(math.e),
        num_window,
        num_entries,
        num_rows(window[0]),
        num_rows(last[0]),
        batch,
        num_parts,
        split_size,
    )
    which = {"F": num_pairs, "PACKED": packed, "WHOLE": whole, "ROTATE": whole and rotation is not None, "num_warps": 8}
    shape = {"H": num_heads, "D": dim, "BLOCK_D": triton.next_power_of_2(dim)}
    if by_blocks:
        launch(sparse_attention_hopper, (programs * num_parts,))(*operands, BLOCKS=num_heads // HEADS, **which)
    else:
        launch(sparse_attention_part, (programs * num_parts,))(
            *operands,
            KEY_BYTES=data_bytes(dim) if packed else 0,
            PAGE_BYTES=page_bytes(dim) if packed else 0,
            GATHERED=gathered,
            UPCAST=upcast,
            BLOCK_H=block_h,
            BLOCK_N=block_n,
            num_stages=stages,
            **which,
            **shape,
        )
    if not whole:
        launch(sparse_attention_merge, (batch * num_heads,))(
            parts_RBHD,
            lse_RBH,
            sinks_H,
            cos_BF,
            sin_BF,
            out_BHD,
            num_parts,
            batch * num_heads,
            F=num_pairs,
            ROTATE=rotation is not None,
            num_warps=1,
            **overlapped(overlaps(q_BHD.device)),
            **shape,
        )
    return out_BHD
