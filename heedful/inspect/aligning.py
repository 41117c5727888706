"""Word alignments of a corpus from cross-attention, of one model or of two opposite ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import DataError
from heedful.inspect.head_choice import (
    Gold,
    HeadChoice,
    check_same_words,
    choose_both,
    choose_heads,
    links_of,
)
from heedful.inspect.links import Link, Links, Symmetry, pharaoh, symmetrize
from heedful.inspect.reading import Reading
from heedful.inspect.subject import Subject
from heedful.inspect.word_maps import WordAttention, word_attention

AT_ONCE = 500
"""Pairs whose attention is in memory at a time, and on which heads are chosen."""


@dataclass(frozen=True)
class AlignedPair:
    """A sentence pair and its links.

    Args:
        source_words: of the source.
        target_words: of the target.
        links: pairs of a source word and a target word, from 0.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    links: Links

    @property
    def pharaoh(self) -> str:
        """The links as `0-0 1-2 …`."""
        return pharaoh(self.links)

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "source_words": list(self.source_words),
            "target_words": list(self.target_words),
            "links": [list(link) for link in sorted(self.links)],
        }


@dataclass(frozen=True)
class Alignments:
    """Aligned sentence pairs, and the heads they come from.

    Args:
        pairs: in the order of the corpus.
        forward: heads of the model.
        backward: heads of the model of the opposite direction, if there was one.
    """

    pairs: tuple[AlignedPair, ...]
    forward: HeadChoice
    backward: HeadChoice | None

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "pairs": [pair.plain() for pair in self.pairs],
            "forward": self.forward.plain(),
            "backward": None if self.backward is None else self.backward.plain(),
        }


def align_words(
    subject: Subject,
    readings: Sequence[Reading],
    *,
    heads: HeadChoice | None = None,
    gold: Gold | None = None,
    reverse: tuple[Subject, Sequence[Reading]] | None = None,
    method: Symmetry = "grow-diag-final",
) -> Alignments:
    """Align the words of sentence pairs.

    Without `reverse` each target word is linked to the source word it attends to most.

    Args:
        subject: a translator.
        readings: sentence pairs, from `read_all`.
        heads: those to use, such as were chosen before; chosen on the first 500 pairs if None.
        gold: links made by people, to choose heads by.
        reverse: a translator of the opposite direction, and the same pairs read by it.
        method: how the two directions become one.

    Raises:
        ModelError: when a model has no cross-attention.
        DataError: when gold or the other direction does not fit the pairs.
        ConfigError: when there is no such method.
    """
    if gold is not None and len(gold) != len(readings):
        raise DataError(f"Gold links of {len(gold)} sentences for {len(readings)}")
    if reverse is not None and len(reverse[1]) != len(readings):
        raise DataError(f"{len(readings)} pairs in one direction, {len(reverse[1])} in the other")
    choice, back = heads, None
    pairs: list[AlignedPair] = []
    for first in range(0, max(len(readings), 1), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        forward = word_attention(subject, readings[part])
        backward = None if reverse is None else word_attention(reverse[0], reverse[1][part])
        if backward is not None:
            check_same_words(forward, backward)
        if choice is None or (back is None and backward is not None):
            found, back = _choose(forward, backward, None if gold is None else gold[part])
            choice = choice or found
        for number, here in enumerate(forward):
            links = _links(choice, here)
            if backward is not None and back is not None:
                other = exchanged(_links(back, backward[number]))
                links = symmetrize(links, other, method)
            pairs.append(AlignedPair(here.source_words, here.target_words, links))
    assert choice is not None
    return Alignments(tuple(pairs), choice, back)


def exchanged(links: Collection[Link]) -> Links:
    """The same links with source and target exchanged."""
    return frozenset((target, source) for source, target in links)


def _choose(
    forward: Sequence[WordAttention], backward: Sequence[WordAttention] | None, gold: Gold | None
) -> tuple[HeadChoice, HeadChoice | None]:
    if backward is None:
        return choose_heads(forward, gold), None
    if gold is None:
        return choose_both(forward, backward)
    turned = [(exchanged(sure), exchanged(possible)) for sure, possible in gold]
    return choose_heads(forward, gold), choose_heads(backward, turned)


def _links(choice: HeadChoice, attention: WordAttention) -> Links:
    """(source, target) of each target word's strongest source word."""
    cells = np.argwhere(links_of(choice.matrix(attention)))
    return frozenset((int(source), int(target)) for target, source in cells)
