"""Rewarded answers (GRPO): a language model learns from the rewards of what it answers itself."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from heedful.data.batch_plan import Indices, plan_files, plan_once
from heedful.data.chat_corpus import PromptLine, PromptReader
from heedful.errors import ConfigError, DataError
from heedful.models.spec_overrides import DROPOUTS
from heedful.text.field_tokenizer import prompt_ids
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.preferences.answer_rewards import answer_reward
from heedful.train.preferences.policy_objective import PolicyObjective, reward_measure
from heedful.train.preferences.rollouts import Prompt, PromptBatch, Sampler
from heedful.train.run_settings import RunSettings
from heedful.train.task import Setup, Task, plural
from heedful.train.tasks.answer_models import causal_model, conversing, reference_model
from heedful.train.tasks.encoder_task import document_readers


def prepare(setup: Setup) -> Task:
    """Read, check and encode prompts.

    Raises:
        DataError: when a line is no prompt, or longer than the model reads with an answer.
        ConfigError: when there is no initial model or reward, settings contradict each other, or
            the reference has another vocabulary.
    """
    _check(setup.settings)
    setup = _without_dropout(setup)
    settings, data = setup.settings, setup.settings.data
    template, tokenizers = conversing(setup)

    def read(role: Literal["train", "valid"]) -> list[list[PromptLine]]:
        return [list(PromptReader(each.path)) for each in document_readers(setup, role)]

    files, held_out = read("train"), read("valid")
    asked = [each for file in [*files, *held_out] for each in file]
    reward = answer_reward(settings.grpo, asked, data.max_length)
    tokenizer = tokenizers.source
    prompts = [
        Prompt(each, prompt_ids(tokenizer, template.prompt(each.messages))) for each in asked
    ]
    sizes = _sizes(prompts, settings)
    bounds = np.cumsum([0, *map(len, files)])
    count, group = int(bounds[-1]), settings.grpo.group
    setup.events.note(f"training: {plural(count, 'prompt')}")

    def plan(epoch: int) -> list[tuple[Indices, bool]]:
        batches = plan_files(sizes[:count], bounds, data, seed=settings.seed, epoch=epoch)
        # The same prompts again for each further update from the same answers.
        return [(each, number == 0) for each in batches for number in range(settings.grpo.updates)]

    def batch(numbers: Indices, fresh: bool) -> PromptBatch:
        return PromptBatch(torch.from_numpy(numbers), group, fresh)

    new_model = causal_model(setup, tokenizers)
    reference = reference_model(settings, tokenizers, new_model)
    sampler = Sampler(reference, prompts, tokenizer, reward, settings.grpo.answer_tokens)
    objective = PolicyObjective(settings, sampler)
    validation, measure = None, None
    if held_out:
        planned = [count + each for each in plan_once(sizes[count:], data)]
        validation = FixedBatches(planned, lambda numbers: batch(numbers, True))
        drawn = [batch(numbers, True) for numbers in planned]
        measure = reward_measure(objective, drawn, len(prompts) - count)
    return Task(
        tokenizers,
        _fingerprint(settings, tokenizers.fingerprint, prompts[:count]),
        EpochBatches(plan, lambda item, _: batch(*item), lambda n: prompts[n].asked.where),
        new_model,
        objective,
        validation,
        measure,
    )


def _without_dropout(setup: Setup) -> Setup:
    """Return the setup with a model without dropout, unless its settings ask for some."""
    # Answers are sampled without: another distribution in the loss would look like a divergence.
    shape = setup.settings.model
    unset = {name: 0.0 for name in DROPOUTS if name not in shape.model_fields_set}
    model = shape.model_copy(update=unset)
    return replace(setup, settings=setup.settings.model_copy(update={"model": model}))


def _sizes(prompts: list[Prompt], settings: RunSettings) -> Indices:
    """Return the positions that the answers to each prompt take in a batch [N].

    Raises:
        DataError: when a prompt leaves too little room for an answer.
        ConfigError: when a batch has no room for the answers to a prompt.
    """
    data, grpo = settings.data, settings.grpo
    lengths = np.array([len(each.ids) for each in prompts], np.int64) + grpo.answer_tokens
    if (longest := int(lengths.max())) > data.max_length:
        raise DataError(
            f"A prompt and {grpo.answer_tokens} tokens of an answer (grpo.answer_tokens) are "
            f"{longest:,} tokens, more than {data.max_length:,}",
            where=prompts[int(lengths.argmax())].asked.where,
            remedy=f"Set data.max_length to {longest}, lower grpo.answer_tokens, or leave it out",
        )
    if (size := grpo.group * longest) > data.budget:
        raise ConfigError(
            f"A batch of {data.budget} tokens has no room for {grpo.group} answers of {longest}",
            where="data.batch_tokens",
            remedy=f"Raise it to {size} or more",
        )
    return grpo.group * lengths


def _check(settings: RunSettings) -> None:
    """Refuse settings that contradict each other.

    Raises:
        ConfigError: when they do.
    """
    if settings.grpo.updates > 1 and settings.optimizer.accumulate > 1:
        raise ConfigError(
            "The answers of one update are not used again when several batches make up an update",
            where="grpo.updates and optimizer.accumulate",
            remedy="Set one of them to 1",
        )
    parallel = settings.parallel
    if max(parallel.shard, parallel.tensor, parallel.context) > 1:
        raise ConfigError(
            "A model in parts samples no answers",
            where="parallel.shard, parallel.tensor and parallel.context",
            remedy="Train it whole in each process",
        )


def _fingerprint(settings: RunSettings, tokenizers: str, prompts: list[Prompt]) -> str:
    """Hash the prompts with their answers, the tokenizers and the weights of the files."""
    content = [(each.ids, each.asked.answer) for each in prompts]
    weights = [corpus.weight for corpus in settings.data.train]
    return hashlib.sha256(f"{tokenizers} {weights} {content!r}".encode()).hexdigest()
