"""Expert parallelism: each process holds a run of a layer's experts, all see every token, partial sums are added.

Contract: output = sum over processes of what their experts give. What every process computes alike (a fused shared
expert) must come in with weight 1 / size; what is computed once (the shared expert beside them) comes after the sum.
Live when: expert_parallel_size is more than 1; the process group is torch.distributed's default one.
"""

# T tokens, D model dim, K experts per token.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.loading.experts import StoredExperts
from engine.topk import TopKOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShard:
    """The experts of process `rank` out of `size`."""

    rank: int
    size: int
    num_experts: int

    def __post_init__(self) -> None:
        if self.num_experts % self.size:
            raise ConfigError(
                f"settings: expert_parallel_size is {self.size}, expected a divisor of n_routed_experts "
                f"({self.num_experts})"
            )

    @property
    def num_local(self) -> int:
        return self.num_experts // self.size

    def take(self, weights: Tensor | StoredExperts) -> Tensor | StoredExperts:
        """The experts of this process out of all of a projection, whose first axis they are."""
        return weights[self.local] if isinstance(weights, Tensor) else weights.within(self.local)

    @property
    def local(self) -> slice:
        return slice(self.rank * self.num_local, (self.rank + 1) * self.num_local)

    def localise(self, picked: TopKOutput) -> TopKOutput:
        """Picks by local number; those of other processes become -1, which adds nothing."""
        if self.size == 1:
            return picked
        ids_TK = picked.topk_ids_TK - self.rank * self.num_local
        here_TK = (ids_TK >= 0) & (ids_TK < self.num_local)
        return TopKOutput(torch.where(here_TK, ids_TK, -1), picked.topk_weights_TK)

    def sum_over_processes(self, partial_TD: Tensor) -> Tensor:
        """The sum of every process's part, the same in all of them."""
        if self.size == 1:
            return partial_TD
        from torch import distributed

        if not distributed.is_initialized() or distributed.get_world_size() != self.size:
            raise ConfigError(
                f"settings: expert_parallel_size is {self.size}, expected a torch.distributed group of that size",
                hint="Start every process through engine.parallel.launch.spawn, or call init_process_group first.",
            )
        summed_TD = partial_TD.float()
        distributed.all_reduce(summed_TD)
        return summed_TD
