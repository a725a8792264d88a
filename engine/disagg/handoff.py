"""A cache as blocks of bytes with a digest each, and back.

Contract: a handoff holds, layer by layer, everything decoding remembers: window keys, compressed entries, the open
windows and overlaps of both compressors, and the pages of the index keys with their scales, in the order of the block
tables. Digests are taken from the cache before anything moves and are checked before anything is used: a block that
differs is named by layer, state and place. Shapes are checked against the engine that takes over, and a fingerprint of
its weights, because state of another checkpoint fits and is wrong.
"""

# B sequences, N rows, P pages of one sequence.

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache import Cache, LayerCache
from engine.compressor import CompressorState
from engine.engine import Engine
from engine.errors import EngineError

# Rows of one block, along the axis after the batch; a page of index keys is a block of its own.
ROWS_PER_BLOCK = 64
_COMPRESSOR_PARTS = ("pending_kv_BTU", "pending_gate_BTU", "overlap_kv_BmD", "overlap_logit_BmD")


class HandoffError(EngineError):
    """State that arrived otherwise than it was sent, or that this engine has no place for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One named tensor [B, ...] of a layer and the digests of its blocks along the second axis."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows_per_block: int
    digests: tuple[str, ...]

    def check(self, tensor: Tensor) -> None:
        """Compares what arrived with what was digested.

        Raises:
            HandoffError: a block differs; it is named.
        """
        for number, (found, sent) in enumerate(zip(_digests(tensor, self.rows_per_block), self.digests, strict=True)):
            if found != sent:
                first = number * self.rows_per_block
                last = min(first + self.rows_per_block, self.shape[1]) - 1
                raise HandoffError(
                    f"layer {self.layer}, {self.name}, block {number} (rows {first} to {last}): "
                    f"arrived with digest {found[:12]}, was sent with {sent[:12]}",
                    hint="The state is not used. Prefill again and hand over once more.",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Everything about a cache but the tensors themselves."""

    fingerprint: str
    batch: int
    length: int
    num_entries: tuple[tuple[int, int], ...]  # per layer, of both compressors; -1 without one
    num_keys: tuple[int, ...]  # per layer; -1 without an indexer
    states: tuple[State, ...]


def fingerprint(engine: Engine) -> str:
    """A digest of some weights of every layer: tells checkpoints apart without reading all of them."""
    model = engine.model
    some = [model.norm, model.embedding_VD[:1]]
    for layer in model.layers:
        some += [layer.input_norm, layer.self_attn.kv[:1], layer.mlp.topk.gate_ED[:1]]
    digest = hashlib.sha256()
    for tensor in some:
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def pack(cache: Cache, engine: Engine) -> tuple[Header, list[Tensor]]:
    """The header and the tensors it describes, in its order."""
    states, tensors = [], []
    for layer, layer_cache in enumerate(cache.layers):
        for name, tensor, rows_per_block in _states(layer_cache):
            states.append(
                State(
                    layer=layer,
                    name=name,
                    shape=tuple(tensor.shape),
                    dtype=tensor.dtype,
                    rows_per_block=rows_per_block,
                    digests=tuple(_digests(tensor, rows_per_block)),
                )
            )
            tensors.append(tensor)
    header = Header(
        fingerprint=fingerprint(engine),
        batch=cache.batch,
        length=cache.length,
        num_entries=tuple((_count(one.compressor), _count(one.index_compressor)) for one in cache.layers),
        num_keys=tuple(-1 if one.index_keys is None else one.index_keys.num_keys for one in cache.layers),
        states=tuple(states),
    )
    return header, tensors


def unpack(header: Header, tensors: list[Tensor], engine: Engine) -> Cache:
    """The cache in this engine.

    Raises:
        HandoffError: a block differs from its digest, the engine's layers keep other state than was sent, or its
            weights are others.
    """
    with torch.inference_mode():
        cache = engine.model.new_cache(header.batch)
        cache.length = header.length
        arrived: list[dict[str, Tensor]] = [{} for _ in cache.layers]
        for state, tensor in zip(header.states, tensors, strict=True):
            if state.layer >= len(cache.layers):
                raise HandoffError(f"layer {state.layer} was sent, this engine has {len(cache.layers)} layers")
            state.check(tensor)
            arrived[state.layer][state.name] = tensor
        for layer, layer_cache in enumerate(cache.layers):
            _fits(layer, layer_cache, arrived[layer])
        if header.fingerprint != fingerprint(engine):
            raise HandoffError(
                f"the weights of the process that took the prompts in have fingerprint {header.fingerprint[:12]}, "
                f"expected {fingerprint(engine)[:12]}",
                hint="Both processes need the same checkpoint.",
            )
        for layer, layer_cache in enumerate(cache.layers):
            _fill(layer_cache, arrived[layer], header.num_entries[layer], header.num_keys[layer])
    return cache


def _states(cache: LayerCache) -> Iterator[tuple[str, Tensor, int]]:
    yield "window", cache.window_BWD.contiguous(), ROWS_PER_BLOCK
    if cache.entries is not None:
        yield "entries", cache.entries.all().contiguous(), ROWS_PER_BLOCK
    for name, state in (("compressor", cache.compressor), ("index_compressor", cache.index_compressor)):
        if state is not None:
            for part in _COMPRESSOR_PARTS:
                yield f"{name}.{part.rpartition('_')[0]}", getattr(state, part).contiguous(), ROWS_PER_BLOCK
    if cache.index_keys is not None:
        yield "index_pages", cache.index_keys.pool.pages[cache.index_keys.block_table_BP], 1


def _digests(tensor: Tensor, rows_per_block: int) -> Iterator[str]:
    for block in tensor.split(rows_per_block, 1) if tensor.shape[1] else ():
        data = block.contiguous().cpu().flatten().view(torch.uint8).numpy()
        yield hashlib.sha256(data.tobytes()).hexdigest()


def _count(state: CompressorState | None) -> int:
    return -1 if state is None else state.num_entries


def _fits(layer: int, empty: LayerCache, arrived: dict[str, Tensor]) -> None:
    """What arrived has the names, types and widths that an empty cache of this engine has."""
    wanted = {name: tensor for name, tensor, _ in _states(empty)}
    if wanted.keys() != arrived.keys():
        raise HandoffError(
            f"layer {layer}: {', '.join(sorted(arrived))} arrived, expected {', '.join(sorted(wanted))}",
            hint="Both processes need the same checkpoint.",
        )
    for name, tensor in arrived.items():
        mine = wanted[name]
        if tensor.dtype != mine.dtype or tensor.shape[2:] != mine.shape[2:]:
            raise HandoffError(
                f"layer {layer}, {name}: {tensor.dtype} {tuple(tensor.shape)} arrived, "
                f"expected {mine.dtype} rows of {tuple(mine.shape[2:])}",
                hint="Both processes need the same checkpoint and the same setting of index_keys.",
            )


def _fill(cache: LayerCache, arrived: dict[str, Tensor], num_entries: tuple[int, int], num_keys: int) -> None:
    cache.window_BWD = arrived["window"]
    if cache.entries is not None:
        cache.entries.append(arrived["entries"])
    for name, count in zip(("compressor", "index_compressor"), num_entries, strict=True):
        state: CompressorState | None = getattr(cache, name)
        if state is not None:
            for part in _COMPRESSOR_PARTS:
                setattr(state, part, arrived[f"{name}.{part.rpartition('_')[0]}"])
            state.num_entries = count
    if cache.index_keys is not None:
        pages_BPX = arrived["index_pages"]
        batch, num_pages = pages_BPX.shape[:2]
        table_BP = cache.index_keys.pool.allocate(batch * num_pages).view(batch, num_pages)
        cache.index_keys.pool.pages[table_BP] = pages_BPX
        cache.index_keys.block_table_BP, cache.index_keys.num_keys = table_BP, num_keys
