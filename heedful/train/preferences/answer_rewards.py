"""Rewards of answers, by name: of their length, of a right answer, or by another model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heedful.data.chat_corpus import Asked
from heedful.errors import ConfigError, DataError
from heedful.pipelines.any_pipeline import load_pipeline, loaded_as
from heedful.train.objective_settings import GrpoSettings

Reward = Callable[[Sequence[Asked], Sequence[str]], list[float]]
"""Function from prompts and an answer to each to rewards, of which the larger is better."""


def answer_reward(settings: GrpoSettings, prompts: Sequence[Asked]) -> Reward:
    """Return the reward that the settings name.

    Args:
        settings: name of the reward, with its own settings.
        prompts: all prompts of the run.

    Raises:
        ConfigError: when no reward is named, or a setting of it is missing, or of another.
        DataError: when the reward compares answers and a prompt has none.
        ModelError: when the model that rewards cannot be loaded, or is of another kind.
    """
    _check_settings(settings)
    if settings.reward == "length":
        return lambda asked, answers: [
            float(-abs(len(a.split()) - settings.words)) for a in answers
        ]
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
        return _of_label(settings)
    judge = loaded_as("encoder", load_pipeline(str(settings.judge)))
    judge.require("reward")
    return lambda asked, answers: judge.reward(
        [
            [*each.messages, {"role": "assistant", "content": answer}]
            for each, answer in zip(asked, answers, strict=True)
        ]
    )


def _exact(asked: Sequence[Asked], answers: Sequence[str]) -> list[float]:
    """Return 1 for answers that are equal to the right ones up to white space, else 0."""
    return [
        float(answer.split() == (each.answer or "").split())
        for each, answer in zip(asked, answers, strict=True)
    ]


def _of_label(settings: GrpoSettings) -> Reward:
    """Return the probability of a label as the reward."""
    judge = loaded_as("encoder", load_pipeline(str(settings.judge)))
    judge.require("sequence")
    if settings.label not in (known := judge.labels("sequence")):
        raise ConfigError(
            f"The classifier has no label {settings.label!r}",
            where="grpo.label",
            remedy=f"Choose among {', '.join(known)}",
        )

    def reward(asked: Sequence[Asked], answers: Sequence[str]) -> list[float]:
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
