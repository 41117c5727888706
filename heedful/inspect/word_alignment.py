"""Word alignments from cross-attention, and the choice of the heads that align best.

Each head, and the mean of each layer, is tried with both rows of a target token; then the best
heads together. The criterion is gold links, agreement with a model of the opposite direction
(Garg 2019; Chen 2020), or how well links predict words; see the design page on inspection.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from heedful.errors import DataError
from heedful.inspect.attention_maps import attentions, num_heads, with_heads
from heedful.inspect.readings import BATCH_TOKENS, ModelInput, batches, tensors
from heedful.inspect.subject import Result, Subject, array, run
from heedful.inspect.word_links import Link, Links, Symmetry, pharaoh, symmetrize
from heedful.nn.capture import Capture
from heedful.search.alignment import token_words

MOST_HEADS = 8
"""Most heads that are averaged."""

_NEARLY = 0.8
"""Share of the best prediction that heads must reach: heads that only follow the diagonal agree in
both directions too, but their links predict words badly."""

Gold = Sequence[tuple[Collection[Link], Collection[Link]]]
"""For each sentence sure links, and all possible ones, as `parse_pharaoh` gives them."""

Row = Literal["predicting", "reading"]
"""The row of a target token: where it is predicted, or one later, where it is read."""

ROWS = get_args(Row)


@dataclass(frozen=True, eq=False)
class WordAttention:
    """Attention from each target word to each source word.

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
    subject: Subject, readings: Sequence[ModelInput], *, batch_tokens: int = BATCH_TOKENS
) -> list[WordAttention]:
    """Compute cross-attention between the words of sentence pairs.

    Args:
        subject: a translator.
        readings: sentence pairs, from `read_all`.
        batch_tokens: positions that go through the model together.

    Raises:
        ModelError: when the model has no cross-attention.
    """
    layers = attentions(subject.model, "cross")
    addresses, count = [f"{address}.weights" for address in layers], num_heads(layers)
    results: dict[int, WordAttention] = {}
    for numbers in batches(readings, batch_tokens):
        batch = [readings[number] for number in numbers]
        capture = Capture(addresses)
        run(subject.model, tensors(subject, batch), capture)
        result = [with_heads(array(capture.found[address]), count) for address in addresses]
        weights = np.stack(result, axis=1)
        for number, reading, each in zip(numbers, batch, weights, strict=True):
            results[number] = _between_words(subject, reading, each)
    return [results[number] for number in range(len(readings))]


def _between_words(subject: Subject, reading: ModelInput, weights: np.ndarray) -> WordAttention:
    """Sum weights between tokens [N, H, Lq, Lk] up to weights between words."""
    assert reading.predicted is not None
    before, after = len(subject.source.first), len(subject.source.last)
    source_ids = reading.tokens("encoder").ids
    source_ids = source_ids[before : len(source_ids) - after]
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
    """Return [tokens, words] with 1 where a token belongs to a word."""
    indicator = np.zeros((len(word_of), words), np.float32)
    indicator[np.arange(len(word_of)), np.asarray(word_of, dtype=np.int64)] = 1
    return indicator


@dataclass(frozen=True)
class HeadChoice(Result):
    """Heads whose mean aligns words.

    Args:
        heads: layer and head of each, from 0.
        row: of a target token.
        criterion: `gold` (1 − alignment error rate), `agreement` with the other direction (F1), or
            `prediction` (bits that a link tells about its target word).
        score: by that criterion, on the data they were chosen on.
    """

    heads: tuple[tuple[int, int], ...]
    row: Row
    criterion: Literal["gold", "agreement", "prediction"]
    score: float

    def matrix(self, attention: WordAttention) -> np.ndarray:
        """Return the mean of the chosen heads [target words, source words]."""
        row = ROWS.index(self.row)
        return np.asarray(np.mean([attention.weights[n, h, row] for n, h in self.heads], axis=0))


Score = Callable[[np.ndarray], np.ndarray]
"""A function of links [candidates, cells of all sentences] bool; the higher the better."""


def choose_heads(attention: Sequence[WordAttention], gold: Gold | None = None) -> HeadChoice:
    """Choose the heads of one model that align best.

    Args:
        attention: of a corpus; a few hundred sentences are enough.
        gold: links made by people; without them the criterion is prediction.

    Raises:
        DataError: when there is nothing to choose on, or gold does not fit.
    """
    corpus = _Corpus(attention)
    if gold is None:
        return _grow(corpus, corpus.prediction, "prediction")
    return _grow(corpus, corpus.likeness_to_gold(gold), "gold")


def choose_both(
    forward: Sequence[WordAttention], backward: Sequence[WordAttention]
) -> tuple[HeadChoice, HeadChoice]:
    """Choose the heads of two models of opposite directions that agree best.

    Args:
        forward: of a corpus.
        backward: of the same sentences by the other model, sources and targets exchanged.

    Returns:
        The choices for both models.

    Raises:
        DataError: when there is nothing to choose on, or the sentences have other words.
    """
    here, there = _Corpus(forward), _Corpus(backward)
    check_same_words(forward, backward)
    _, here_links = here.singles()
    _, there_links = there.singles()
    exchanged = there.swap_sides(there_links)
    both = here_links.astype(np.float32) @ exchanged.astype(np.float32).T
    sizes = here_links.sum(-1)[:, None] + exchanged.sum(-1)
    agreement = 2 * both / np.maximum(sizes, 1)
    for axis, (corpus, links) in enumerate(((here, here_links), (there, there_links))):
        predicted = corpus.prediction(links)
        poor = predicted < _NEARLY * predicted.max()
        agreement[poor if axis == 0 else (slice(None), poor)] = -1
    best = np.unravel_index(agreement.argmax(), agreement.shape)
    other = exchanged[best[1]]
    chosen = _grow(here, lambda links: _f1(links, other), "agreement", best[0])
    links = here.links(chosen.heads, chosen.row)
    back = _grow(there, lambda each: _f1(there.swap_sides(each), links), "agreement", best[1])
    return chosen, back


def check_same_words(forward: Sequence[WordAttention], backward: Sequence[WordAttention]) -> None:
    """Refuse models with different words.

    Raises:
        DataError: naming the sentence.
    """
    if len(forward) != len(backward):
        raise DataError(f"{len(forward)} sentences in one direction, {len(backward)} in the other")
    for number, (one, other) in enumerate(zip(forward, backward, strict=True), start=1):
        here = len(one.source_words), len(one.target_words)
        if here != (len(other.target_words), len(other.source_words)):
            raise DataError(
                "The two models do not see the same words",
                where=f"sentence {number}",
                remedy="Give both the same pair, source and target exchanged",
            )


def links_of(matrix: np.ndarray) -> np.ndarray:
    """Link each target word to its strongest source word [..., target words, source words]."""
    links = np.zeros(matrix.shape, bool)
    if matrix.size:
        best = matrix.argmax(-1)[..., None]
        np.put_along_axis(links, best, np.take_along_axis(matrix, best, -1) > 0, -1)
    return links


def _f1(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Agreement of links over the last axis."""
    both = (one & other).sum(-1)
    return np.asarray(2 * both / np.maximum(one.sum(-1) + other.sum(-1), 1))


class _Corpus:
    """All cells of the word matrices of a corpus side by side.

    Args:
        attention: of its sentences.
    """

    def __init__(self, attention: Sequence[WordAttention]) -> None:
        self.attention = [a for a in attention if a.source_words and a.target_words]
        if not self.attention:
            raise DataError("There are no words to choose heads on")
        self.all = attention
        self.layers, self.heads = self.attention[0].weights.shape[:2]
        self.words = [
            (a.source_words[s].lower(), a.target_words[t].lower())
            for a in self.attention
            for t in range(len(a.target_words))
            for s in range(len(a.source_words))
        ]
        self.half = np.concatenate(
            [
                np.full(len(a.source_words) * len(a.target_words), number % 2, bool)
                for number, a in enumerate(self.attention)
            ]
        )

    def singles(self) -> tuple[list[tuple[list[tuple[int, int]], Row]], np.ndarray]:
        """Return every head and every layer as a candidate, with the links of each."""
        layers, heads = range(self.layers), range(self.heads)
        groups = [[(n, h)] for n in layers for h in heads] + [
            [(n, h) for h in heads] for n in layers
        ]
        candidates = list(itertools.product(groups, ROWS))
        return candidates, np.stack([self.links(*candidate) for candidate in candidates])

    def links(self, heads: Sequence[tuple[int, int]], row: Row) -> np.ndarray:
        """Return the links [cells] bool by the mean of some heads."""
        layer, head = np.transpose(heads)
        at = ROWS.index(row)
        return np.concatenate(
            [links_of(a.weights[layer, head, at].mean(0)).ravel() for a in self.attention]
        )

    def swap_sides(self, links: np.ndarray) -> np.ndarray:
        """Links [..., cells] with source and target exchanged."""
        sizes = [(len(a.target_words), len(a.source_words)) for a in self.attention]
        ends = np.cumsum([rows * columns for rows, columns in sizes])[:-1]
        parts = np.split(links, ends, axis=-1)
        return np.concatenate(
            [
                part.reshape(*links.shape[:-1], *size).swapaxes(-1, -2).reshape(part.shape)
                for part, size in zip(parts, sizes, strict=True)
            ],
            axis=-1,
        )

    def likeness_to_gold(self, gold: Gold) -> Score:
        """Return the score 1 − alignment error rate."""
        if len(gold) != len(self.all):
            raise DataError(f"Gold links of {len(gold)} sentences for {len(self.all)}")
        kept = [g for g, a in zip(gold, self.all, strict=True) if a.source_words and a.target_words]
        pairs = list(zip(kept, self.attention, strict=True))
        sure, possible = (np.concatenate([_cells(g[i], a) for g, a in pairs]) for i in (0, 1))

        def score(links: np.ndarray) -> np.ndarray:
            hits = (links & sure).sum(-1) + (links & (possible | sure)).sum(-1)
            return np.asarray(hits / np.maximum(links.sum(-1) + sure.sum(), 1))

        return score

    def prediction(self, links: np.ndarray) -> np.ndarray:
        """Compute the bits that a link tells about its target word, by counts of the other half.

        Mean of log2 p(target | source) − log2 p(target); p is smoothed with the plain frequency.
        """
        return np.array([self._bits(each) for each in links])

    def _bits(self, links: np.ndarray) -> float:
        halves = [
            [self.words[cell] for cell in np.flatnonzero(links & (self.half == half))]
            for half in (False, True)
        ]
        total = 0.0
        for train, test in (halves, halves[::-1]):
            pairs, sources = Counter(train), Counter(source for source, _ in train)
            targets = Counter(target for _, target in train)
            kinds = len(targets) + 1
            for source, target in test:
                prior = (targets[target] + 1) / (len(train) + kinds)
                conditional = (pairs[source, target] + prior) / (sources[source] + 1)
                total += math.log2(conditional / prior)
        return total / max(1, sum(map(len, halves)))


def _cells(links: Collection[Link], attention: WordAttention) -> np.ndarray:
    """Links as cells of a sentence's matrix."""
    cells = np.zeros((len(attention.target_words), len(attention.source_words)), bool)
    for source, target in links:
        if target >= cells.shape[0] or source >= cells.shape[1]:
            raise DataError(
                f"There is no link {source}-{target} in a pair of {cells.shape[1]} and "
                f"{cells.shape[0]} words",
                remedy="Words are what stands between spaces, counted from 0",
            )
        cells[target, source] = True
    return cells.ravel()


def _grow(
    corpus: _Corpus,
    score: Score,
    criterion: Literal["gold", "agreement", "prediction"],
    first: np.integer[Any] | None = None,
) -> HeadChoice:
    """Choose the best candidate, or several heads together where their mean is better.

    Args:
        corpus: the data.
        score: the criterion.
        criterion: its name.
        first: the candidate to begin with; the best if None.
    """
    candidates, links = corpus.singles()
    scores = score(links)
    heads, row = candidates[int(scores.argmax() if first is None else first)]
    best = HeadChoice(tuple(heads), row, criterion, float(scores[candidates.index((heads, row))]))
    for each in ROWS:
        single = [i for i, (group, at) in enumerate(candidates) if len(group) == 1 and at == each]
        ranked = sorted(single, key=lambda i: -scores[i])[:MOST_HEADS]
        for count in range(2, len(ranked) + 1):
            group = tuple(candidates[i][0][0] for i in ranked[:count])
            value = float(score(corpus.links(group, each)[None])[0])
            if value > best.score:
                best = HeadChoice(group, each, criterion, value)
    return best


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
    readings: Sequence[ModelInput],
    *,
    heads: HeadChoice | None = None,
    gold: Gold | None = None,
    reverse: tuple[Subject, Sequence[ModelInput]] | None = None,
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
                other = swap_sides(_links(reverse_choice, backward[number]))
                links = symmetrize(links, other, method)
            pairs.append(AlignedPair(attention.source_words, attention.target_words, links))
    assert choice is not None
    return Alignments(tuple(pairs), choice, reverse_choice)


def swap_sides(links: Collection[Link]) -> Links:
    """Exchange source and target of links."""
    return frozenset((target, source) for source, target in links)


def _choose(
    forward: Sequence[WordAttention], backward: Sequence[WordAttention] | None, gold: Gold | None
) -> tuple[HeadChoice, HeadChoice | None]:
    if backward is None:
        return choose_heads(forward, gold), None
    if gold is None:
        return choose_both(forward, backward)
    other_way = [(swap_sides(sure), swap_sides(possible)) for sure, possible in gold]
    return choose_heads(forward, gold), choose_heads(backward, other_way)


def _links(choice: HeadChoice, attention: WordAttention) -> Links:
    """Link each target word to its strongest source word."""
    cells = np.argwhere(links_of(choice.matrix(attention)))
    return frozenset((int(source), int(target)) for target, source in cells)
