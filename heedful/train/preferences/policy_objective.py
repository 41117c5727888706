"""Group relative policy optimisation (GRPO, Shao 2024): learning from rewarded answers.

A batch is prompts. The model samples a group of answers to each, the answers are rewarded, and
those better than their group's mean become more probable. Further updates may use the same answers,
which are then carried from batch to batch, and stored in checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heedful.data.batches import NO_TARGET, ExampleBatch, tensors_of
from heedful.data.chat_corpus import Asked
from heedful.data.padding import pad
from heedful.device import Precision
from heedful.events import Sample
from heedful.pipelines.text_generation import Generation, generate
from heedful.text.tokenizer import TextTokenizer
from heedful.train.objective import CarriedState, LossContext, LossSum, penalties_of, penalty_of
from heedful.train.preferences.answer_rewards import Reward
from heedful.train.preferences.group_loss import group_advantages, group_loss
from heedful.train.preferences.preference_objective import follow
from heedful.train.run_settings import RunSettings
from heedful.train.splitting import derive_seed
from heedful.train.validation import Measure, Measured

_SAMPLES = 5
"""Answers that a validation shows."""


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

    asked: Asked
    ids: list[int]


@dataclass(frozen=True)
class Answers:
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


class PolicyObjective:
    """The loss of GRPO.

    Args:
        settings: settings of the training run.
        reference: frozen model.
        prompts: prompts of training, and those of validation after them.
        tokenizer: tokenizer of the run.
        reward: reward of answers.
    """

    def __init__(
        self,
        settings: RunSettings,
        reference: nn.Module,
        prompts: Sequence[Prompt],
        tokenizer: TextTokenizer,
        reward: Reward,
    ) -> None:
        self.settings, self.grpo = settings, settings.grpo
        self.reference = reference.eval().requires_grad_(False)
        self.prompts = prompts
        self.tokenizer = tokenizer
        self.reward = reward

    def loss(self, model: Any, batch: PromptBatch, context: LossContext) -> LossSum:
        """Return the loss of a group of answers to each prompt; see `Objective`.

        In validation it is the negative reward of one answer to each.
        """
        device = next(model.parameters()).device
        if not model.training:
            _, drawn = self.sample(model, batch, 1, seed=0)
            lost = -drawn.rewards.sum()
            return LossSum(lost, len(batch.indices), {"nll": lost})
        answers = None if batch.fresh else _again(context.carried_state, batch.indices)
        if answers is None:
            seed = derive_seed(self.settings.seed, context.step, int(batch.indices[0]))
            _, answers = self.sample(model, batch, batch.group, seed=seed)
        answers = _moved(answers, device)
        capture, real = penalties_of(model), answers.targets != NO_TARGET
        ours = log_probabilities(model, answers, capture)
        answers = replace(answers, old=ours.detach()) if answers.old is None else answers
        assert answers.old is not None
        found = group_loss(
            ours.flatten(0, 1),
            answers.old.flatten(0, 1),
            answers.reference.flatten(0, 1),
            group_advantages(answers.rewards).flatten(),
            real.flatten(0, 1),
            clip=self.grpo.clip,
            beta=self.settings.objective.beta,
        )
        loss, count = found.losses.sum(), batch.target_tokens
        extras = {
            "reward": answers.rewards.sum(),
            "kl": found.divergence.sum(),
            "clipped": found.clipped.sum(),
        }
        width = self.settings.data.max_length
        carried = {} if self.grpo.updates == 1 else _carried(answers, batch.indices, width)
        return LossSum(loss + count * penalty_of(capture), count, extras, carried)

    def sample(
        self, model: Any, batch: PromptBatch, group: int, *, seed: int
    ) -> tuple[list[Generation], Answers]:
        """Sample and reward answers.

        Args:
            model: language model.
            batch: prompts.
            group: number of answers to each.
            seed: seed of the sampling.

        Returns:
            The answers of each prompt in turn, and the same as tensors.
        """
        prompts = [self.prompts[number] for number in batch.indices.tolist()]
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
                max_length=self.grpo.answer_tokens,
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
        made = _moved(made, next(model.parameters()).device)
        follow(self.reference, made.ids.device)
        with torch.no_grad():
            return answers, replace(made, reference=log_probabilities(self.reference, made))

    def _tensors(
        self, rows: list[list[int]], begins: list[int], rewards: list[float], prompts: int
    ) -> Answers:
        """Return rows [N] of tokens as inputs and targets, those before `begins` without target."""
        ids, positions = pad([row[:-1] for row in rows], self.tokenizer.pad)
        following, _ = pad([row[1:] for row in rows], NO_TARGET)
        known = torch.arange(ids.shape[1]) < torch.tensor(begins)[:, None]
        shape = prompts, len(rows) // prompts, -1
        targets = following.masked_fill(known, NO_TARGET)
        ids, targets, positions = (each.view(shape) for each in (ids, targets, positions))
        given = torch.tensor(rewards).view(shape[:2])
        return Answers(ids, targets, positions, given, torch.zeros(ids.shape))


def log_probabilities(model: Any, answers: Answers, capture: Any = None) -> Tensor:
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


def _moved(answers: Answers, device: torch.device) -> Answers:
    return replace(answers, **{name: tensor.to(device) for name, tensor in tensors_of(answers)})


_FILLERS = {"ids": 0, "targets": NO_TARGET, "positions": -1, "reference": 0, "old": 0}
"""Padding of the tensors with a value for each token."""


def _carried(answers: Answers, indices: Tensor, width: int) -> CarriedState:
    """Return answers as tensors of B rows for the next batch, all rows of one width."""
    # Parts of a batch are sampled apart, and put side by side afterwards.
    more = width - answers.ids.shape[-1]
    wide = {
        name: F.pad(getattr(answers, name), (0, more), value=filler)
        for name, filler in _FILLERS.items()
    }
    return {"indices": indices, "rewards": answers.rewards, **wide}


def _again(carried: CarriedState, indices: Tensor) -> Answers | None:
    """Return the carried answers to prompts [B]; None where one has none, as after a failure."""
    if not carried:
        return None
    # With other numbers of processes, and in parts of a batch, rows change places.
    matches = carried["indices"].cpu()[None, :] == indices[:, None]
    if not bool(matches.any(1).all()):
        return None
    rows = matches.int().argmax(1).to(carried["ids"].device)
    longest = int((carried["positions"][rows] >= 0).sum(-1).max())
    return Answers(
        rewards=carried["rewards"][rows],
        **{name: carried[name][rows][..., :longest] for name in _FILLERS},
    )


def reward_measure(
    objective: PolicyObjective, batches: Iterable[PromptBatch], prompts: int
) -> Measure:
    """Make the metrics of rewarded answers, of which one is sampled for each prompt.

    `reward` is their mean reward, and `kl` the estimated divergence from the reference for an
    answer (`group_loss`).

    Args:
        objective: loss with its reference and its reward.
        batches: validation batches.
        prompts: number of prompts in them.
    """

    def score(model: Any, count: int, precision: Precision, on_batch: Any) -> Measured:
        rewards: list[float] = []
        samples: list[Sample] = []
        divergence = 0.0
        for batch in batches:
            if len(rewards) >= count:  # as many as `validation.max_sentences` allows, or a few more
                break
            with precision.autocast():
                texts, answers = objective.sample(model, batch, 1, seed=0)
                ours = log_probabilities(model, answers)
            divergence += float((ours - answers.reference).sum())
            rewards += answers.rewards.flatten().tolist()
            for number, text in zip(batch.indices.tolist(), texts, strict=True):
                asked = objective.prompts[number].asked
                samples.append(Sample(asked.messages[-1]["content"], asked.answer or "", text.text))
            on_batch()
        mean = sum(rewards) / len(rewards)
        values = {"reward": mean, "kl": divergence / len(rewards)}
        return Measured(values, samples=tuple(samples[:_SAMPLES]))

    return Measure(prompts, score)
