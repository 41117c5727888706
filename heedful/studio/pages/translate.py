"""Page "Translate": a translation, where each word came from, and what else it could have been."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.config import Config
from heedful.errors import UserError
from heedful.studio.page import Call, Page

if TYPE_CHECKING:
    from heedful.decode.translation import Translation
    from heedful.studio.workspace import Workspace

LONGEST = 2000
"""Characters that are translated while somebody waits."""


class TextRequest(Config):
    """A text, and how to search for its translation."""

    model: str
    text: str
    beam: Annotated[int, Field(ge=1, le=16)] = 4
    n_best: Annotated[int, Field(ge=1, le=16)] = 3
    length_penalty: Annotated[float, Field(ge=0, le=5)] = 0.6
    prefix: str = ""


class AlternativesRequest(Config):
    """A line, its translation up to a word, and how many other words to propose for it."""

    model: str
    line: str
    before: str = ""
    count: Annotated[int, Field(ge=1, le=16)] = 6


def text(asked: TextRequest, workspace: Workspace) -> dict[str, Any]:
    """The best translations, with alignments, and what there is to warn of."""
    _check_length(asked.text)
    _check_length(asked.prefix)
    pipeline = workspace.translator(asked.model)
    warnings: list[str] = []
    found = pipeline.translate(
        [asked.text],
        prefixes=[asked.prefix] if asked.prefix else None,
        alignment=True,
        beam=max(asked.beam, asked.n_best),
        n_best=asked.n_best,
        length_penalty=asked.length_penalty,
        warn=warnings.append,
    )[0]
    if not asked.text.strip():
        warnings.append("The text is empty, and so is its translation")
    unknown = _unknown(asked.text, pipeline)
    if unknown:
        warnings.append(f"The model has no piece for: {' '.join(unknown)}")
    return {
        "translations": [_plain(each, asked.text) for each in found.n_best],
        "warnings": warnings,
    }


def alternatives(asked: AlternativesRequest, workspace: Workspace) -> dict[str, Any]:
    """Other words at a place, each with the translation that it would lead to."""
    from heedful.decode.alternatives import find_alternatives

    _check_length(asked.line)
    _check_length(asked.before)
    pipeline = workspace.translator(asked.model)
    found = find_alternatives(pipeline, asked.line, asked.before, count=asked.count)
    return {
        "alternatives": [
            {
                "word": each.word,
                "probability": each.probability,
                "text": str(each.translation),
                "score": each.translation.score,
            }
            for each in found
        ]
    }


def _check_length(text: str) -> None:
    if len(text) > LONGEST:
        raise UserError(
            f"The text has {len(text):,} characters; here at most {LONGEST:,} are translated",
            where="text",
            remedy="Translate files with: heedful translate MODEL -i FILE",
        )


def _unknown(text: str, pipeline: Any) -> list[str]:
    """Words of which the source's tokenizer knows some part not at all."""
    tokenizer = pipeline.tokenizers.source
    words = list(dict.fromkeys(text.split()))
    found = [
        word
        for word, ids in zip(words, tokenizer.encode_batch(words), strict=True)
        if tokenizer.unk in ids
    ]
    return found[:10]


def _plain(translation: Translation, source: str) -> dict[str, Any]:
    alignment = translation.alignment
    source_words = alignment.source_words if alignment else ()
    target_words = alignment.target_words if alignment else ()
    return {
        "text": str(translation),
        "score": translation.score,
        "normalized_score": translation.normalized_score,
        "finished": translation.finished,
        "source": placed(source, source_words),
        "target": placed(str(translation), target_words),
        "matrix": [[round(w, 4) for w in row] for row in alignment.matrix] if alignment else [],
        "tokens": list(translation.tokens),
        "token_scores": [round(score, 5) for score in translation.token_scores],
    }


def placed(text: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """A text in parts: each word with its number, and what stands between words with None.

    Args:
        text: the whole.
        words: in their order; one that is not found as it is written there gets an empty place.
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


PAGE = Page(
    name="translate",
    title="Translate",
    summary="A translation, where each word came from, and what else it could have been.",
    about=(
        "Point at a word to see what the model looked at when it wrote it: cross-attention, "
        "recomputed for the finished translation. Click a word of the translation for what could "
        "stand there instead, and go on from your choice. Scores are natural logarithms of "
        "probabilities."
    ),
    calls={
        "text": Call(TextRequest, text),
        "alternatives": Call(AlternativesRequest, alternatives),
    },
)
