"""Alternatives to one token of a translation, each with the continuation it leads to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from heedful.data.batches import source_tensors
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
        word: the first word after the given beginning; "" where the translation ends there.
        probability: of the piece that the word begins with, given the beginning.
        translation: the best translation found that begins so.
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
    settings: SearchSettings | None = None,
) -> list[Alternative]:
    """Words that could follow a translation's beginning, the most probable first.

    The model is asked once for the next piece; each of the most probable ones that begin a word is
    then searched on to the end of the sentence. Pieces that lead to the same word count once.

    Args:
        pipeline: the translator.
        source: one line of text.
        before: the translation up to the place, "" for its first word.
        count: at most how many.
        settings: of the search; the defaults if unset.

    Raises:
        DataError: when the line is longer than the model translates at once.
    """
    ids, beginning = _encoded(pipeline, source, before)
    if not ids:
        return []
    target = pipeline.tokenizers.target
    line, at = source_tensors([ids], pipeline.tokenizers.source)
    line, at = line.to(pipeline.device), at.to(pipeline.device)
    probabilities = _next_piece(pipeline, line, at, beginning).exp()
    pieces = _word_beginnings(pipeline, probabilities, beginning, count)
    prefixes = [[*beginning, piece] for piece in pieces if piece != pipeline.specials.eos]
    settings = settings or SearchSettings()
    result = iter(
        search(
            pipeline.model,
            line.expand(len(prefixes), -1),
            at.expand(len(prefixes), -1),
            settings,
            specials=pipeline.specials,
            prefixes=prefixes,
            longest=longest_output([model.spec for model in pipeline.models], settings),
        )
    )
    start = target.decode(beginning)
    alternatives: dict[str, Alternative] = {}
    for piece in pieces:
        probability = float(probabilities[piece])
        if piece == pipeline.specials.eos:
            score = pipeline.score([source], [beginning])[0].score
            alternative = Alternative("", probability, Translation(start, score=score))
        else:
            hypothesis = next(result)[0]
            text = one_line(target.decode(hypothesis.tokens))
            whole = Translation(text, score=hypothesis.score, finished=hypothesis.finished)
            alternative = Alternative(_word_after(text, start), probability, whole)
        alternatives.setdefault(alternative.word, alternative)
    return list(alternatives.values())


def _encoded(
    pipeline: TranslationPipeline, source: str, before: str
) -> tuple[list[int], list[int]]:
    """Ids of the line and of the beginning."""
    ids = pipeline.tokenizers.source.encode(single_line(source))
    if len(ids) > pipeline.max_length:
        raise DataError(
            f"The line has {len(ids)} tokens, more than the {pipeline.max_length} that the model "
            "translates at once",
            remedy="Look for alternatives in a shorter line",
        )
    return ids, pipeline.tokenizers.target.encode(" ".join(clean(before).split()))


def _next_piece(
    pipeline: TranslationPipeline,
    source: torch.Tensor,
    positions: torch.Tensor,
    beginning: Sequence[int],
) -> torch.Tensor:
    """Log-probabilities [V] of the piece after a beginning; without special ones."""
    state = pipeline.model.start(source, positions)
    logits = None
    for token in [pipeline.specials.bos, *beginning]:
        tokens = torch.full((1, 1), token, device=source.device)
        logits, state = pipeline.model.step(state, tokens)
    assert logits is not None
    scores = log_probabilities(logits)[0, 0]
    scores[[*(pipeline.specials.ids - {pipeline.specials.eos})]] = -torch.inf
    return scores


def _word_beginnings(
    pipeline: TranslationPipeline,
    probabilities: torch.Tensor,
    beginning: Sequence[int],
    count: int,
) -> list[int]:
    """The most probable pieces that leave the last word of the beginning as it is."""
    target = pipeline.tokenizers.target
    end = len(target.decode(beginning))
    results: list[int] = []
    for piece in probabilities.argsort(descending=True).tolist():
        if len(results) == count or probabilities[piece] == 0:
            break
        spans = word_spans(target.decode([*beginning, piece]))
        begins = target.token(piece).startswith(MARK) or any(first >= end for first, _ in spans)
        if begins or piece == pipeline.specials.eos:
            results.append(piece)
    return results


def _word_after(text: str, start: str) -> str:
    """The word of a text that holds the first character after a beginning."""
    place = len(start)
    while place < len(text) and text[place].isspace():
        place += 1
    for first, last in word_spans(text):
        if last > place:
            return text[first:last]
    return ""
