"""Alternatives to a word of a translation, each with the best continuation after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from heedful.data.padding import source_tensors
from heedful.errors import DataError
from heedful.pipelines.text_splitting import Translation, clean, one_line, single_line
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.dispatch import search
from heedful.search.search_settings import SearchSettings, longest_output
from heedful.search.step_model import log_probabilities
from heedful.text.pretokenization import MARK, word_spans


@dataclass(frozen=True)
class Alternative:
    """A word that could stand at a place.

    Args:
        word: the first word after the given beginning; "" if the translation ends there.
        probability: probability of the word's first token, given the beginning.
        translation: best translation found that begins with the beginning and the word.
    """

    word: str
    probability: float
    translation: Translation


@torch.inference_mode()
def find_alternatives(
    pipeline: TranslationPipeline,
    source: str,
    before: str,
    *,
    count: int = 6,
) -> list[Alternative]:
    """Return words that could follow the beginning of a translation, the most probable first.

    The model predicts the next token once. A search then continues from each of the most probable
    tokens that begin a word to the end of the sentence. Of tokens that lead to the same word, the
    most probable one counts.

    Args:
        pipeline: translator.
        source: one line of text.
        before: beginning of the translation, "" for alternatives to its first word.
        count: maximum number of alternatives.

    Raises:
        DataError: when the line is longer than the model translates at once.
    """
    ids, beginning = _encoded(pipeline, source, before)
    # White space alone has no tokens, and the encoder cannot read an empty source.
    if not ids:
        return []
    target = pipeline.tokenizers.target
    line, positions = source_tensors([ids], pipeline.tokenizers.source)
    line, positions = line.to(pipeline.device), positions.to(pipeline.device)
    probabilities = _next_token(pipeline, line, positions, beginning).exp()
    tokens = _word_beginnings(pipeline, probabilities, beginning, count)
    # The end token needs no search: its hypothesis is the beginning itself.
    prefixes = [[*beginning, token] for token in tokens if token != pipeline.specials.eos]
    settings = SearchSettings()
    result = iter(
        search(
            pipeline.engine,
            # `expand` makes a view: the source is not copied for each prefix.
            line.expand(len(prefixes), -1),
            positions.expand(len(prefixes), -1),
            settings,
            specials=pipeline.specials,
            prefixes=prefixes,
            longest=longest_output([model.spec for model in pipeline.engines], settings),
        )
    )
    start = target.decode(beginning)
    alternatives: dict[str, Alternative] = {}
    for token in tokens:
        probability = float(probabilities[token])
        if token == pipeline.specials.eos:
            score = pipeline.score([source], [beginning])[0].score
            alternative = Alternative("", probability, Translation(start, score=score))
        else:
            hypothesis = next(result)[0]
            text = one_line(target.decode(hypothesis.tokens))
            whole = Translation(text, score=hypothesis.score, finished=hypothesis.finished)
            alternative = Alternative(_word_after(text, start), probability, whole)
        # Tokens come in the order of probability, so the first one of a word is kept.
        alternatives.setdefault(alternative.word, alternative)
    return list(alternatives.values())


def _encoded(
    pipeline: TranslationPipeline, source: str, before: str
) -> tuple[list[int], list[int]]:
    """Return the token ids of the source line and of the translation's beginning."""
    ids = pipeline.tokenizers.source.encode(single_line(source))
    if len(ids) > pipeline.max_length:
        raise DataError(
            f"The line has {len(ids)} tokens, more than the {pipeline.max_length} that the model "
            "translates at once",
            remedy="Look for alternatives in a shorter line",
        )
    # Runs of spaces become one space: a tokenizer may have other tokens for runs.
    return ids, pipeline.tokenizers.target.encode(" ".join(clean(before).split()))


def _next_token(
    pipeline: TranslationPipeline,
    source: torch.Tensor,
    positions: torch.Tensor,
    beginning: Sequence[int],
) -> torch.Tensor:
    """Return log-probabilities [V] of the next token; −∞ for special tokens other than the end."""
    state = pipeline.engine.start(source, positions)
    logits = None
    for token in [pipeline.specials.bos, *beginning]:
        tokens = torch.full((1, 1), token, device=source.device)
        logits, state = pipeline.engine.step(state, tokens)
    assert logits is not None
    scores = log_probabilities(logits)[0, 0]
    # Padding and begin tokens are not text; the end token is a valid alternative.
    scores[[*(pipeline.specials.ids - {pipeline.specials.eos})]] = -torch.inf
    return scores


def _word_beginnings(
    pipeline: TranslationPipeline,
    probabilities: torch.Tensor,
    beginning: Sequence[int],
    count: int,
) -> list[int]:
    """Return the most probable tokens that do not extend the last word of the beginning."""
    target = pipeline.tokenizers.target
    end = len(target.decode(beginning))
    results: list[int] = []
    for token in probabilities.argsort(descending=True).tolist():
        # Special tokens have probability 0, so they come last in this order.
        if len(results) == count or probabilities[token] == 0:
            break
        spans = word_spans(target.decode([*beginning, token]))
        # Scripts without spaces have no mark of a space, so words that begin inside of a token
        # count too.
        begins = target.token(token).startswith(MARK) or any(first >= end for first, _ in spans)
        if begins or token == pipeline.specials.eos:
            results.append(token)
    return results


def _word_after(text: str, start: str) -> str:
    """Return the word of a text with the first non-space character after its beginning `start`."""
    place = len(start)
    while place < len(text) and text[place].isspace():
        place += 1
    for first, last in word_spans(text):
        if last > place:
            return text[first:last]
    return ""
