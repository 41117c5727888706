"""Settings of losses and their regularisers, and of learning from rewarded answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config, PositiveInt, Probability

NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]

RewardName = Literal["length", "exact", "sentiment", "reward_model"]
"""Rewards of answers, by name; see `heedful.train.preferences.answer_rewards`."""


class ObjectiveSettings(Config):
    """The loss and its regularisers."""

    label_smoothing: Probability = Field(
        0.1,
        description="probability spread evenly over the vocabulary or labels (Szegedy 2016); 0.1 "
        "is usual for translation",
    )
    scheduled_sampling: Share = Field(
        0.0,
        description="final share of target inputs that are replaced by the model's own "
        "predictions (Bengio 2015)",
    )
    scheduled_sampling_steps: PositiveInt = Field(
        10_000, description="number of updates over which scheduled_sampling grows linearly from 0"
    )
    r_drop: NonNegative = Field(
        0.0,
        description="weight of the symmetric KL divergence between two dropout passes (Liang "
        "2021); 5 is usual, and doubles the time",
    )
    bpe_dropout: Probability = Field(
        0.0,
        description="probability of skipping a BPE merge, so that words are segmented differently "
        "in every epoch (Provilkov 2020); 0.1 is usual",
    )
    mask_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.15,
        description="share of the tokens that are hidden in masked_lm, span_corruption and "
        "denoising",
    )
    whole_words: bool = Field(
        False, description="hide whole words in masked_lm instead of single tokens"
    )
    mean_span: Annotated[float, Field(ge=1, le=100)] = Field(
        3.0, description="mean length in tokens of a hidden span in span_corruption and denoising"
    )
    sentinels: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="number of sentinel tokens of a new tokenizer for span_corruption; enough for "
        "the longest text if unset",
    )
    commitment: NonNegative = Field(
        0.25,
        description="weight of the distance of a patch's vector from its code in the loss of an "
        "autoencoder (van den Oord 2017)",
    )
    beta: Annotated[float, Field(gt=0)] = Field(
        0.1,
        description="strength of the pull to the reference in dpo (Rafailov 2023), and weight of "
        "the divergence from it in grpo",
    )
    reference: str | None = Field(
        None,
        description="frozen model that dpo and grpo hold the trained one to, with its vocabulary; "
        "the initial model if unset",
    )
    permute_sentences: bool = Field(
        False, description="shuffle the sentences of each text in denoising (BART, Lewis 2020)"
    )


class GrpoSettings(Config):
    """Group relative policy optimisation (GRPO, Shao 2024): learning from rewarded answers."""

    reward: RewardName | None = Field(
        None,
        description="reward of an answer: length (near to words), exact (equal to the answer of "
        "the data), sentiment (probability of a label), reward_model",
    )
    words: PositiveInt = Field(
        1, description="number of words of an answer with the largest reward for length"
    )
    judge: str | None = Field(
        None,
        description="model that rewards answers: a classifier of texts for sentiment, a model of "
        "--task reward for reward_model",
    )
    label: str | None = Field(
        None, description="label of the classifier whose probability is the reward for sentiment"
    )
    group: Annotated[int, Field(ge=2)] = Field(
        8, description="number of answers that are sampled for a prompt and compared"
    )
    answer_tokens: PositiveInt = Field(
        64, description="most tokens of a sampled answer, its end not counted"
    )
    updates: PositiveInt = Field(
        1, description="number of updates from the same answers before others are sampled"
    )
    clip: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2,
        description="change of an answer token's probability since the sampling, as a ratio, "
        "beyond which it is no longer rewarded (Schulman 2017)",
    )
