"""Inline terms: each term in a source is followed by the translation that a model should use.

A model that is trained on such sources (Dinu et al. 2019, https://aclanthology.org/P19-1294) copies
the translation, and inflects it where the sentence requires it. As tokens:

    a | bicycle | SEPARATOR | Fahrrad | END | stands | there

The term's tokens stay as they are, and each inserted token is assigned to one of them, so that
attention to an annotated source can be shown on the original text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heedful.text.tokenizer import TextTokenizer

SEPARATOR, END = "\U000f0100", "\U000f0101"
"""Characters for private use in Unicode, which are whole tokens of the tokenizer."""


class InlineTerm(NamedTuple):
    """A term in a text and its translation.

    Args:
        start, end: index of the term's first character and of the character after its last.
        target: translation of the term.
    """

    start: int
    end: int
    target: str


@dataclass(frozen=True)
class AnnotatedSource:
    """The tokens of a text with inline translations.

    Args:
        ids: token ids of the text and of the translations.
        origins: index of each token in the original text; for inserted ones, the term's last token.
        copied: token ids of the translations.
        left_out: terms whose translations exceeded the limit.
    """

    ids: tuple[int, ...]
    origins: tuple[int, ...]
    copied: tuple[int, ...] = ()
    left_out: tuple[InlineTerm, ...] = ()


def annotate(
    tokenizer: TextTokenizer, text: str, terms: Sequence[InlineTerm], limit: int
) -> AnnotatedSource:
    """Insert the translations of terms into the tokens of a text.

    Args:
        tokenizer: tokenizer of source and target, with tokens for the two marks.
        text: text with the terms.
        terms: terms from left to right, without overlaps.
        limit: maximum number of tokens of the result; a translation that would exceed it is left
            out.
    """
    ids, spans = tokenizer.encode_spans(text)
    starts = [start for start, _ in spans]
    separator, end = mark_ids(tokenizer)
    result: list[int] = []
    origins: list[int] = []
    copied: list[int] = []
    left_out: list[InlineTerm] = []
    done, budget = 0, limit - len(ids)
    for term, target in zip(
        terms, tokenizer.encode_batch([term.target for term in terms]), strict=True
    ):
        if len(target) + 2 > budget:  # two for the marks
            left_out.append(term)
            continue
        budget -= len(target) + 2
        # Every token that starts within the term belongs to it.
        stop = bisect_left(starts, term.end)
        result += [*ids[done:stop], separator, *target, end]
        origins += [*range(done, stop), *[stop - 1] * (len(target) + 2)]
        copied += target
        done = stop
    result += ids[done:]
    origins += range(done, len(ids))
    return AnnotatedSource(tuple(result), tuple(origins), tuple(copied), tuple(left_out))


def mark_ids(tokenizer: TextTokenizer) -> tuple[int, int]:
    """Return the ids of the two marks."""
    # After another character, since a tokenizer may put a space mark before a text.
    separator, end = (tokenizer.encode(f"({mark}")[-1] for mark in (SEPARATOR, END))
    return separator, end


def without_marks(text: str) -> str:
    """Return a text with U+FFFD for each mark that it holds."""
    return text.replace(SEPARATOR, "\ufffd").replace(END, "\ufffd")
