"""Predictions of encoders, and their words, characters and spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Candidate:
    """A piece that may stand where a token is hidden.

    Args:
        token: the piece, spaces as U+2581.
        probability: of it among the whole vocabulary.
    """

    token: str
    probability: float


@dataclass(frozen=True)
class Label:
    """A label of a text, with its probability."""

    label: str
    probability: float


@dataclass(frozen=True)
class TokenLabel:
    """A word and the label of its first piece.

    Args:
        token: the word.
        label: the most probable; None for a word that the tokenizer makes nothing of, such as one
            of control characters.
        probability: of the label.
    """

    token: str
    label: str | None
    probability: float | None


@dataclass(frozen=True)
class Answer:
    """A part of a context.

    Args:
        text: the part; empty where there is nothing to choose from.
        start: index of its first character in the context.
        end: index of the character after its last.
        probability: of the answer starting there times that of it ending there, each among all
            tokens that the model read.
    """

    text: str
    start: int
    end: int
    probability: float


NO_ANSWER = Answer("", 0, 0, 0.0)


def first_pieces(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """The number of each word's first piece; None for a word without a piece of its own.

    Args:
        words: of a text that is these words with a space between each two.
        spans: for each piece the index of its first character and of the one after its last; a
            piece may begin with the space before its word, or be that space.
    """
    results: list[int | None] = [None] * len(words)
    word, end = -1, -1
    for piece, (start, _) in enumerate(spans):
        while start >= end and word + 1 < len(words):
            word += 1
            end += 1 + len(words[word])
        if start < end and results[word] is None:
            results[word] = piece
    return results


def best_span(starts: Tensor, ends: Tensor, longest: int) -> tuple[int, int]:
    """The first and last token of the best answer.

    Args:
        starts: [L] scores of an answer starting at a token.
        ends: [L] scores of one ending there.
        longest: most tokens of an answer.
    """
    together = starts[:, None] + ends[None, :]
    allowed = torch.ones_like(together, dtype=torch.bool).triu().tril(longest - 1)
    best = int(together.masked_fill(~allowed, -math.inf).argmax())
    return best // len(ends), best % len(ends)


def cut(context: str, start: int, end: int, probability: float) -> Answer:
    """The answer between two characters, without white space around it."""
    part = context[start:end]
    start += len(part) - len(part.lstrip())
    text = part.strip()
    return Answer(text, start, start + len(text), probability)
