"""Handing a cache from one process to another over torch.distributed.

Contract: header first, then the tensors in its order, bytes as they lie. Empty tensors are not sent. What arrives is
checked before it is used; see `handoff`.
"""

# B sequences.

from __future__ import annotations

import torch
from torch import Tensor, distributed

from engine.cache import Cache
from engine.disagg.handoff import HandoffError, Header, pack, unpack
from engine.engine import Engine


def send_cache(engine: Engine, cache: Cache, next_ids_B: Tensor, to: int) -> None:
    """Hands over the sequences of a cache and the token each of them goes on with."""
    send_packed(*pack(cache, engine), next_ids_B, to)


def send_packed(header: Header, tensors: list[Tensor], next_ids_B: Tensor, to: int) -> None:
    distributed.send_object_list([header], dst=to, device=next_ids_B.device)
    for tensor in tensors:
        if tensor.numel():
            distributed.send(tensor.flatten().view(torch.uint8), dst=to)
    distributed.send(next_ids_B, dst=to)


def receive_cache(engine: Engine, source: int) -> tuple[Cache, Tensor]:
    """Takes sequences over: their cache in this engine, and the ids [B] they go on with.

    Raises:
        HandoffError: what arrived is not what was sent, or does not fit this engine.
    """
    device = torch.device(engine.settings.device)
    box: list[Header | None] = [None]
    distributed.recv_object_list(box, src=source, device=device)
    header = box[0]
    if not isinstance(header, Header):
        raise HandoffError(f"process {source} sent {type(header).__name__}, expected the header of a cache")
    tensors = []
    for state in header.states:
        tensor = torch.empty(state.shape, dtype=state.dtype, device=device)
        if tensor.numel():
            distributed.recv(tensor.view(-1).view(torch.uint8), src=source)
        tensors.append(tensor)
    next_ids_B = torch.empty(header.batch, dtype=torch.int64, device=device)
    distributed.recv(next_ids_B, src=source)
    return unpack(header, tensors, engine), next_ids_B
