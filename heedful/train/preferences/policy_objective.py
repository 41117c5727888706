"""Group relative policy optimisation (GRPO, Shao 2024): learning from rewarded answers.

A batch is prompts. The model samples a group of answers to each, the answers are rewarded, and
those better than their group's mean become more probable. Further updates may use the same answers,
which are then carried from batch to batch, and stored in checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from heedful.data.batches import NO_TARGET
from heedful.device import Precision
from heedful.events import Sample
from heedful.train.objective import LossContext, LossSum, penalties_of, penalty_of
from heedful.train.preferences.group_loss import group_advantages, group_loss
from heedful.train.preferences.rollouts import (
    PromptBatch,
    Sampler,
    carried_rollouts,
    log_probabilities,
    rollouts_again,
)
from heedful.train.run_settings import RunSettings
from heedful.train.splitting import derive_seed
from heedful.train.validation import Measure, Measured

_SAMPLES = 5
"""Answers that a validation shows."""


class PolicyObjective:
    """The loss of GRPO.

    Args:
        settings: settings of the training run.
        sampler: sampler of rewarded answers.
    """

    def __init__(self, settings: RunSettings, sampler: Sampler) -> None:
        self.settings, self.grpo = settings, settings.grpo
        self.sampler = sampler

    def loss(self, model: Any, batch: PromptBatch, context: LossContext) -> LossSum:
        """Return the loss of a group of answers to each prompt; see `Objective`.

        In validation it is the negative reward of one answer to each.
        """
        device = next(model.parameters()).device
        if not model.training:
            _, drawn = self.sampler.sample(model, batch.indices, 1, seed=0)
            lost = -drawn.rewards.sum()
            return LossSum(lost, len(batch.indices), {"nll": lost})
        answers = None if batch.fresh else rollouts_again(context.carried_state, batch.indices)
        if answers is None:
            seed = derive_seed(self.settings.seed, context.step, int(batch.indices[0]))
            _, answers = self.sampler.sample(model, batch.indices, batch.group, seed=seed)
        answers = answers.to(device)
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
        carried = {} if self.grpo.updates == 1 else carried_rollouts(answers, batch.indices, width)
        return LossSum(loss + count * penalty_of(capture), count, extras, carried)


def reward_measure(
    objective: PolicyObjective, batches: Iterable[PromptBatch], prompts: int
) -> Measure:
    """Make the metrics of rewarded answers, of which one is sampled for each prompt.

    `reward` is their mean reward, and `kl` the estimated divergence from the reference for an
    answer (`group_loss`).

    Args:
        objective: loss with its sampler.
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
                texts, answers = objective.sampler.sample(model, batch.indices, 1, seed=0)
                ours = log_probabilities(model, answers)
            divergence += float((ours - answers.reference).sum())
            rewards += answers.rewards.flatten().tolist()
            for number, text in zip(batch.indices.tolist(), texts, strict=True):
                asked = objective.sampler.prompts[number].asked
                samples.append(Sample(asked.messages[-1]["content"], asked.answer or "", text.text))
            on_batch()
        mean = sum(rewards) / len(rewards)
        values = {"reward": mean, "kl": divergence / len(rewards)}
        return Measured(values, samples=tuple(samples[:_SAMPLES]))

    return Measure(prompts, score)
