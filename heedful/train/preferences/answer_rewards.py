"""Rewards of answers, by name: of their length, of a right answer, or by another model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from heedful.data.chat_corpus import PromptLine
from heedful.errors import ConfigError, DataError
from heedful.pipelines.any_pipeline import load_pipeline, loaded_as
from heedful.train.objective_settings import GrpoSettings

Reward = Callable[[Sequence[PromptLine], Sequence[str]], list[float]]
"""Function from prompts and an answer to each to rewards, of which the larger is better."""


def answer_reward(settings: GrpoSettings, prompts: Sequence[PromptLine], most: int) -> Reward:
    """Return the reward that the settings name.

    Args:
        settings: name of the reward, with its own settings.
        prompts: all prompts of the run.
        most: most tokens of a prompt with its answer.

    Raises:
        ConfigError: when no reward is named, or a setting of it is missing, or of another.
        DataError: when the reward compares answers and a prompt has none.
        ModelError: when the model that rewards cannot be loaded, or is of another kind.
    """
    _check_settings(settings)
    if settings.reward == "length":
        words = settings.words
        return lambda asked, answers: [float(-abs(len(each.split()) - words)) for each in answers]
    if settings.reward == "exact":
        for each in prompts:
            if each.answer is None:
                raise DataError(
                    "The prompt has no answer to compare with",
                    where=each.where,
                    remedy='Add "answer", or choose another reward',
                )
        return _exact
    if settings.reward == "sentiment":
        return _of_label(settings, most)
    judge = _judge(settings, most, "reward")

    def reward(asked: Sequence[PromptLine], answers: Sequence[str]) -> list[float]:
        said = ({"role": "assistant", "content": answer} for answer in answers)
        pairs = zip(asked, said, strict=True)
        found: list[float] = judge.reward([[*each.messages, answer] for each, answer in pairs])
        return found

    return reward


def _exact(asked: Sequence[PromptLine], answers: Sequence[str]) -> list[float]:
    """Return 1 for answers that are equal to the right ones up to white space, else 0."""
    return [
        float(answer.split() == (each.answer or "").split())
        for each, answer in zip(asked, answers, strict=True)
    ]


def _judge(settings: GrpoSettings, most: int, head: str) -> Any:
    """Return the pipeline of the model that rewards, which has to have a head."""
    # In float32 a resumed run gets the same rewards, whatever is fastest at that time.
    judge = loaded_as("encoder", load_pipeline(str(settings.judge), precision="fp32"))
    judge.require(head)
    longest = judge.spec.max_length
    # Found now, and not by the first long answer of a run.
    if longest is not None and longest < most:
        raise ConfigError(
            f"The judge reads {longest} tokens, and prompts with answers may have {most}",
            where="grpo.judge",
            remedy=f"Lower data.max_length to {longest}, or train a judge on longer texts",
        )
    return judge


def _of_label(settings: GrpoSettings, most: int) -> Reward:
    """Return the probability of a label as the reward."""
    judge = _judge(settings, most, "sequence")
    if settings.label not in (known := judge.labels("sequence")):
        raise ConfigError(
            f"The classifier has no label {settings.label!r}",
            where="grpo.label",
            remedy=f"Choose among {', '.join(known)}",
        )

    def reward(asked: Sequence[PromptLine], answers: Sequence[str]) -> list[float]:
        # A blank text has no labels, and no sentiment either.
        return [
            sum(each.probability for each in labels if each.label == settings.label)
            for labels in judge.classify(answers)
        ]

    return reward


_NEEDED = {"sentiment": ("judge", "label"), "reward_model": ("judge",), "length": ("words",)}
"""The settings that only these rewards have."""


def _check_settings(settings: GrpoSettings) -> None:
    """Refuse a run without a reward, and settings that its reward lacks or does not have."""
    if settings.reward is None:
        raise ConfigError(
            "No reward is named",
            where="grpo.reward",
            remedy="Choose among length, exact, sentiment, reward_model (--grpo.reward)",
        )
    own = _NEEDED.get(settings.reward, ())
    for name in ("judge", "label", "words"):
        value, default = getattr(settings, name), type(settings).model_fields[name].default
        if name in own and value is None:
            raise ConfigError(
                f"The reward {settings.reward} needs grpo.{name}",
                where=f"grpo.{name}",
                remedy="Name a directory" if name == "judge" else "Name a label of the classifier",
            )
        if name not in own and value != default:
            raise ConfigError(
                f"grpo.{name} is not for the reward {settings.reward}",
                where=f"grpo.{name}",
                remedy="Leave it out",
            )
