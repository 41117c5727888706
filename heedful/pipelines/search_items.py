"""Segments of texts as items of a search: prefixes, required phrases, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from heedful.errors import DataError
from heedful.pipelines.batching import plan_batches
from heedful.pipelines.text_splitting import (
    CutText,
    Segment,
    Warn,
    cut_texts,
    may_keep_parts,
    single_line,
)
from heedful.search.search_settings import SearchSettings, Specials
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import Reading, TokenizerPair

# Modules of phrases, protected parts and inline terms are imported on use: most texts have none.
if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from heedful.pipelines.glossary import Occurrence
    from heedful.search.phrase_automaton import RequiredPhrase
    from heedful.search.required_phrases import Requirements
    from heedful.text.inline_terms import InlineTerm
    from heedful.text.protected_spans import Protection

_SEGMENTS_OF_A_TEXT = 1 << 20
"""Factor that makes a unique number of line and segment for random draws; no text has so many
segments."""


@dataclass(frozen=True)
class SearchItem:
    """A segment to translate.

    Args:
        segment: text and source tokens.
        line: number of the text, from 1.
        name: number that the random draws of the segment depend on.
        prefix: token ids that the translation begins with.
        phrases: phrases that the translation must contain.
        annotated: source tokens with translations of terms among them; empty if there are none.
        origins: index of a token of the segment for each annotated token: the same token, or the
            one beside which a translation is inserted.
        copied: tokens of the translations of terms.
    """

    segment: Segment
    line: int
    name: int
    prefix: Sequence[int]
    phrases: Sequence[RequiredPhrase] = ()
    annotated: Sequence[int] = ()
    origins: Sequence[int] = ()
    copied: Sequence[int] = ()

    @property
    def ids(self) -> Sequence[int]:
        """Source tokens for the model, with translations of terms if there are some."""
        return self.annotated or self.segment.ids

    @property
    def needed(self) -> list[int]:
        """Tokens that a shortlist must contain: prefix, phrases and translations of terms."""
        phrases = [id for each in self.phrases for ids in each.alternatives for id in ids]
        return [*self.prefix, *phrases, *self.copied]

    def beam(self, settings: SearchSettings) -> int:
        """Return the beam width of the search, which is larger if phrases are required."""
        if not self.phrases:
            return settings.width
        from heedful.search.required_phrases import widened_beam

        return widened_beam(settings.width, self.phrases)


class Terminology(Protocol):
    """Source of the phrases that a translation must contain, such as a `Glossary`.

    Soft terminology writes translations into the source instead.
    """

    @property
    def is_soft(self) -> bool:
        """True if the terms need a model that was trained with soft terms."""

    def check(self, tokenizer: TextTokenizer) -> None:
        """Refuse phrases that a model with this target tokenizer cannot write."""

    def find(self, text: str) -> Sequence[Occurrence]:
        """Return the terms in a text, from left to right."""

    def phrases(self, text: str, tokenizer: TextTokenizer) -> tuple[RequiredPhrase, ...]:
        """Return the phrases that the translation of a text must contain, as target tokens."""

    def inline(self, text: str) -> Sequence[InlineTerm]:
        """Return the translations to write into a text, from left to right."""


def protection_of(tokenizers: TokenizerPair, protect: Sequence[str] | None) -> Protection | None:
    """Return how a model keeps parts of texts; None to keep none.

    Args:
        tokenizers: tokenizers of the model. Without reserved tokens parts are kept by alignment.
        protect: kinds of parts, such as `urls`; if unset, the kinds that the model was trained to
            keep, or all kinds if it has no reserved tokens.

    Raises:
        ConfigError: when there is no such kind.
    """
    trained = tokenizers.protection
    if protect is None and trained is not None:
        return trained
    from heedful.text.protected_spans import SPAN_KINDS, KeptKinds, Protection, span_kinds

    kinds = SPAN_KINDS if protect is None else span_kinds(protect)
    if not kinds:
        return None
    if trained is not None:
        return Protection(kinds)
    return KeptKinds(kinds)


def cut_protected(
    texts: Sequence[str],
    tokenizers: TokenizerPair,
    limit: int,
    reading: Reading,
    *,
    protect: Sequence[str] | None,
    warn: Warn | None,
    first_line: int,
) -> list[CutText]:
    """Cut texts into segments, with protected parts replaced by reserved characters.

    Args:
        texts: any strings.
        tokenizers: tokenizers of the model.
        limit: maximum number of tokens of a segment.
        reading: part of a text that the model reads at once.
        protect: kinds of parts, see `protection_of`.
        warn, first_line: arguments of `cut_texts`.
    """
    if tokenizers.soft_terms:
        from heedful.text.inline_terms import without_marks

        # A mark in the text itself would look like the start of an inline translation.
        texts = [without_marks(text) for text in texts]
    cut = partial(
        cut_texts,
        tokenizer=tokenizers.source,
        limit=limit,
        reading=reading,
        warn=warn,
        first_line=first_line,
        copies=protect is None or bool(protect),
    )
    if protect is None and tokenizers.protection is None and not any(map(may_keep_parts, texts)):
        return cut(texts)  # true for nearly all texts
    protection = protection_of(tokenizers, protect)
    if protection is None:
        return cut(texts)
    from heedful.text.protected_spans import reserved_marks

    marked = [protection.protect(text) for text in texts]
    results: list[CutText] = []
    for text, (_, parts) in zip(cut([text for text, _ in marked]), marked, strict=True):
        # Marks are in the order of the parts, so each segment takes as many parts as it has marks.
        waiting = iter(parts)
        segments = [
            replace(each, parts=tuple(islice(waiting, len(reserved_marks(each.text)))))
            for each in text.segments
        ]
        results.append(replace(text, segments=tuple(segments)))
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
    """Build the items of all segments that are searched, in order.

    Args:
        texts: texts in segments.
        tokenizers: tokenizers of the model.
        prefixes: beginning of each text's translation, "" for none.
        glossary: source of the phrases of segments, and of the translations to write into them.
        limit: maximum number of tokens of a segment, inline translations counted.
        first_line: number of the first text.
        warn: receiver of a sentence about inline translations for which there is no room.

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
            if segment.is_copied:
                continue
            # Only a hard glossary has phrases, and only a soft one has inline terms.
            phrases = () if glossary is None else glossary.phrases(segment.text, tokenizer)
            phrases += _protected(segment, tokenizers)
            # Random draws depend on line and segment only, not on batches or other lines.
            name = line * _SEGMENTS_OF_A_TEXT + i
            # The prefix begins the whole translation, so only the first segment has it.
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
    """Return the item with translations of terms in its source."""
    from heedful.text.inline_terms import annotate

    source = annotate(tokenizers.source, item.segment.text, terms, limit)
    if source.left_out and warn is not None:
        names = "; ".join(term.target for term in source.left_out)
        warn(f"line {item.line}: too long for the model with all terms: without {names}")
    # Prefix and phrases stay the same: inline terms do not constrain the target.
    return replace(item, annotated=source.ids, origins=source.origins, copied=source.copied)


def _protected(segment: Segment, tokenizers: TokenizerPair) -> tuple[RequiredPhrase, ...]:
    """Return a phrase for each reserved character of a segment; none may occur more often."""
    if not segment.parts:
        return ()
    from heedful.search.phrase_automaton import RequiredPhrase
    from heedful.text.protected_spans import reserved_marks

    return tuple(
        RequiredPhrase(((tokenizers.reserved[mark],),), at_most=True, name=part)
        for mark, part in zip(reserved_marks(segment.text), segment.parts, strict=True)
    )


def plan_searches(
    items: Sequence[SearchItem],
    settings: SearchSettings,
    *,
    batch_tokens: int,
    batch_size: int | None,
) -> list[list[int]]:
    """Group items into batches; items with and without phrases are in different batches.

    Items without phrases then take the faster, unconstrained search, and no item depends on the
    beam width of another.

    Args:
        items: items of a search.
        settings: settings of the search.
        batch_tokens, batch_size: arguments of `plan_batches`.

    Returns:
        Indices of the items of each batch; all items of a batch have the same beam width.
    """
    groups: dict[tuple[bool, int], list[int]] = {(False, settings.width): []}
    for number, item in enumerate(items):
        groups.setdefault((bool(item.phrases), item.beam(settings)), []).append(number)
    batches: list[list[int]] = []
    for (_, beam), numbers in sorted(groups.items()):
        # The end token counts too.
        lengths = [len(items[i].ids) + 1 for i in numbers]
        planned = plan_batches(
            lengths, width=beam, batch_tokens=batch_tokens, batch_size=batch_size
        )
        batches += [[numbers[place] for place in batch] for batch in planned]
    return batches


def requirements(
    phrases: Sequence[Sequence[RequiredPhrase]], tokenizers: TokenizerPair, size: int
) -> Requirements | None:
    """Return the lexical constraints of a batch; None without any.

    Args:
        phrases: phrases of each item.
        tokenizers: tokenizers of the model.
        size: number of target tokens of the model.
    """
    # Reserved tokens stand for no text, so they are forbidden even without phrases.
    if not any(phrases) and not tokenizers.unwritten:
        return None
    from heedful.search.phrase_automaton import WordBoundaries
    from heedful.search.required_phrases import Requirements

    words = WordBoundaries.of(tokenizers.word_edges, size)
    return Requirements(phrases, words, tokenizers.unwritten)


def encoder_input(
    ids: Sequence[Sequence[int]], tokenizers: TokenizerPair, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return source tokens and positions [B, S] of a batch on a device, −1 for padding."""
    from heedful.data.padding import source_tensors  # the only thing here that needs PyTorch

    source, positions = source_tensors(ids, tokenizers.source)
    return source.to(device), positions.to(device)


def target_specials(tokenizers: TokenizerPair) -> Specials:
    """Return the special tokens of the target."""
    target = tokenizers.target
    return Specials(pad=target.pad, bos=target.bos, eos=target.eos)
