"""The losses: answer the questions, predict the context, find the gold entries, teach the indexer what attention reads.

Contract: attention is dense while training; the indexer's choice is used only when a checkpoint is evaluated. The
indexer learns from the attention mass and gives it no gradient back.
"""

# B batch, T tokens, Q positions asked for, R of them in the context, N compressed entries

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import CSA, ModelConfig
from engine.errors import ConfigError
from engine.oracle import forward
from engine.oracle.parts import Params
from engine.recipe.curriculum import Stage
from engine.task import CHATTER, QUESTION_TOKENS, ask, make_contexts, value_positions

CONTEXT_POSITIONS = 16
FIRST_CONTEXT_POSITION = 8  # before it there may be no compressed entry to look at
CONTEXT_WEIGHT = 0.1
INDEX_WEIGHT = 1.0
GOLD_WEIGHT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    ids_BT: Tensor
    at_Q: Tensor  # R context positions, then the IS position of every question
    next_ids_BR: Tensor
    answers_BK: Tensor
    gold_at_BK: Tensor  # position of the answer in the context


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    answer: Tensor
    context: Tensor
    index: Tensor
    gold: Tensor
    accuracy: Tensor

    def total(self, gold_decay: float) -> Tensor:
        """`gold_decay` falls from 1 to 0 with the learning rate: that loss starts the circuit, then lets go."""
        weighted_gold = GOLD_WEIGHT * gold_decay * self.gold
        return self.answer + CONTEXT_WEIGHT * self.context + INDEX_WEIGHT * self.index + weighted_gold


def make_batch(rng: np.random.Generator, stage: Stage, device: torch.device) -> Batch:
    contexts = make_contexts(
        rng, stage.batch, stage.num_tokens, num_facts=stage.num_facts, chatter=CHATTER if stage.chatter else 0.0
    )
    # With replacement: where each fact is asked once, a model learns to rule out values that were already given.
    facts_BK = (rng.random((stage.batch, stage.num_questions)) * contexts.num_facts).astype(np.int64)
    questions_BK4, answers_BK = ask(contexts, facts_BK)
    asked = np.concatenate((questions_BK4, answers_BK[..., None]), axis=-1).reshape(stage.batch, -1)
    ids_BT = torch.from_numpy(np.concatenate((contexts.ids_BT, asked), axis=1))
    free = stage.num_tokens - 1 - FIRST_CONTEXT_POSITION
    context_at_R = torch.from_numpy(
        np.sort(FIRST_CONTEXT_POSITION + (rng.random(CONTEXT_POSITIONS) * free).astype(int))
    )
    question_at = stage.num_tokens + QUESTION_TOKENS * torch.arange(stage.num_questions) + QUESTION_TOKENS - 2
    return Batch(
        ids_BT=ids_BT.to(device),
        at_Q=torch.cat((context_at_R, question_at)).to(device),
        next_ids_BR=ids_BT[:, context_at_R + 1].to(device),
        answers_BK=torch.from_numpy(answers_BK).to(device),
        gold_at_BK=torch.from_numpy(value_positions(contexts, facts_BK)).to(device),
    )


def losses(params: Params, config: ModelConfig, batch: Batch, *, sinkhorn_iters: int) -> Losses:
    """The four losses of one batch, and the share of questions answered.

    Raises:
        ConfigError: the last layer is not a compressed-sparse one, so there is nothing to retrieve with.
    """
    if config.layer_types[-1] != CSA:
        raise ConfigError(
            f"the last layer is {config.layer_types[-1]}", hint=f"the recipe trains models that end in a {CSA} layer"
        )
    out = forward(batch.ids_BT, params, config, at=batch.at_Q, dense=True, sinkhorn_iters=sinkhorn_iters)
    context_logits, answer_logits = out.logits_BQV.split((CONTEXT_POSITIONS, batch.answers_BK.shape[1]), dim=1)
    selection = out.selections[config.num_hidden_layers - 1]
    index_BQ = index_divergence(selection.scores_BQN, selection.mass_BQN)
    # An entry holds the value of its own window and, through the overlap, of the window before.
    own_BK = batch.gold_at_BK // config.compress_rate(config.num_hidden_layers - 1)
    num_entries = selection.mass_BQN.shape[-1]
    gold_BK2 = torch.stack((own_BK, (own_BK + 1).clamp(max=num_entries - 1)), dim=-1)
    gold_mass = selection.mass_BQN[:, CONTEXT_POSITIONS:].gather(-1, gold_BK2).sum(-1)
    return Losses(
        answer=F.cross_entropy(answer_logits.flatten(0, 1), batch.answers_BK.flatten()),
        context=F.cross_entropy(context_logits.flatten(0, 1), batch.next_ids_BR.flatten()),
        index=index_BQ[:, CONTEXT_POSITIONS:].mean() + CONTEXT_WEIGHT * index_BQ[:, :CONTEXT_POSITIONS].mean(),
        gold=-(gold_mass + 1e-8).log().mean(),
        accuracy=(answer_logits.argmax(-1) == batch.answers_BK).float().mean(),
    )


def index_divergence(scores_BQN: Tensor, mass_BQN: Tensor) -> Tensor:
    """KL(attention over the visible entries || softmax of the index scores), nats [B,Q]; no gradient to attention."""
    target = mass_BQN.detach()
    target = target / target.sum(-1, keepdim=True).clamp(min=1e-20)
    log_index = scores_BQN.log_softmax(-1).masked_fill(scores_BQN == -torch.inf, 0.0)
    return (target * (target.clamp(min=1e-20).log() - log_index)).sum(-1)
