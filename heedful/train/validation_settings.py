"""The settings of validation during training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heedful.config import Config, PositiveInt
from heedful.train.task_rules import AnyChoice, AnyMetric


class ValidationSettings(Config):
    """Validation during training; translations come from the beam search of `translate`."""

    every_steps: PositiveInt = Field(
        1000, description="number of updates from one validation to the next"
    )
    metrics: tuple[AnyMetric, ...] = Field(
        ("bleu", "chrf"),
        description="metrics in addition to the loss: bleu, chrf, ter for translation, and rouge1, "
        "rouge2, rougeL, answer_exact, answer_f1, entity_f1, bracket_f1 for other texts; accuracy, "
        "macro_f1 for classifiers; accuracy, span_f1 for taggers; exact_match, f1 for answers; "
        "recall for images with captions; codes_used, code_perplexity for autoencoders",
    )
    choose_by: AnyChoice = Field(
        "bleu", description="metric that selects the best model and decides early stopping"
    )
    beam: PositiveInt = Field(
        4, description="beam width of translations in validation; 1 is greedy and faster"
    )
    length_penalty: Annotated[float, Field(ge=0)] = Field(
        0.6,
        description="exponent of the length penalty of the beam search (Wu 2016); larger values "
        "favour long translations",
    )
    tokenize: str = Field(
        "auto",
        description="tokenizer of sacreBLEU, such as 13a, zh, ja-mecab or none (for tokenised "
        "text); auto follows the script of the references",
    )
    lowercase: bool = Field(False, description="ignore upper and lower case in metrics")
    max_sentences: PositiveInt | None = Field(
        None,
        description="number of validation examples used during training; the end of training uses "
        "all",
    )
    patience: PositiveInt | None = Field(
        None,
        description="number of validations without improvement after which training stops; never "
        "if unset",
    )
