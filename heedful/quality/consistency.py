"""A translator that keeps to its source in what models often change: capitals.

The source is respelled into what models know and translated as any text, and the translation is
respelled in turn. Alignments are between the texts as people see them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.pipelines.search_items import Terminology
from heedful.pipelines.text_splitting import Translation, clean
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.alignment import Alignment
from heedful.text.capitals import capital_parts, capitals, sentence_case
from heedful.text.pretokenization import word_spans
from heedful.text.respelling import Edit, Respelling, Span

Languages = tuple[str | None, str | None]
"""Codes of source and target, None where unknown."""


class ConsistentTranslation(TranslationPipeline):
    """A translation pipeline whose translations keep to their sources.

    Args:
        pipeline: the translator.
        capitals: sentences in capitals are translated in sentence case, and their translations put
            in capitals.
        languages: of source and target; they decide about some letters.
    """

    def __init__(
        self,
        pipeline: TranslationPipeline,
        *,
        capitals: bool = False,
        languages: Languages = (None, None),
    ) -> None:
        super().__init__(
            pipeline.models,
            pipeline.tokenizers,
            precision=pipeline.precision,
            shortlist=pipeline.shortlist,
        )
        self.capitals = capitals
        self.languages = languages

    def translate(
        self,
        texts: Sequence[str],
        *,
        glossary: Terminology | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Translate texts; see `TranslationPipeline.translate`.

        Args:
            texts: any strings.
            glossary: terms in capitals are found, and those of translations are left as they are.
            **options: all others that it has.
        """
        if isinstance(texts, str):  # refused there
            return super().translate(texts, **options)
        prepared = [_Source(text, self, glossary) for text in texts]
        translations = super().translate(
            [each.respelling.result for each in prepared], glossary=glossary, **options
        )
        return [
            _every(translation, source.finish)
            for source, translation in zip(prepared, translations, strict=True)
        ]

    def count_tokens(self, words: Sequence[str]) -> list[int]:
        """Return how many tokens each word of a source has; one that cannot be spelled, many."""
        source = self.tokenizers.source
        return [
            len(ids) + (len(word) if source.unk in ids else 0)
            for word, ids in zip(words, source.encode_batch(words), strict=True)
        ]


class _Source:
    """A text as it is translated, and what its translation becomes.

    Args:
        text: any string.
        translator: says what is kept to.
        glossary: of the translation.

    Attributes:
        respelling: of the text, for the model.
    """

    def __init__(
        self, text: str, translator: ConsistentTranslation, glossary: Terminology | None
    ) -> None:
        self.translator = translator
        self.glossary = glossary
        self.lines: list[tuple[bool, str]] = []
        """For each line of the translation: is it put in capitals, and what stands after it?"""
        edits: list[Edit] = []
        done = 0
        text = clean(text)
        for line in text.split("\n"):
            edits += self._line(line, done)
            done += len(line) + 1
        self.respelling = Respelling.of(text, edits)

    def _line(self, line: str, offset: int) -> Iterator[Edit]:
        """Edits of a line that begins at an offset: parts of it become lines of their own."""
        parts = capital_parts(line) if self.translator.capitals else [((0, len(line)), False)]
        for number, ((start, end), is_upper) in enumerate(parts):
            if number:
                yield offset + parts[number - 1][0][1], offset + start, "\n"
            if is_upper:
                yield from _moved(self._sentence_case(line[start:end]), offset + start)
            self.lines.append((is_upper, " " if number + 1 < len(parts) else "\n"))

    def _sentence_case(self, text: str) -> list[Edit]:
        terms = [] if self.glossary is None else self.glossary.find(text)
        return sentence_case(
            text,
            self.translator.languages[0],
            count_tokens=self.translator.count_tokens,
            kept=[(each.start, each.end) for each in terms if not each.term.ignore_case],
        )

    def finish(self, translation: Translation) -> Translation:
        """Return the translation as people see it, without its next-best ones."""
        translation = _with_source(translation, self.respelling)
        return _respelled(translation, Respelling.of(translation, self._case(translation)))

    def _case(self, translation: str) -> Iterator[Edit]:
        """Edits that put lines of a translation in capitals, and parts of a line together."""
        done = 0
        kept = list(self._terms(translation))
        for line, (is_upper, after) in zip(translation.split("\n"), self.lines, strict=False):
            if is_upper:
                inside = [(a - done, b - done) for a, b in kept]
                edits = capitals(line, self.translator.languages[1], inside)
                yield from _moved(edits, done)
            done += len(line) + 1
            if done <= len(translation):
                yield done - 1, done, after

    def _terms(self, translation: str) -> Iterator[Span]:
        """Places of the glossary's terms in a translation."""
        if self.glossary is None:
            return
        for occurrence in self.glossary.find(self.respelling.result):
            for target in occurrence.term.targets:
                for match in re.finditer(rf"(?<!\w){re.escape(target)}(?!\w)", translation):
                    yield match.span()


def _moved(edits: Sequence[Edit], offset: int) -> Iterator[Edit]:
    return ((start + offset, end + offset, new) for start, end, new in edits)


def _every(translation: Translation, finish: Callable[[Translation], Translation]) -> Translation:
    """Return a translation finished, and its next-best ones, too."""
    best, *others = map(finish, translation.n_best)
    best.others = tuple(others)
    return best


def _respelled(translation: Translation, respelling: Respelling) -> Translation:
    """Return a translation after edits of its text."""
    if not respelling.edits:
        return translation
    result = Translation(respelling.result, **vars(translation))
    if translation.alignment is not None:
        result.alignment = realigned(translation.alignment, target=respelling)
    return result


def _with_source(translation: Translation, respelling: Respelling) -> Translation:
    """Return a translation aligned with its source before the source's edits."""
    if not respelling.edits or translation.alignment is None:
        return translation
    result = Translation(translation, **vars(translation))
    result.alignment = realigned(translation.alignment, source=respelling)
    return result


def realigned(
    alignment: Alignment, *, source: Respelling | None = None, target: Respelling | None = None
) -> Alignment:
    """Return an alignment between the words of respelled texts.

    A word's weight is shared by the words it becomes; a word of the target that was several has
    their mean.

    Args:
        alignment: between the respelled source and the target before its edits.
        source: leads from the words wanted to those of the alignment; no change if unset.
        target: leads from the words of the alignment to those wanted; no change if unset.
    """
    weights = np.array(alignment.matrix, float).reshape(
        len(alignment.target_words), len(alignment.source_words)
    )
    source_words, target_words = alignment.source_words, alignment.target_words
    if source is not None:
        spans = word_spans(source.text)
        source_words = tuple(source.text[a:b] for a, b in spans)
        old = _locate(alignment.source_words, source.result)
        shares = _overlaps([source.origin(span) for span in old], spans)
        weights = weights @ (shares / shares.sum(1, keepdims=True).clip(1))
    if target is not None:
        spans = word_spans(target.result)
        target_words = tuple(target.result[a:b] for a, b in spans)
        old = _locate(alignment.target_words, target.text)
        shares = _overlaps([target.origin(span) for span in spans], old)
        weights = (shares / shares.sum(1, keepdims=True).clip(1)) @ weights
    return Alignment(source_words, target_words, tuple(map(tuple, weights.tolist())))


def _overlaps(left: Sequence[Span], right: Sequence[Span]) -> npt.NDArray[np.float64]:
    """Return a matrix of 1 where spans share characters, else 0."""
    a, b = (np.array(spans, int).reshape(-1, 2) for spans in (left, right))
    shared = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
    result: npt.NDArray[np.float64] = (shared > 0).astype(float)
    return result


def _locate(words: Sequence[str], text: str) -> list[Span]:
    """Return where words stand that follow each other in a text."""
    spans: list[Span] = []
    done = 0
    for word in words:
        start = max(text.find(word, done), done)
        done = start + len(word)
        spans.append((start, done))
    return spans
