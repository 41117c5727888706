"""Cross-attention of every layer and head between words, for one sentence pair after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from heedful.decode.alignment import token_words
from heedful.inspect.captures import array, run
from heedful.inspect.maps import weight_addresses
from heedful.inspect.reading import BATCH_TOKENS, Reading, batches, tensors
from heedful.inspect.subject import Subject
from heedful.nn.capture import Capture

Row = Literal["predicting", "reading"]
"""Of a target token: attention where it is predicted, or one row later, where it is read."""

ROWS = get_args(Row)


@dataclass(frozen=True, eq=False)
class WordAttention:
    """How much each target word attends to each source word.

    Args:
        source_words: of the source.
        target_words: of the target.
        weights: [layers, heads, 2, target words, source words] float32, for both `Row`s. A target
            word's is the mean over its pieces, a source word's the sum.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: np.ndarray


def word_attention(
    subject: Subject, readings: Sequence[Reading], *, batch_tokens: int = BATCH_TOKENS
) -> list[WordAttention]:
    """Cross-attention between the words of sentence pairs.

    Args:
        subject: a translator.
        readings: sentence pairs, from `read_all`.
        batch_tokens: positions that go through the model together.

    Raises:
        ModelError: when the model has no cross-attention.
    """
    addresses = weight_addresses(subject.model, "cross")
    found: dict[int, WordAttention] = {}
    for numbers in batches(readings, batch_tokens):
        chosen = [readings[number] for number in numbers]
        capture = Capture(addresses)
        run(subject.model, tensors(subject, chosen), capture)
        weights = np.stack([array(capture.found[a]) for a in addresses], axis=1)
        for number, reading, each in zip(numbers, chosen, weights, strict=True):
            found[number] = _between_words(subject, reading, each)
    return [found[number] for number in range(len(readings))]


def _between_words(subject: Subject, reading: Reading, weights: np.ndarray) -> WordAttention:
    """[N, H, Lq, Lk] between tokens to words."""
    assert reading.encoder is not None and reading.predicted is not None
    before, after = len(subject.source.first), len(subject.source.last)
    source_ids = reading.encoder.ids[before : len(reading.encoder) - after]
    target_ids = reading.predicted.ids[:-1]
    source_words, source_of = token_words(subject.source, source_ids, reading.text)
    target_words, target_of = token_words(subject.target, target_ids, reading.target or "")
    columns = _indicator(source_of, len(source_words))
    rows = _indicator(target_of, len(target_words))
    rows /= np.maximum(rows.sum(0), 1)
    tokens = weights[..., before : before + len(source_of)] @ columns
    count = len(target_of)
    both = np.stack([tokens[:, :, :count], tokens[:, :, 1 : count + 1]], axis=2)
    return WordAttention(tuple(source_words), tuple(target_words), rows.T @ both)


def _indicator(word_of: Sequence[int], words: int) -> np.ndarray:
    """[tokens, words]: 1 where a token is of a word."""
    found = np.zeros((len(word_of), words), np.float32)
    found[np.arange(len(word_of)), np.asarray(word_of, dtype=np.int64)] = 1
    return found
