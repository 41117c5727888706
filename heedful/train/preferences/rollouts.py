"""Answers that a model samples to prompts, with their rewards, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heedful.data.batches import NO_TARGET, ExampleBatch, tensors_of
from heedful.data.chat_corpus import PromptLine
from heedful.data.padding import pad
from heedful.pipelines.text_generation import Generation, generate
from heedful.text.tokenizer import TextTokenizer
from heedful.train.objective import CarriedState
from heedful.train.preferences.answer_rewards import Reward
from heedful.train.preferences.preference_objective import follow


@dataclass(frozen=True)
class PromptBatch(ExampleBatch):
    """Prompts by their numbers.

    Args:
        indices: numbers of the prompts [B] int64.
        group: answers that are sampled for each.
        fresh: flag that answers are sampled; otherwise those of the batch before are used again.
    """

    indices: Tensor
    group: int
    fresh: bool = True

    @property
    def target_tokens(self) -> int:
        """Number of the answers, as the loss is one for each."""
        return len(self.indices) * self.group


class Prompt(NamedTuple):
    """A prompt of the data with its token ids."""

    asked: PromptLine
    ids: list[int]


@dataclass(frozen=True)
class Rollouts:
    """G sampled answers to each of B prompts; a row is a prompt with an answer.

    Args:
        ids: token ids [B, G, L] int64, padded to the longest.
        targets: next tokens of an answer [B, G, L] int64, its end among them; −1 elsewhere.
        positions: positions in the row [B, G, L] int64; −1 is padding.
        rewards: rewards [B, G].
        reference: log-probabilities of the targets by the reference [B, G, L]; 0 elsewhere.
        old: the same by the model that sampled them; None before the first update.
    """

    ids: Tensor
    targets: Tensor
    positions: Tensor
    rewards: Tensor
    reference: Tensor
    old: Tensor | None = None

    def to(self, device: torch.device) -> Rollouts:
        """Return the same on a device."""
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors_of(self)})


class Sampler:
    """Samples and rewards answers.

    Args:
        reference: frozen model.
        prompts: prompts of training, and those of validation after them.
        tokenizer: tokenizer of the run.
        reward: reward of answers.
        most: most tokens of an answer, its end not counted.
    """

    def __init__(
        self,
        reference: nn.Module,
        prompts: Sequence[Prompt],
        tokenizer: TextTokenizer,
        reward: Reward,
        most: int,
    ) -> None:
        self.reference = reference.eval().requires_grad_(False)
        self.prompts = prompts
        self.tokenizer = tokenizer
        self.reward = reward
        self.most = most

    def sample(
        self, model: Any, numbers: Tensor, group: int, *, seed: int
    ) -> tuple[list[Generation], Rollouts]:
        """Sample and reward answers.

        Args:
            model: language model.
            numbers: numbers of the prompts [B].
            group: number of answers to each.
            seed: seed of the sampling.

        Returns:
            The answers of each prompt in turn, and the same as tensors.
        """
        prompts = [self.prompts[number] for number in numbers.tolist()]
        # A LoRA model's matrices are computed once, not at each step. Sampling is at temperature 1
        # without filters: its probabilities are those of the loss.
        with parametrize.cached():
            best = generate(
                model,
                [each.ids for each in prompts],
                self.tokenizer,
                ends=(self.tokenizer.eos,),
                sampling=True,
                n_best=group,
                seed=seed,
                max_length=self.most,
            )
        answers = [each for first in best for each in first.n_best]
        asked = [each for each in prompts for _ in range(group)]
        rewards = self.reward([each.asked for each in asked], [each.text for each in answers])
        rows, begins = [], []
        for prompt, answer in zip(asked, answers, strict=True):
            end = [self.tokenizer.eos] if answer.ended == "end" else []
            rows.append([*prompt.ids, *answer.tokens, *end])
            begins.append(len(prompt.ids) - 1)
        made = self._tensors(rows, begins, rewards, len(prompts))
        made = made.to(next(model.parameters()).device)
        follow(self.reference, made.ids.device)
        with torch.no_grad():
            return answers, replace(made, reference=log_probabilities(self.reference, made))

    def _tensors(
        self, rows: list[list[int]], begins: list[int], rewards: list[float], prompts: int
    ) -> Rollouts:
        """Return rows [N] of tokens as inputs and targets, those before `begins` without target."""
        ids, positions = pad([row[:-1] for row in rows], self.tokenizer.pad)
        following, _ = pad([row[1:] for row in rows], NO_TARGET)
        known = torch.arange(ids.shape[1]) < torch.tensor(begins)[:, None]
        shape = prompts, len(rows) // prompts, -1
        targets = following.masked_fill(known, NO_TARGET)
        ids, targets, positions = (each.view(shape) for each in (ids, targets, positions))
        given = torch.tensor(rewards).view(shape[:2])
        return Rollouts(ids, targets, positions, given, torch.zeros(ids.shape))


def log_probabilities(model: Any, answers: Rollouts, capture: Any = None) -> Tensor:
    """Return the log-probability of each target [B, G, L] in float32; 0 where there is none.

    Args:
        model: language model on the device of the answers.
        answers: rows of prompts and answers.
        capture: capture of the layers' penalties.
    """
    ids, targets, positions = (
        each.flatten(0, 1) for each in (answers.ids, answers.targets, answers.positions)
    )
    real = targets != NO_TARGET
    states = model(ids, positions, None, capture=capture)
    # The projection to the vocabulary is computed at the answers alone.
    logits = model.logits(states[real]).float()
    chosen = logits.gather(-1, targets[real][:, None])[:, 0] - logits.logsumexp(-1)
    zeros = chosen.new_zeros(targets.shape)
    result: Tensor = zeros.masked_scatter(real, chosen).view(answers.targets.shape)
    return result


_FILLERS = {"ids": 0, "targets": NO_TARGET, "positions": -1, "reference": 0, "old": 0}
"""Padding of the tensors with a value for each token."""


def carried_rollouts(answers: Rollouts, indices: Tensor, width: int) -> CarriedState:
    """Return answers as tensors of B rows for the next batch, all rows of one width."""
    # Parts of a batch are sampled apart, and put side by side afterwards.
    more = width - answers.ids.shape[-1]
    wide = {
        name: F.pad(getattr(answers, name), (0, more), value=filler)
        for name, filler in _FILLERS.items()
    }
    return {"indices": indices, "rewards": answers.rewards, **wide}


def rollouts_again(carried: CarriedState, indices: Tensor) -> Rollouts | None:
    """Return the carried answers to prompts [B]; None where one has none, as after a failure."""
    if not carried:
        return None
    # With other numbers of processes, and in parts of a batch, rows change places.
    matches = carried["indices"].cpu()[None, :] == indices[:, None]
    if not bool(matches.any(1).all()):
        return None
    rows = matches.int().argmax(1).to(carried["ids"].device)
    longest = int((carried["positions"][rows] >= 0).sum(-1).max())
    return Rollouts(
        rewards=carried["rewards"][rows],
        **{name: carried[name][rows][..., :longest] for name in _FILLERS},
    )
