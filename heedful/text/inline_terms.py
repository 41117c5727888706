"""Terms written into a source: each is followed by the translation that a model is to use for it.

A model that was trained on such sources (Dinu et al. 2019, https://aclanthology.org/P19-1294)
copies the translation, and inflects it where the sentence asks for that. As tokens:

    a | bicycle | SEPARATOR | Fahrrad | END | stands | there

The translation stands beside the term's tokens, which stay as they are: what is said of the tokens
of an annotated source, such as attention, can be said of the text as it was given.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heedful.text.tokenizer import TextTokenizer

SEPARATOR, END = "\U000f0100", "\U000f0101"
"""Characters of a private area of Unicode, which a tokenizer has as whole tokens."""


class InlineTerm(NamedTuple):
    """A term in a text and its translation.

    Args:
        start, end: the first character of the term and the one after its last.
        target: the translation.
    """

    start: int
    end: int
    target: str


@dataclass(frozen=True)
class AnnotatedSource:
    """The tokens of a text with the translations of terms in it.

    Args:
        ids: of text and translations.
        origins: for each, the number of the text's token that it is or stands beside.
        copied: ids of the translations.
        left_out: terms for whose translations there was no room.
    """

    ids: tuple[int, ...]
    origins: tuple[int, ...]
    copied: tuple[int, ...] = ()
    left_out: tuple[InlineTerm, ...] = ()


def annotate(
    tokenizer: TextTokenizer, text: str, terms: Sequence[InlineTerm], limit: int
) -> AnnotatedSource:
    """Write the translations of terms into the tokens of a text.

    Args:
        tokenizer: of source and target, with tokens for the two marks.
        text: with the terms.
        terms: from left to right; none overlap.
        limit: most tokens of the result. A translation that would exceed it is left out.
    """
    ids, spans = tokenizer.encode_spans(text)
    starts = [start for start, _ in spans]
    separator, end = mark_ids(tokenizer)
    result: list[int] = []
    origins: list[int] = []
    copied: list[int] = []
    left_out: list[InlineTerm] = []
    done, room = 0, limit - len(ids)
    for term, target in zip(
        terms, tokenizer.encode_batch([term.target for term in terms]), strict=True
    ):
        if len(target) + 2 > room:
            left_out.append(term)
            continue
        room -= len(target) + 2
        stop = bisect_left(starts, term.end)
        result += [*ids[done:stop], separator, *target, end]
        origins += [*range(done, stop), *[stop - 1] * (len(target) + 2)]
        copied += target
        done = stop
    result += ids[done:]
    origins += range(done, len(ids))
    return AnnotatedSource(tuple(result), tuple(origins), tuple(copied), tuple(left_out))


def mark_ids(tokenizer: TextTokenizer) -> tuple[int, int]:
    """The tokens of the marks; a tokenizer may put one of its own before a text."""
    separator, end = (tokenizer.encode(f"({mark}")[-1] for mark in (SEPARATOR, END))
    return separator, end


def without_marks(text: str) -> str:
    """A text in which no character can be taken for a mark: U+FFFD stands in the place of each."""
    return text.replace(SEPARATOR, "\ufffd").replace(END, "\ufffd")
