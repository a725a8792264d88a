"""What to train on next: contexts that grow as soon as the questions about the short ones are answered."""

# A stage's facts stand as densely as its questions need; from 2048 tokens on there is one per 32 tokens.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.task import TOKENS_PER_FACT

ADVANCE_ACCURACY = 0.97
MEASURED_STEPS = 25  # the accuracy is a mean over this many steps
SHORTEST_STAGE = 50  # steps
KEEP_LONGEST = 0.5  # once the last stage is reached: how often it is trained, the rest goes to the earlier ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    num_tokens: int
    num_questions: int
    batch: int
    chatter: bool = True

    @property
    def num_facts(self) -> int:
        return max(self.num_questions if self.num_tokens < 2048 else 0, self.num_tokens // TOKENS_PER_FACT)


def _stages(*rows: tuple[int, int, int]) -> tuple[Stage, ...]:
    # Without stray names and values in the first stage the binding of a fact's parts is learnt at once.
    return tuple(
        Stage(num_tokens=tokens, num_questions=questions, batch=batch, chatter=place > 0)
        for place, (tokens, questions, batch) in enumerate(rows)
    )


GPU_STAGES = _stages(
    (32, 4, 192),
    (64, 6, 128),
    (128, 12, 64),
    (256, 24, 48),
    (512, 32, 24),
    (1024, 48, 12),
    (2048, 64, 8),
    (4096, 64, 4),
    (8192, 64, 2),
)
CPU_STAGES = _stages((32, 4, 48), (64, 6, 32), (128, 12, 24), (256, 24, 12), (512, 32, 8), (1024, 48, 4), (2048, 64, 2))


class Curriculum:
    def __init__(self, stages: tuple[Stage, ...], rng: np.random.Generator) -> None:
        self._stages = stages
        self._rng = rng
        self._place = 0
        self._steps = 0

    @property
    def longest(self) -> Stage:
        return self._stages[self._place]

    def next_stage(self) -> Stage:
        last = len(self._stages) - 1
        if self._place < last or self._rng.random() < KEEP_LONGEST:
            return self.longest
        return self._stages[int(self._rng.random() * last)]

    def record(self, mean_accuracy: float) -> bool:
        """Counts the next MEASURED_STEPS steps and their mean accuracy; returns True when that opens the next stage."""
        self._steps += MEASURED_STEPS
        at_end = self._place == len(self._stages) - 1
        if at_end or self._steps < SHORTEST_STAGE or mean_accuracy <= ADVANCE_ACCURACY:
            return False
        self._place += 1
        self._steps = 0
        return True
