"""What decoding remembers of the tokens so far, for a batch of sequences of equal length.

Contract, per layer: the window's last W - 1 keys; with compression the entries, the compressor's open window and the
overlap; for CSA the same for the index keys, which lie in pages. A fork repeats every sequence n times; forks do not
disturb each other.
"""

# B sequences, W window, N rows, D width, P queries, K rows of each.

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from engine.compressor import CompressorState
from engine.errors import InputError
from engine.pages import PagedKeys
from kernels.norm_ref import constant

# Rows kept of the newest queries: a step asks for some three, or for as many per sequence where lengths differ.
KEPT_ROWS = 64


def gather_rows(rows_BND: Tensor, numbers_BPK: Tensor) -> Tensor:
    """Each sequence's own rows at these numbers, [B, P, K, D]; numbers below 0 give row 0."""
    batch, num_rows, width = rows_BND.shape
    flat_N = numbers_BPK.clamp(min=0).flatten()
    if batch > 1:
        flat_N += (torch.arange(batch, device=flat_N.device) * num_rows).repeat_interleave(len(flat_N) // batch)
    return rows_BND.flatten(0, 1).index_select(0, flat_N).view(*numbers_BPK.shape, width)


def flat_rows(rows_BND: Tensor, numbers_BPK: Tensor) -> Tensor:
    """The same numbers as rows of all sequences laid end to end; -1 for numbers below 0."""
    start_B = torch.arange(len(rows_BND), device=numbers_BPK.device) * rows_BND.shape[1]
    return torch.where(numbers_BPK < 0, absent(numbers_BPK.device), numbers_BPK + start_B[:, None, None])


def absent(device: torch.device) -> Tensor:
    """-1, the number of no row, as `torch.where` takes it without making a tensor of it."""
    return constant(-1, device, torch.int64)


@lru_cache(KEPT_ROWS)
def newest_rows(batch: int, num_rows: int, capacity: int, width: int, device: torch.device) -> Tensor:
    """The last `width` of the `num_rows` rows of every sequence, which has room for `capacity`, as `flat_rows`.

    Layer after layer and step after step ask for the same ones, which depend on nothing but the arguments: they are
    kept, int64 [B, width], and must not be written to.
    """
    with torch.inference_mode(False):
        number_K = torch.arange(num_rows - width, num_rows, device=device)
        start_B1 = torch.arange(batch, device=device)[:, None] * capacity
        return torch.where(number_K < 0, absent(device), number_K + start_B1)


class Rows:
    """Rows [B, N, D] that only ever grow, in a buffer that doubles."""

    def __init__(self, empty_B0D: Tensor) -> None:
        self.buffer, self.num_rows = empty_B0D, 0

    def append(self, rows_BND: Tensor) -> None:
        needed = self.num_rows + rows_BND.shape[1]
        if needed == self.num_rows:
            return
        if needed > self.buffer.shape[1]:
            batch, _, width = self.buffer.shape
            grown = self.buffer.new_zeros(batch, max(needed, 2 * self.buffer.shape[1]), width)
            grown[:, : self.num_rows] = self.buffer[:, : self.num_rows]
            self.buffer = grown
        self.buffer[:, self.num_rows : needed] = rows_BND
        self.num_rows = needed

    def all(self) -> Tensor:
        return self.buffer[:, : self.num_rows]

    def gather(self, rows_BPK: Tensor) -> Tensor:
        return gather_rows(self.buffer, rows_BPK)

    def take(self, rows_BK: Tensor) -> Tensor:
        """Each sequence's rows at these numbers, [B, K, D]; all of them must exist."""
        if rows_BK.shape[0] == 1:
            return self.buffer.index_select(1, rows_BK[0])
        return self.gather(rows_BK.unsqueeze(1)).squeeze(1)

    def fork(self, n: int) -> Rows:
        copy = Rows(self.all().repeat_interleave(n, 0))
        copy.num_rows = self.num_rows
        return copy


@dataclass(slots=True)
class LayerCache:
    window_BWD: Tensor
    entries: Rows | None = None
    compressor: CompressorState | None = None
    index_keys: PagedKeys | None = None
    index_compressor: CompressorState | None = None

    def fork(self, n: int) -> LayerCache:
        return LayerCache(
            self.window_BWD.repeat_interleave(n, 0),
            self.entries and self.entries.fork(n),
            self.compressor and self.compressor.fork(n),
            self.index_keys and self.index_keys.fork(n),
            self.index_compressor and self.index_compressor.fork(n),
        )


@dataclass(slots=True)
class Cache:
    batch: int
    layers: list[LayerCache]
    length: int = field(default=0)  # tokens of every sequence

    def fork(self, n: int) -> Cache:
        """A cache of batch * n sequences: every sequence n times, in order (a, a, b, b for n = 2)."""
        if n < 1:
            raise InputError(f"fork({n}): expected at least 1")
        return Cache(self.batch * n, [layer.fork(n) for layer in self.layers], self.length)
