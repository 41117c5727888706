"""Page "Translate": a translation, its word alignment, and alternatives for words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from heedful.apps.quality.checker import Checker
from heedful.apps.quality.lost_words import gains_without_words
from heedful.apps.quality.reports import Languages
from heedful.apps.quality.text_checks import CHECKS
from heedful.apps.quality.unknown_words import name_edits
from heedful.apps.studio.alternatives import find_alternatives
from heedful.apps.studio.page import ModelRequest, PromptRequest, call, check_length
from heedful.apps.studio.why_this_word import again, inside, why  # noqa: F401, calls of this page
from heedful.apps.studio.workspace import Workspace
from heedful.errors import ConfigError, DataError
from heedful.inspect.attention_maps import parts_of
from heedful.pipelines.text_splitting import Translation

LONGEST = 2000
"""Maximum number of characters of a text, which limits the waiting time."""

MOST_CONTRASTED = 300
"""Characters of a text that is translated without each of its words, in half a second."""


class TranslatePageRequest(PromptRequest):
    """A text, and settings of the search."""

    beam: Annotated[int, Field(ge=1, le=16)] = 4
    n_best: Annotated[int, Field(ge=1, le=16)] = 3
    length_penalty: Annotated[float, Field(ge=0, le=5)] = 0.6
    prefix: str = ""


class LostWordsRequest(ModelRequest):
    """A text and its translation."""

    text: str
    translation: str


class AlternativesRequest(ModelRequest):
    """A line, its translation up to a word, and the number of alternatives."""

    line: str
    before: str = ""
    count: Annotated[int, Field(ge=1, le=16)] = 6


@call(TranslatePageRequest)
def text(request: TranslatePageRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the best translations with alignments, and warnings."""
    _check_length(request.text)
    _check_length(request.prefix)
    pipeline = workspace.translator(request.model)
    aligns = "cross" in parts_of(workspace.place(request.model).load().model)
    warnings: list[str] = []
    translation = pipeline.translate(
        [request.text],
        prefixes=[request.prefix] if request.prefix else None,
        alignment=aligns,
        beam=max(request.beam, request.n_best),
        n_best=request.n_best,
        length_penalty=request.length_penalty,
        warn=warnings.append,
    )[0]
    if not request.text.strip():
        warnings.append("The text is empty, and so is its translation")
    if not aligns:
        warnings.append(
            "The model has no attention to its source, of which it keeps one vector: no word of "
            "the translation can be aligned with one of the text"
        )
    unknown = _unknown(request.text, pipeline)
    if unknown:
        warnings.append(f"The model has no piece for: {' '.join(unknown)}")
    return {
        "translations": [_plain(each, request.text) for each in translation.n_best],
        "warnings": warnings,
        "checks": _failed_checks(request, pipeline, translation, workspace),
    }


@call(LostWordsRequest)
def lost(request: LostWordsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return how much more probable a translation of one line is without each word of the text.

    And the misspelled names of the translation, with their spelling in the text.
    """
    pipeline = workspace.translator(request.model)
    languages = _languages(request.model, workspace)
    edits = name_edits(request.text, request.translation, languages, pipeline.tokenizers)
    names = [{"start": start, "end": end, "name": name} for start, end, name in edits]
    if len(request.text) > MOST_CONTRASTED or "\n" in request.text.strip():
        return {"words": [], "names": names}
    try:
        [gains] = gains_without_words(pipeline, [(request.text, request.translation)])
    except DataError:  # more tokens than a model with learned positions can read at once
        gains = []
    words = [{"start": each.start, "end": each.end, "gain": gain} for each, gain in gains]
    return {"words": words, "names": names}


@call(AlternativesRequest)
def alternatives(request: AlternativesRequest, workspace: Workspace) -> dict[str, Any]:
    """Return alternatives to a word, each with the translation that follows."""
    _check_length(request.line)
    _check_length(request.before)
    pipeline = workspace.translator(request.model)
    proposals = find_alternatives(pipeline, request.line, request.before, count=request.count)
    return {
        "alternatives": [
            {
                "word": each.word,
                "probability": each.probability,
                "text": str(each.translation),
                "score": each.translation.score,
            }
            for each in proposals
        ]
    }


def _failed_checks(
    request: TranslatePageRequest, pipeline: Any, translation: Translation, workspace: Workspace
) -> list[dict[str, Any]]:
    """Return the checks of `translate --check` that the best translation fails."""
    languages = _languages(request.model, workspace)
    try:
        reports = Checker(pipeline, languages).reports([request.text], [translation])
    except ConfigError:  # a package that the checks need is not installed
        return []
    failed = [each for each in reports[0].checks if each.failed]
    return [{**each.plain(), "passes": CHECKS[each.name]} for each in failed]


def _languages(model: str, workspace: Workspace) -> Languages:
    card = workspace.place(model).card()
    source, target, *_ = (*(card.languages if card else ()), None, None)
    return source, target


def _check_length(text: str) -> None:
    remedy = "Translate files with: heedful translate MODEL -i FILE"
    check_length(text, LONGEST, where="text", remedy=remedy)


def _unknown(text: str, pipeline: Any) -> list[str]:
    tokenizer = pipeline.tokenizers.source
    words = list(dict.fromkeys(text.split()))
    ids = tokenizer.encode_batch(words)
    return [word for word, row in zip(words, ids, strict=True) if tokenizer.unk in row][:10]


def _plain(translation: Translation, source: str) -> dict[str, Any]:
    alignment = translation.alignment
    source_words = alignment.source_words if alignment else source.split()
    target_words = alignment.target_words if alignment else str(translation).split()
    return {
        "text": str(translation),
        "score": translation.score,
        "finished": translation.finished,
        "source": split_words(source, source_words),
        "target": split_words(str(translation), target_words),
        "matrix": [[round(w, 4) for w in row] for row in alignment.matrix] if alignment else [],
        "tokens": len(translation.tokens),
        "pieces": _pieces(translation),
    }


def _pieces(translation: Translation) -> list[dict[str, Any]]:
    """Return each token with its log-probability; None stands for the end of a line."""
    tokens, scores = iter(translation.tokens), iter(translation.token_scores)
    return [
        {"piece": next(tokens) if place < length else None, "score": round(next(scores), 5)}
        for length in translation.segment_lengths
        for place in range(length + 1)
    ]


def split_words(text: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """Split a text into words with their indices, and text between words with None.

    Args:
        text: text to split.
        words: words in order; a word that the text does not contain becomes a separate part.
    """
    parts: list[dict[str, Any]] = []
    end = 0
    for number, word in enumerate(words):
        start = text.find(word, end)
        if start < 0:
            parts.append({"text": word, "word": number})
            continue
        if start > end:
            parts.append({"text": text[end:start], "word": None})
        parts.append({"text": word, "word": number})
        end = start + len(word)
    if end < len(text):
        parts.append({"text": text[end:], "word": None})
    return parts
