"""Results of encoder pipelines, and the mapping of token predictions to words and characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ConfigError


@dataclass(frozen=True)
class Candidate:
    """A candidate for a hidden token.

    Args:
        token: the token as text, with U+2581 for a space.
        probability: probability of the token over the whole vocabulary.
    """

    token: str
    probability: float


@dataclass(frozen=True)
class Label:
    """A label of a text, with its probability."""

    label: str
    probability: float


def ranked(logits: Tensor, names: Sequence[str], top: int | None) -> list[list[Label]]:
    """Return the labels of each row of logits [B, labels], the most probable first.

    Args:
        logits: logits of the labels.
        names: names of the labels.
        top: number of labels for each row; all if unset.

    Raises:
        ConfigError: when `top` is below 1.
    """
    if top is not None and top < 1:
        raise ConfigError("At least 1 must be asked for", where=f"top = {top}")
    # A stable sort: classes of equal probability have the same order on every device.
    best = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    pairs = zip(best.indices[:, :top].tolist(), best.values[:, :top].tolist(), strict=True)
    return [
        [Label(names[n], value) for n, value in zip(numbers, values, strict=True)]
        for numbers, values in pairs
    ]


@dataclass(frozen=True)
class TokenLabel:
    """A word and the label of its first token.

    Args:
        token: the word.
        label: most probable label; None for a word without tokens, such as one of control
            characters.
        probability: probability of the label; None without a label.
    """

    token: str
    label: str | None
    probability: float | None


@dataclass(frozen=True)
class Answer:
    """An answer: a span of a context.

    Args:
        text: text of the span; empty if there is no answer.
        start: index of its first character in the context.
        end: index after its last character.
        probability: product of the probabilities of its start and its end, each over all tokens of
            the input.
    """

    text: str
    start: int
    end: int
    probability: float


NO_ANSWER = Answer("", 0, 0, 0.0)


def first_tokens(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the index of each word's first token; None for a word without a token of its own.

    Args:
        words: words of a text, which are separated by single spaces.
        spans: start and end of each token in characters, the end exclusive; a token may begin with
            the space before its word, or be that space.
    """
    results: list[int | None] = [None] * len(words)
    word, end = -1, -1
    for token, (start, _) in enumerate(spans):
        # The space before a word counts as part of the word.
        while start >= end and word + 1 < len(words):
            word += 1
            end += 1 + len(words[word])
        if start < end and results[word] is None:
            results[word] = token
    return results


def best_span(starts: Tensor, ends: Tensor, longest: int) -> tuple[int, int]:
    """Return the indices of the first and last token of the best answer.

    Args:
        starts: score [L] of each token as the first one of the answer.
        ends: score [L] of each token as the last one of the answer.
        longest: maximum number of tokens of an answer.
    """
    # [L, L]: score of every span; the row is the start, the column the end.
    together = starts[:, None] + ends[None, :]
    # An answer ends no earlier than it starts (`triu`), and has at most `longest` tokens (`tril`).
    allowed = torch.ones_like(together, dtype=torch.bool).triu().tril(longest - 1)
    best = int(together.masked_fill(~allowed, -math.inf).argmax())
    return best // len(ends), best % len(ends)  # row and column of the flat index


def cut(context: str, start: int, end: int, probability: float) -> Answer:
    """Return the answer from `start` to `end` of a context, without white space around it."""
    part = context[start:end]
    # The first token of an answer may hold the space before its word.
    start += len(part) - len(part.lstrip())
    text = part.strip()
    return Answer(text, start, start + len(text), probability)
