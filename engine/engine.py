"""The engine: load a checkpoint, take prompts in, go on from there token by token.

Contract: the sequences of a batch have equal length. Long prompts are taken in by stretches of bounded size; the
results do not depend on where the stretches end. All of it runs without gradients.
"""

# B sequences, T tokens, P asked positions, V vocabulary, E experts, I expert hidden, D model dim.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine import events
from engine.cache import Cache
from engine.checkpoint import DEFAULT_CHECKPOINT, Tensors, load_checkpoint
from engine.config import CSA, ModelConfig
from engine.errors import InputError
from engine.graph import DecodeGraphs, obstacle
from engine.model import Model
from engine.requested import requested_kernels
from engine.settings import EngineSettings

# Tokens of all sequences in one stretch of a prefill: activations of a few MB stay in the processor's cache.
STRETCH_TOKENS = 4096
DEFAULT_SETTINGS = EngineSettings()


class Engine:
    def __init__(
        self,
        config: ModelConfig,
        tensors: Tensors,
        settings: EngineSettings,
        *,
        routed_scaling_factor: float | None = None,
    ) -> None:
        settings = replace(settings, kernels=requested_kernels(settings.kernels))
        self.config, self.settings = config, settings
        if CSA not in config.layer_types:
            events.emit_once(
                "index_keys",
                "ignored",
                setting="index_keys",
                where="engine/engine.py",
                reason="no layer has an indexer",
            )
        factor = config.routed_scaling_factor if routed_scaling_factor is None else routed_scaling_factor
        with torch.inference_mode():
            self.model = Model(replace(tensors, dtype=settings.dtype), config, settings, factor)
        self.graphs = self._graphs() if settings.cuda_graph else None

    @classmethod
    def load(
        cls,
        checkpoint: Path | str = DEFAULT_CHECKPOINT,
        settings: EngineSettings = DEFAULT_SETTINGS,
        *,
        routed_scaling_factor: float | None = None,
    ) -> Engine:
        """Builds the engine of a checkpoint folder.

        Args:
            routed_scaling_factor: replaces the checkpoint's own, to measure what the factor does.
        """
        config, tensors = load_checkpoint(checkpoint, settings.device)
        return cls(config, tensors, settings, routed_scaling_factor=routed_scaling_factor)

    @torch.inference_mode()
    def prefill(
        self,
        ids_BT: Tensor,
        logits_at: Tensor | Sequence[int] | None = None,
        *,
        attention_mask_BT: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Takes prompts in.

        Args:
            ids_BT: token ids, all prompts of equal length.
            logits_at: positions [P] or [B, P] whose logits are wanted, ascending, possibly none; None for the last one.
            attention_mask_BT: for callers who have one; it must be all ones.

        Returns:
            logits [B, P, V] and the cache to decode on with.

        Raises:
            InputError: an id or a position is out of range, a prompt is empty, padded or beyond the maximum.
        """
        ids_BT = self._checked_ids(ids_BT, 2)
        batch, num_tokens = ids_BT.shape
        _refuse_padding(attention_mask_BT, ids_BT)
        self._check_length(num_tokens)
        asked_BP = self._checked_positions([num_tokens - 1] if logits_at is None else logits_at, batch, num_tokens)
        cache = self.model.new_cache(batch)
        shape = (batch, asked_BP.shape[1], self.config.vocab_size)
        logits_BPV = torch.zeros(shape, device=self.settings.device)
        stretch = max(1, STRETCH_TOKENS // max(batch, 1))
        for start in range(0, num_tokens, stretch):
            ids = ids_BT[:, start : start + stretch]
            here_BP = (asked_BP >= start) & (asked_BP < start + ids.shape[1])
            self._fill(logits_BPV, here_BP, ids, asked_BP - start, cache)
        return logits_BPV, cache

    def _fill(self, logits_BPV: Tensor, here_BP: Tensor, ids_BT: Tensor, queries_BP: Tensor, cache: Cache) -> None:
        """Runs one stretch and writes the logits of the positions in it; each sequence may ask for another number."""
        columns = torch.nonzero(here_BP.any(0)).flatten()
        # A column that lies in another stretch for some sequences is asked at a neighbouring place and not kept.
        queries = queries_BP[:, columns].clamp(0, ids_BT.shape[1] - 1)
        everything = queries.shape[1] == ids_BT.shape[1] and bool(here_BP[:, columns].all())
        logits = self.model.forward(ids_BT, cache, "prefill", None if everything else queries)
        logits_BPV[:, columns] = torch.where(here_BP[:, columns, None], logits, logits_BPV[:, columns])

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits [B, T, V] at every position."""
        return self.prefill(ids_BT, range(ids_BT.shape[-1]))[0]

    @torch.inference_mode()
    def decode(self, ids_B: Tensor, cache: Cache) -> Tensor:
        """Takes one more token of every sequence in, in place, and returns the logits [B, V] that follow it."""
        ids_B = self._checked_ids(ids_B, 1)
        if ids_B.shape[0] != cache.batch:
            raise InputError(f"decode: {ids_B.shape[0]} token ids for a cache of {cache.batch} sequences")
        self._check_length(cache.length + 1)
        if self.graphs is not None and not events.enabled():
            return self.graphs.step(ids_B[:, None], cache)[:, 0]
        return self.model.forward(ids_B[:, None], cache, "decode", None)[:, 0]

    @torch.inference_mode()
    def expert_weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """w13 fp32 [E, 2I, D], gate rows first, and w2 fp32 [E, D, I], dequantised from the packed storage.

        E are the routed experts that this process holds; a fused shared expert is not among them.
        """
        mlp = self.model.layers[layer].mlp
        w13, w2 = mlp.experts.dequantised()
        return w13[: mlp.shard.num_local], w2[: mlp.shard.num_local]

    def _graphs(self) -> DecodeGraphs | None:
        reason = obstacle(self.model, self.settings)
        if reason is None:
            return DecodeGraphs(self.model)
        events.emit_once("cuda_graph", "ignored", setting="cuda_graph", where="engine/graph.py", reason=reason)
        return None

    def _checked_ids(self, ids: Tensor, num_axes: int) -> Tensor:
        ids = torch.as_tensor(ids)
        if ids.ndim != num_axes or ids.numel() == 0:
            raise InputError(f"token ids of shape {tuple(ids.shape)}, expected {num_axes} axes and at least one token")
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise InputError(f"token ids of {ids.dtype}, expected integers")
        # Looked at on the CPU: ids that lie there cost no wait for a GPU, and others one, not one for each bound.
        ids = ids.long()
        low, high = map(int, ids.cpu().aminmax())
        if low < 0 or high >= self.config.vocab_size:
            raise InputError(f"token ids from {low} to {high}, expected 0 to {self.config.vocab_size - 1}")
        return ids.to(self.settings.device)

    def _check_length(self, num_tokens: int) -> None:
        if num_tokens > self.config.max_position_embeddings:
            raise InputError(
                f"a context of {num_tokens} tokens, expected at most max_position_embeddings "
                f"({self.config.max_position_embeddings})"
            )

    def _checked_positions(self, positions: Tensor | Sequence[int], batch: int, num_tokens: int) -> Tensor:
        asked = torch.as_tensor(positions, dtype=torch.int64, device=self.settings.device)
        asked_BP = asked.expand(batch, -1) if asked.ndim == 1 else asked
        if asked_BP.ndim != 2 or asked_BP.shape[0] != batch:
            raise InputError(f"logits_at of shape {tuple(asked.shape)}, expected [P] or [{batch}, P]")
        if asked_BP.numel() and not 0 <= int(asked_BP.min()) <= int(asked_BP.max()) < num_tokens:
            raise InputError(
                f"logits_at from {int(asked_BP.min())} to {int(asked_BP.max())}, the prompt has {num_tokens} tokens"
            )
        return asked_BP


def _refuse_padding(mask_BT: Tensor | None, ids_BT: Tensor) -> None:
    if mask_BT is None:
        return
    mask_BT = torch.as_tensor(mask_BT)
    if mask_BT.shape != ids_BT.shape:
        raise InputError(f"attention mask of shape {tuple(mask_BT.shape)}, the ids have {tuple(ids_BT.shape)}")
    if bool((mask_BT[:, 0] == 0).any()):
        raise InputError(
            "left padding: the first token of a prompt is masked, expected none to be",
            hint="Compressed entries are pooled over windows counted from the first token, so padding in front would "
            "shift every window and mix into it. Give prompts of equal length, without padding.",
        )
    if bool((mask_BT == 0).any()):
        raise InputError(
            "right padding: the attention mask has zeros, expected ones only",
            hint="Cut the padding off and give prompts of equal length.",
        )
