"""Texts longer than those of training are read, and told of once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from heedful.apps.evaluation.choices import ChoiceQuestion, answer_likelihoods
from heedful.apps.evaluation.text_likelihood import loss_by_position, text_likelihood
from heedful.apps.evaluation.text_scores import score_texts
from heedful.models.build import build_model
from heedful.models.rotary_override import stretch_rotary
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.pipelines.speculative_generation import speculate
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.pipelines.text_pipeline import LongerThanTraining
from heedful.search.search_settings import GenerationSettings
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

TRAINED = 16
SHORT, LONG = "ab", "ab cd " * 5
ENDLESS = GenerationSettings(min_length=20, max_length=20)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    texts = ["abcd dcba"] * 9
    return train_pair(TokenizerSpec(vocabulary_size=12, normalization="none"), texts, texts).source


@pytest.fixture(scope="module")
def writer(tokenizer: TextTokenizer) -> GenerationPipeline:
    """An untrained writer with rotary positions, of texts of 16 tokens."""
    torch.manual_seed(0)
    shape = TranslatorShape(
        width=16, decoder_layers=1, num_heads=2, feedforward=16, positions="rotary"
    )
    model = build_model(causal_lm_spec(shape, tokenizer.size, TRAINED))
    return GenerationPipeline(model.eval(), tokenizer)


def answer(writer: GenerationPipeline, prompt: str) -> None:
    question = ChoiceQuestion(prompt, ("a", "b"), 0, "line 1")
    answer_likelihoods(writer, [question])


WAYS: dict[str, Callable[[GenerationPipeline], object]] = {
    "long prompts": lambda writer: writer.generate([SHORT, LONG], max_length=1),
    "much that is written": lambda writer: writer.generate([SHORT], settings=ENDLESS),
    "a stream's prompt": lambda writer: list(writer.stream(LONG, max_length=1)),
    "a stream": lambda writer: list(writer.stream(SHORT, settings=ENDLESS)),
    "drafts": lambda writer: speculate(writer, [SHORT], settings=ENDLESS, lookup=2),
    "windows": lambda writer: text_likelihood(writer, [LONG], length=TRAINED + 1),
    "answers": lambda writer: answer(writer, LONG),
}


@pytest.fixture
def told() -> Iterator[list[warnings.WarningMessage]]:
    """What Python shows of warnings by itself: each once for its place and words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield caught


@pytest.mark.parametrize("way", WAYS)
def test_longer_texts_are_told_of_once(
    writer: GenerationPipeline, told: list[warnings.WarningMessage], way: str
) -> None:
    for _ in range(2):
        WAYS[way](writer)
    (only,) = told
    assert only.category is LongerThanTraining
    assert f"at most {TRAINED} tokens" in str(only.message)
    assert "--rotary-scaling" in str(only.message)


@pytest.mark.parametrize("way", WAYS)
def test_stretched_positions_reach_as_far_as_their_factor(
    writer: GenerationPipeline, told: list[warnings.WarningMessage], way: str
) -> None:
    stretched = stretch_rotary(writer.model, "yarn", 3.0)
    assert stretched.spec.trained_length == 3 * TRAINED
    WAYS[way](GenerationPipeline(stretched.eval(), writer.tokenizer))
    assert not told


def test_nothing_is_told_within_the_length(
    writer: GenerationPipeline, told: list[warnings.WarningMessage]
) -> None:
    begun = len(writer.tokenizer.encode(SHORT)) + 1
    exact = GenerationSettings(min_length=TRAINED - begun, max_length=TRAINED - begun)
    (found,) = writer.generate([SHORT], settings=exact)
    assert len(found.tokens) + begun == TRAINED
    list(writer.stream(SHORT, settings=exact))
    answer(writer, SHORT)
    # Windows are as long as training's, unless other ones are asked for.
    score_texts(writer, [LONG])
    text_likelihood(writer, [LONG])
    loss_by_position(writer, [LONG])  # which says itself where training ended
    assert not told


def test_a_model_with_a_memory_reads_any_number_of_segments() -> None:
    shape = TranslatorShape(
        width=16, decoder_layers=1, num_heads=2, feedforward=16, positions="transformer_xl",
        memory=8,
    )  # fmt: skip
    assert causal_lm_spec(shape, 12, TRAINED).trained_length is None
