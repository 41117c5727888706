"""How well parts of sentences are found that B- and I- tags mark (Tjong Kim Sang 2000)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"


class Span(NamedTuple):
    """Consecutive words that belong together.

    Args:
        start: number of the first word.
        end: number of the one after the last.
        kind: what they are, such as `PER`.
    """

    start: int
    end: int
    kind: str


def mark_spans(tags: Iterable[str]) -> bool:
    """Whether these tags mark spans: O, B-… and I-… only, and not O alone."""
    names = set(tags) - {OUTSIDE}
    return bool(names) and all(tag[:2] in ("B-", "I-") and len(tag) > 2 for tag in names)


def spans_of(tags: Sequence[str | None]) -> list[Span]:
    """The spans that tags mark.

    A span begins at B-, and at I- where the word before is not of the same kind, so that an I-
    without its B- is not lost; it goes on over each I- of its kind.

    Args:
        tags: of a sentence's words; None, like O, is outside.
    """
    found: list[Span] = []
    start, kind = 0, None
    for place, tag in enumerate([*tags, None]):
        here = None if tag is None or tag == OUTSIDE else tag[2:]
        goes_on = tag is not None and tag.startswith("I-") and here == kind
        if goes_on:
            continue
        if kind is not None:
            found.append(Span(start, place, kind))
        start, kind = place, here
    return found


def span_f1(given: Sequence[Sequence[str | None]], right: Sequence[Sequence[str]]) -> float:
    """F1 of the spans, over all sentences, 0 to 1.

    A span counts where its first word, its last and its kind are all right. Where there are no
    spans and none are given, all is right: 1.

    Args:
        given: tags of each sentence by the model.
        right: tags they should have.
    """
    both = ours_count = theirs_count = 0
    for ours, theirs in zip(given, right, strict=True):
        ours_found, theirs_found = set(spans_of(ours)), set(spans_of(theirs))
        both += len(ours_found & theirs_found)
        ours_count += len(ours_found)
        theirs_count += len(theirs_found)
    return 2 * both / (ours_count + theirs_count) if ours_count + theirs_count else 1.0
