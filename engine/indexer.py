"""The lightning indexer: which compressed entries a query may attend to.

Contract: score[t, i] = sum_h w[t, h] * relu(q[t, h] . k[i] / sqrt(Di)), w scaled by Hi^-0.5; of the entries visible
to the query the best `index_topk` are picked, ties to the lower index. Where no more are visible than that, all are
picked and nothing is scored.
Live when: a CSA layer's query sees more than `index_topk` entries.
"""

# B sequences, P query positions, C entries, K picks, Q query bottleneck, H index heads, D index head dim.

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from engine import events
from engine.checkpoint import Tensors
from engine.compressor import Compressor
from engine.config import ModelConfig
from engine.events import Phase
from engine.pages import PagedKeys
from engine.rope import Rope
from kernels import dispatch
from kernels.index_page_ref import select_ref


class Indexer:
    def __init__(self, tensors: Tensors, config: ModelConfig, *, rate: int, rope: Rope, layer: int) -> None:
        self.num_heads, self.head_dim = config.index_n_heads, config.index_head_dim
        self.topk, self.rope, self.layer = config.index_topk, rope, layer
        self.q_b = tensors.take("q_b_proj.weight", self.num_heads * self.head_dim, config.q_lora_rank)
        self.weights_HD = tensors.take("scorer.weights_proj.weight", self.num_heads, config.hidden_size)
        self.compressor = Compressor(tensors, config, rate=rate, width=self.head_dim, overlap=True, rope=rope)

    def pick(
        self, q_lora_BPQ: Tensor, x_BPD: Tensor, positions_BP: Tensor, visible_BP: Tensor, keys: PagedKeys, phase: Phase
    ) -> Tensor:
        """The picked entries int64 [B, P, K] of every query; -1 where a query sees fewer."""
        heads_BPHD = F.linear(q_lora_BPQ, self.q_b).unflatten(-1, (self.num_heads, self.head_dim))
        scores_BPC = dispatch.index_scores(
            self.rope.rotate(heads_BPHD, positions_BP),
            keys.pool.pages,
            keys.block_table_BP,
            keys.num_keys,
            F.linear(x_BPD, self.weights_HD) * self.num_heads**-0.5,
            self.head_dim**-0.5,
            record=lambda choice: events.choice(choice, layer=self.layer, phase=phase),
        )
        return select_ref(scores_BPC, visible_BP, self.topk)
