"""Index keys of many sequences in one pool of pages of 64 keys, found through block tables.

Contract: a page belongs to one sequence until a fork; then full pages are shared, and the open page is copied,
because only open pages are written to. Keys are stored in the format the settings name and are read back by whoever
scores them.
"""

# B sequences, P pages of one sequence, N new keys, D index head dim.

from __future__ import annotations

import torch
from torch import Tensor

from kernels.index_page_ref import PAGE_SIZE, empty_pages, write_keys


class PagePool:
    """Pages of one layer's index keys; it grows by doubling and pages go back with the pool."""

    def __init__(self, index_head_dim: int, dtype: torch.dtype, device: torch.device | str) -> None:
        self.index_head_dim, self.dtype = index_head_dim, dtype
        self.pages = empty_pages(0, index_head_dim, dtype, device)
        self.num_used = 0

    def allocate(self, num_pages: int) -> Tensor:
        """The numbers of fresh pages, int64 [num_pages]."""
        needed = self.num_used + num_pages
        if needed > self.pages.shape[0]:
            grown = empty_pages(
                max(needed, 2 * self.pages.shape[0]), self.index_head_dim, self.dtype, self.pages.device
            )
            grown[: self.num_used] = self.pages[: self.num_used]
            self.pages = grown
        numbers = torch.arange(self.num_used, needed, device=self.pages.device)
        self.num_used = needed
        return numbers


class PagedKeys:
    """The index keys of the sequences of one cache, all of equal number."""

    def __init__(self, pool: PagePool, block_table_BP: Tensor, num_keys: int = 0) -> None:
        self.pool, self.block_table_BP, self.num_keys = pool, block_table_BP, num_keys

    def append(self, keys_BND: Tensor) -> None:
        """Writes new keys behind the present ones."""
        batch, num_new = keys_BND.shape[:2]
        if num_new == 0:
            return
        missing = -(-(self.num_keys + num_new) // PAGE_SIZE) - self.block_table_BP.shape[1]
        if missing > 0:
            fresh_BP = self.pool.allocate(batch * missing).view(batch, missing)
            self.block_table_BP = torch.cat((self.block_table_BP, fresh_BP), 1)
        place_N = torch.arange(self.num_keys, self.num_keys + num_new, device=keys_BND.device)
        slots_BN = self.block_table_BP[:, place_N // PAGE_SIZE] * PAGE_SIZE + place_N % PAGE_SIZE
        write_keys(self.pool.pages, slots_BN, keys_BND)
        self.num_keys += num_new

    def fork(self, n: int) -> PagedKeys:
        table_BP = self.block_table_BP.repeat_interleave(n, 0)
        if self.num_keys % PAGE_SIZE:
            open_B = table_BP[:, -1]
            fresh_B = self.pool.allocate(len(open_B))
            self.pool.pages[fresh_B] = self.pool.pages[open_B]
            table_BP[:, -1] = fresh_B
        return PagedKeys(self.pool, table_BP, self.num_keys)
