"""The lightning indexer: which compressed entries a query may attend to.

Contract: score[t, i] = sum_h w[t, h] * relu(q[t, h] . k[i] / sqrt(Di)), w scaled by Hi^-0.5; of the entries visible
to the query the best `index_topk` are picked, ties to the lower index. Where no more are visible than that, all are
picked and nothing is scored.
Live when: a CSA layer's query sees more than `index_topk` entries.
"""

# B sequences, P query positions, C entries, K picks, Q query bottleneck, H or I index heads, D index head dim.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.checkpoint import Tensors
from engine.compressor import Compressor
from engine.config import ModelConfig
from engine.events import Phase
from engine.pages import PagedKeys
from engine.projections import by_column
from engine.requested import without_kernel
from engine.rope import Rope
from engine.settings import Kernels
from kernels import dispatch
from kernels.norm_ref import constant


class Indexer:
    def __init__(
        self, tensors: Tensors, config: ModelConfig, *, rate: int, rope: Rope, layer: int, kernels: Kernels
    ) -> None:
        self.num_heads, self.head_dim = config.index_n_heads, config.index_head_dim
        self.topk, self.layer, self.kernels = config.index_topk, layer, kernels
        self.q_b = by_column(tensors.matrix("q_b_proj.weight", self.num_heads * self.head_dim, config.q_lora_rank))
        self.hidden = config.hidden_size
        # With an axis: a product with a bfloat16 tensor is then one of float32, in one call.
        self.weight_scale_1 = constant(self.num_heads**-0.5, self.q_b.device)[None]
        self.compressor = Compressor(
            tensors, config, rate=rate, width=self.head_dim, overlap=True, rope=rope, kernels=kernels
        )

    def take_weights(self, tensors: Tensors) -> Tensor:
        """What makes w of a token, but for its scale; the attention multiplies, with all else that reads the token."""
        return tensors.matrix("scorer.weights_proj.weight", self.num_heads, self.hidden)

    def pick(
        self,
        q_lora_BPQ: Tensor,
        weights_BPI: Tensor,
        turns_BP1F: Tensor,
        visible_BP: Tensor | None,
        keys: PagedKeys,
        phase: Phase,
    ) -> Tensor:
        """The picked entries int64 [B, P, K] of every query; -1 where a query sees fewer.

        Args:
            weights_BPI: the products with `take_weights`.
            turns_BP1F: the rope's, at the positions of the queries.
            visible_BP: how many entries each query sees, None where all see all of them.
        """
        heads_BPHD = F.linear(q_lora_BPQ, self.q_b).view(*q_lora_BPQ.shape[:2], self.num_heads, self.head_dim)
        record = events.recorder(layer=self.layer, phase=phase)
        scores_BPC = dispatch.index_scores(
            dispatch.rotate(heads_BPHD, turns_BP1F, requested=self.kernels, record=record),
            keys.pool.pages,
            keys.block_table_BP,
            keys.num_keys,
            weights_BPI * self.weight_scale_1,
            self.head_dim**-0.5,
            requested=self._requested(keys),
            record=record,
        )
        return dispatch.index_select(scores_BPC, visible_BP, self.topk, requested=self.kernels, record=record)

    def _requested(self, keys: PagedKeys) -> Kernels:
        """What to ask for the scores: index keys in fp32 have no kernel."""
        if keys.pool.dtype != torch.float32:
            return self.kernels
        return without_kernel(self.kernels, "index_scores", self.layer, "index_keys is fp32")
