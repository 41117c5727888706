"""Word alignments of a corpus from cross-attention, of one model or of two opposite ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from heedful.errors import DataError
from heedful.inspect.alignment_heads import (
    Gold,
    HeadChoice,
    WordAttention,
    check_same_words,
    choose_both,
    choose_heads,
    links_of,
    word_attention,
)
from heedful.inspect.readings import Reading
from heedful.inspect.result import Result
from heedful.inspect.subject import Subject
from heedful.inspect.word_links import Link, Links, Symmetry, pharaoh, symmetrize

AT_ONCE = 500
"""Pairs whose attention is in memory at a time; heads are chosen on the first as many."""


@dataclass(frozen=True)
class AlignedPair(Result):
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


@dataclass(frozen=True)
class Alignments(Result):
    """Aligned sentence pairs, and the heads they come from.

    Args:
        pairs: in the order of the corpus.
        forward: heads of the model.
        backward: heads of the model of the opposite direction, if there was one.
    """

    pairs: tuple[AlignedPair, ...]
    forward: HeadChoice
    backward: HeadChoice | None


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
        heads: a choice made before; chosen on the first 500 pairs if None.
        gold: links made by people, to choose heads by.
        reverse: a translator of the opposite direction, and the same pairs read by it.
        method: of symmetrization.

    Raises:
        ModelError: when a model has no cross-attention.
        DataError: when gold or the other direction does not fit the pairs.
        ConfigError: when there is no such method.
    """
    if gold is not None and len(gold) != len(readings):
        raise DataError(f"Gold links of {len(gold)} sentences for {len(readings)}")
    if reverse is not None and len(reverse[1]) != len(readings):
        raise DataError(f"{len(readings)} pairs in one direction, {len(reverse[1])} in the other")
    choice, reverse_choice = heads, None
    pairs: list[AlignedPair] = []
    for first in range(0, max(len(readings), 1), AT_ONCE):
        chunk = slice(first, first + AT_ONCE)
        forward = word_attention(subject, readings[chunk])
        backward = None if reverse is None else word_attention(reverse[0], reverse[1][chunk])
        if backward is not None:
            check_same_words(forward, backward)
        if choice is None or (reverse_choice is None and backward is not None):
            best, reverse_choice = _choose(forward, backward, None if gold is None else gold[chunk])
            choice = choice or best
        for number, attention in enumerate(forward):
            links = _links(choice, attention)
            if backward is not None and reverse_choice is not None:
                other = exchanged(_links(reverse_choice, backward[number]))
                links = symmetrize(links, other, method)
            pairs.append(AlignedPair(attention.source_words, attention.target_words, links))
    assert choice is not None
    return Alignments(tuple(pairs), choice, reverse_choice)


def exchanged(links: Collection[Link]) -> Links:
    """Exchange source and target of links."""
    return frozenset((target, source) for source, target in links)


def _choose(
    forward: Sequence[WordAttention], backward: Sequence[WordAttention] | None, gold: Gold | None
) -> tuple[HeadChoice, HeadChoice | None]:
    if backward is None:
        return choose_heads(forward, gold), None
    if gold is None:
        return choose_both(forward, backward)
    other_way = [(exchanged(sure), exchanged(possible)) for sure, possible in gold]
    return choose_heads(forward, gold), choose_heads(backward, other_way)


def _links(choice: HeadChoice, attention: WordAttention) -> Links:
    """Link each target word to its strongest source word."""
    cells = np.argwhere(links_of(choice.matrix(attention)))
    return frozenset((int(source), int(target)) for target, source in cells)
