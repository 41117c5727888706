"""Texts in segments as the items of a search: their prefixes and the phrases they require."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from heedful.errors import DataError
from heedful.pipelines.segment_search import SearchItem
from heedful.pipelines.text_splitting import CutText, single_line
from heedful.search.phrase_automaton import RequiredPhrase
from heedful.text.tokenizer import TextTokenizer

_SEGMENTS_OF_A_TEXT = 1 << 20
"""Random draws are named by text and segment: no text has as many segments."""


class Terminology(Protocol):
    """Anything that knows the phrases a translation must contain, such as a `Glossary`."""

    def check(self, tokenizer: TextTokenizer) -> None:
        """Refuse phrases that a model cannot write; the tokenizer is of the target."""

    def phrases(self, text: str, tokenizer: TextTokenizer) -> tuple[RequiredPhrase, ...]:
        """The phrases of a text's translation; the tokenizer is of the target."""


def search_items(
    texts: Sequence[CutText],
    tokenizer: TextTokenizer,
    *,
    prefixes: Sequence[str] | None,
    glossary: Terminology | None,
    first_line: int,
) -> list[SearchItem]:
    """Build the items of all segments, in order.

    Args:
        texts: in segments.
        tokenizer: of the target.
        prefixes: for each text how its translation begins, "" for anyhow.
        glossary: knows the phrases of segments.
        first_line: number of the first text.

    Raises:
        DataError: when there are not as many prefixes as texts.
    """
    if prefixes is not None and len(prefixes) != len(texts):
        raise DataError(
            f"{len(prefixes)} prefixes for {len(texts)} texts",
            remedy='Give one prefix for each text, "" for none',
        )
    items: list[SearchItem] = []
    for number, text in enumerate(texts):
        prefix: list[int] = []
        if prefixes is not None:
            prefix = tokenizer.encode(single_line(prefixes[number]))
        line = first_line + number
        for i, segment in enumerate(text.segments):
            phrases = () if glossary is None else glossary.phrases(segment.text, tokenizer)
            name = line * _SEGMENTS_OF_A_TEXT + i
            items.append(SearchItem(segment, line, name, () if i else prefix, phrases))
    return items
