"""Requests that share an engine: who gets how many tokens into the next pass.

Contract: a pass takes at most `max_step_tokens` tokens. Every request that decodes goes first, with one token each, so
a long prompt never holds up an answer; what is left goes to prompts in order of arrival, in chunks. Greedy: the tokens
of a request are those it would get alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.cache import Cache
from engine.engine import Engine
from engine.errors import ConfigError, InputError
from engine.serving.ragged import Segment, forward_ragged


@dataclass(slots=True)
class Request:
    """`taken` tokens of the prompt are in the cache; `tokens` are the answer so far."""

    name: str
    prompt: list[int]
    max_new_tokens: int
    cache: Cache
    stop_ids: frozenset[int] = frozenset()
    taken: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def decodes(self) -> bool:
        return self.taken == len(self.prompt)

    @property
    def done(self) -> bool:
        return len(self.tokens) == self.max_new_tokens or bool(self.tokens and self.tokens[-1] in self.stop_ids)


class Scheduler:
    def __init__(self, engine: Engine, *, max_step_tokens: int = 512, max_running: int = 64) -> None:
        if not 1 <= max_running <= max_step_tokens:
            raise ConfigError(
                f"scheduler: max_running is {max_running}, expected 1 to max_step_tokens ({max_step_tokens}): "
                "every running request may need one token of a step"
            )
        self.engine, self.max_step_tokens, self.max_running = engine, max_step_tokens, max_running
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.finished: dict[str, Request] = {}

    def add(
        self, name: str, prompt: Sequence[int], max_new_tokens: int, stop_ids: frozenset[int] = frozenset()
    ) -> None:
        """Queues a request.

        Raises:
            InputError: the prompt is empty or too long, holds ids that are no tokens, or the name is taken.
        """
        config, ids = self.engine.config, list(prompt)
        if any(name == one.name for one in (*self.waiting, *self.running)) or name in self.finished:
            raise InputError(f"request {name!r} is there already, expected a name of its own")
        if not ids:
            raise InputError(f"request {name!r}: the prompt is empty, expected at least one token")
        if not 0 <= min(ids) <= max(ids) < config.vocab_size:
            raise InputError(
                f"request {name!r}: token ids from {min(ids)} to {max(ids)}, expected 0 to {config.vocab_size - 1}"
            )
        if max_new_tokens < 1:
            raise InputError(f"request {name!r}: max_new_tokens is {max_new_tokens}, expected at least 1")
        if len(ids) + max_new_tokens > config.max_position_embeddings:
            raise InputError(
                f"request {name!r}: {len(ids)} tokens and {max_new_tokens} more, expected at most "
                f"max_position_embeddings ({config.max_position_embeddings})"
            )
        with torch.inference_mode():
            cache = self.engine.model.new_cache(1)
        self.waiting.append(Request(name, ids, max_new_tokens, cache, stop_ids))

    def step(self) -> list[Request]:
        """One pass; the requests that got a token in it. Nothing to do gives an empty list."""
        while self.waiting and len(self.running) < self.max_running:
            self.running.append(self.waiting.pop(0))
        planned = self._plan()
        if not planned:
            return []
        device = self.engine.settings.device
        segments = [
            Segment(
                cache=one.cache, ids_T=torch.tensor(ids, device=device), phase="decode" if one.decodes else "prefill"
            )
            for one, ids in planned
        ]
        next_ids = forward_ragged(self.engine.model, segments).argmax(-1).tolist()
        answered = []
        for (request, ids), next_id in zip(planned, next_ids, strict=True):
            if not request.decodes:
                request.taken += len(ids)
            # The logits after a chunk in the middle of a prompt answer nothing.
            if request.decodes:
                request.tokens.append(next_id)
                answered.append(request)
        self.finished |= {one.name: one for one in answered if one.done}
        self.running = [one for one in self.running if not one.done]
        return answered

    def run(self) -> dict[str, list[int]]:
        """Steps until every request is answered; the tokens by name."""
        while self.waiting or self.running:
            self.step()
        return {name: request.tokens for name, request in self.finished.items()}

    def _plan(self) -> list[tuple[Request, list[int]]]:
        """Who takes part in the next pass, with which tokens."""
        planned = [(one, one.tokens[-1:]) for one in self.running if one.decodes]
        left = self.max_step_tokens - len(planned)
        for request in self.running:
            if not request.decodes and left > 0:
                chunk = request.prompt[request.taken : request.taken + left]
                planned.append((request, chunk))
                left -= len(chunk)
        return planned
