"""Texts in segments as the items of a search: their prefixes and the phrases they require."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from heedful.errors import DataError, ModelError
from heedful.pipelines.segment_search import SearchItem
from heedful.pipelines.text_splitting import CutText, Segment, Warn, cut_texts, single_line
from heedful.search.phrase_automaton import RequiredPhrase
from heedful.text.inline_terms import InlineTerm, annotate, without_marks
from heedful.text.protected_spans import Protection, reserved_marks, span_kinds
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from heedful.pipelines.glossary import Occurrence

_SEGMENTS_OF_A_TEXT = 1 << 20
"""Random draws are named by text and segment: no text has as many segments."""


class Terminology(Protocol):
    """Anything that knows the phrases a translation must contain, such as a `Glossary`.

    A soft one knows translations that are written into the source instead.
    """

    @property
    def is_soft(self) -> bool:
        """True if its terms need a model that has learned soft terms."""

    def check(self, tokenizer: TextTokenizer) -> None:
        """Refuse phrases that a model cannot write; the tokenizer is of the target."""

    def find(self, text: str) -> Sequence[Occurrence]:
        """The terms in a text, from left to right."""

    def phrases(self, text: str, tokenizer: TextTokenizer) -> tuple[RequiredPhrase, ...]:
        """The phrases of a text's translation; the tokenizer is of the target."""

    def inline(self, text: str) -> Sequence[InlineTerm]:
        """The translations to write into a text, from left to right."""


def protection_of(tokenizers: TokenizerPair, protect: Sequence[str] | None) -> Protection | None:
    """The protection of some kinds of parts by a model.

    Args:
        tokenizers: of the model.
        protect: names of the kinds; those that the model was trained for if unset.

    Raises:
        ConfigError: when there is no such kind.
        ModelError: when the model has no reserved tokens.
    """
    if protect is None:
        return tokenizers.protection
    kinds = span_kinds(protect)
    if kinds and tokenizers.protection is None:
        raise ModelError(
            "This model has no reserved tokens for parts of a text that are to be kept",
            where=f"protect = {','.join(protect)}",
            remedy="Train one with --protect, or leave it out",
        )
    return Protection(kinds) if kinds else None


def cut_protected(
    texts: Sequence[str],
    tokenizers: TokenizerPair,
    limit: int,
    *,
    protect: Sequence[str] | None,
    warn: Warn | None,
    first_line: int,
) -> list[CutText]:
    """Cut texts into segments, their protected parts replaced by reserved characters.

    Args:
        texts: any strings.
        tokenizers: of the model, which say what it protects.
        limit: most tokens of a segment.
        protect: see `protection_of`.
        warn, first_line: as for `cut_texts`.
    """
    protection = protection_of(tokenizers, protect)
    if tokenizers.soft_terms:
        texts = [without_marks(text) for text in texts]
    if protection is None:
        return cut_texts(texts, tokenizers.source, limit, warn=warn, first_line=first_line)
    marked = [protection.protect(text) for text in texts]
    cut = cut_texts(
        [text for text, _ in marked], tokenizers.source, limit, warn=warn, first_line=first_line
    )
    results: list[CutText] = []
    for text, (_, parts) in zip(cut, marked, strict=True):
        waiting = iter(parts)
        segments = tuple(
            replace(each, parts=tuple(islice(waiting, len(reserved_marks(each.text)))))
            for each in text.segments
        )
        results.append(replace(text, segments=segments))
    return results


def search_items(
    texts: Sequence[CutText],
    tokenizers: TokenizerPair,
    *,
    prefixes: Sequence[str] | None,
    glossary: Terminology | None,
    limit: int,
    first_line: int,
    warn: Warn | None,
) -> list[SearchItem]:
    """Build the items of all segments, in order.

    Args:
        texts: in segments.
        tokenizers: of the model.
        prefixes: for each text how its translation begins, "" for anyhow.
        glossary: knows the phrases of segments, and the translations to write into them.
        limit: most tokens of a segment, with translations in it.
        first_line: number of the first text.
        warn: called with a sentence about translations for which there is no room.

    Raises:
        DataError: when there are not as many prefixes as texts.
    """
    if prefixes is not None and len(prefixes) != len(texts):
        raise DataError(
            f"{len(prefixes)} prefixes for {len(texts)} texts",
            remedy='Give one prefix for each text, "" for none',
        )
    items: list[SearchItem] = []
    tokenizer = tokenizers.target
    for number, text in enumerate(texts):
        prefix: list[int] = []
        if prefixes is not None:
            prefix = tokenizer.encode(single_line(prefixes[number]))
        line = first_line + number
        for i, segment in enumerate(text.segments):
            phrases = () if glossary is None else glossary.phrases(segment.text, tokenizer)
            phrases += _protected(segment, tokenizers)
            name = line * _SEGMENTS_OF_A_TEXT + i
            item = SearchItem(segment, line, name, () if i else prefix, phrases)
            if glossary is not None and (terms := glossary.inline(segment.text)):
                item = _annotated(item, terms, tokenizers, limit, warn)
            items.append(item)
    return items


def _annotated(
    item: SearchItem,
    terms: Sequence[InlineTerm],
    tokenizers: TokenizerPair,
    limit: int,
    warn: Warn | None,
) -> SearchItem:
    """The item with translations of terms in its source."""
    source = annotate(tokenizers.source, item.segment.text, terms, limit)
    if source.left_out and warn is not None:
        names = "; ".join(term.target for term in source.left_out)
        warn(f"line {item.line}: too long for the model with all terms: without {names}")
    return replace(item, read=source.ids, origins=source.origins, copied=source.copied)


def _protected(segment: Segment, tokenizers: TokenizerPair) -> tuple[RequiredPhrase, ...]:
    """The reserved tokens of a segment, each required exactly as often as it has it."""
    if not segment.parts:
        return ()
    return tuple(
        RequiredPhrase(((tokenizers.reserved[mark],),), at_most=True, name=part)
        for mark, part in zip(reserved_marks(segment.text), segment.parts, strict=True)
    )
