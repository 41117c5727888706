"""Word alignments from cross-attention, and the choice of the heads that align best.

The first candidates are each head and the mean of each layer, with both rows of a target token;
means of the best heads follow. The criterion is the agreement with gold links, with a model of the
opposite direction (Garg 2019; Chen 2020), or the prediction of target words from linked source
words; see the design page on inspection.
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
from heedful.inspect.drawings import word_links
from heedful.inspect.readings import BATCH_TOKENS, ModelInput, batches, pair_words, tensors
from heedful.inspect.subject import Result, Subject, array, run
from heedful.inspect.word_links import Link, Links, Symmetry, pharaoh, symmetrize
from heedful.nn.capture import Capture

MOST_HEADS = 8
"""Upper bound of the heads whose mean is a candidate."""

_NEARLY = 0.8
"""Share of the best prediction score that heads must reach to be compared by agreement: heads that
only follow the diagonal agree in both directions too, but their links predict words badly."""

Gold = Sequence[tuple[Collection[Link], Collection[Link]]]
"""Sure links and possible links of each sentence, as returned by `parse_pharaoh`."""

Row = Literal["predicting", "reading"]
"""Query of a target token: the position where it is predicted, or the next, where it is input."""

ROWS = get_args(Row)


@dataclass(frozen=True, eq=False)
class WordAttention:
    """Attention from each target word to each source word.

    Args:
        source_words: words of the source.
        target_words: words of the target.
        weights: [layers, heads, 2, target words, source words] float32 weights for both `Row`s:
            the mean over the tokens of a target word of the sum over the tokens of a source word.
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
        batch_tokens: positions per batch.

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
        # [B, layers, H, Lq, Lk]; layers with fewer heads are padded by heads of zeros.
        weights = np.stack(result, axis=1)
        for number, reading, each in zip(numbers, batch, weights, strict=True):
            results[number] = _between_words(subject, reading, each)
    # Batches come in order of length; the results in the order of the sentences.
    return [results[number] for number in range(len(readings))]


def _between_words(subject: Subject, reading: ModelInput, weights: np.ndarray) -> WordAttention:
    """Reduce weights between tokens [layers, H, Lq, Lk] to weights between words."""
    before = len(subject.source.first)
    (source_words, source_of), (target_words, target_of) = pair_words(subject, reading)
    columns = _indicator(source_of, len(source_words))
    rows = _indicator(target_of, len(target_words))
    # Means over target tokens and sums over source tokens, so a row of words still sums to at most
    # 1.
    rows /= np.maximum(rows.sum(0), 1)
    tokens = weights[..., before : before + len(source_of)] @ columns
    count = len(target_of)
    # Shifted by one for the position where the token is input, which often aligns better (Chen
    # 2020).
    both = np.stack([tokens[:, :, :count], tokens[:, :, 1 : count + 1]], axis=2)
    return WordAttention(tuple(source_words), tuple(target_words), rows.T @ both)


def _indicator(word_of: Sequence[int], words: int) -> np.ndarray:
    """Return a matrix [tokens, words] with 1 where a token belongs to a word."""
    indicator = np.zeros((len(word_of), words), np.float32)
    indicator[np.arange(len(word_of)), np.asarray(word_of, dtype=np.int64)] = 1
    return indicator


@dataclass(frozen=True)
class HeadChoice(Result):
    """Heads whose mean aligns words.

    Args:
        heads: indices of layer and head of each chosen head.
        row: query of a target token.
        criterion: `gold` (1 − alignment error rate), `agreement` with the other direction (F1), or
            `prediction` (mutual information of linked words in bits).
        score: score by that criterion on the corpus of the choice.
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
"""A function from links [candidates, cells of all sentences] bool to scores; higher is better."""


def choose_heads(attention: Sequence[WordAttention], gold: Gold | None = None) -> HeadChoice:
    """Choose the heads of one model that align best.

    Args:
        attention: attention between the words of a corpus; a few hundred sentences are enough.
        gold: links by annotators; None for the criterion `prediction`.

    Raises:
        DataError: when the corpus has no words, or the gold links do not fit its sentences.
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
        forward: attention of one model on a corpus.
        backward: attention of the other model on the same sentences, source and target exchanged.

    Returns:
        The choices for both models.

    Raises:
        DataError: when the corpus has no words, or the words of the two models differ.
    """
    here, there = _Corpus(forward), _Corpus(backward)
    check_same_words(forward, backward)
    _, here_links = here.singles()
    _, there_links = there.singles()
    exchanged = there.swap_sides(there_links)
    # F1 of all pairs of candidates by one matmul: |A ∩ B| of every A and B. [candidates,
    # candidates].
    both = here_links.astype(np.float32) @ exchanged.astype(np.float32).T
    sizes = here_links.sum(-1)[:, None] + exchanged.sum(-1)
    agreement = 2 * both / np.maximum(sizes, 1)
    for axis, (corpus, links) in enumerate(((here, here_links), (there, there_links))):
        predicted = corpus.prediction(links)
        poor = predicted < _NEARLY * predicted.max()
        agreement[poor if axis == 0 else (slice(None), poor)] = -1
    best = np.unravel_index(agreement.argmax(), agreement.shape)
    # One side is fixed while heads are added to the other, so the search stays linear in
    # candidates.
    other = exchanged[best[1]]
    chosen = _grow(here, lambda links: _f1(links, other), "agreement", best[0])
    links = here.links(chosen.heads, chosen.row)
    back = _grow(there, lambda each: _f1(there.swap_sides(each), links), "agreement", best[1])
    return chosen, back


def check_same_words(forward: Sequence[WordAttention], backward: Sequence[WordAttention]) -> None:
    """Raise a `DataError` that names a sentence which two models split into different words."""
    if len(forward) != len(backward):
        raise DataError(f"{len(forward)} sentences in one direction, {len(backward)} in the other")
    for number, (one, other) in enumerate(zip(forward, backward, strict=True), start=1):
        # Tokenizers of the two directions may differ in case or normalisation; links only need the
        # counts.
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
        # Weights of exactly 0 link nothing: a pruned head, or attention that all went to EOS.
        np.put_along_axis(links, best, np.take_along_axis(matrix, best, -1) > 0, -1)
    return links


def _f1(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the F1 score of two sets of links over the last axis."""
    both = (one & other).sum(-1)
    return np.asarray(2 * both / np.maximum(one.sum(-1) + other.sum(-1), 1))


class _Corpus:
    """All cells of the word matrices of a corpus in one row."""

    def __init__(self, attention: Sequence[WordAttention]) -> None:
        self.attention = [a for a in attention if a.source_words and a.target_words]
        if not self.attention:
            raise DataError("There are no words to choose heads on")
        self.all = attention
        self.layers, self.heads = self.attention[0].weights.shape[:2]
        # Lower case joins the counts of a word at the beginning and inside of sentences.
        self.words = [
            (a.source_words[s].lower(), a.target_words[t].lower())
            for a in self.attention
            for t in range(len(a.target_words))
            for s in range(len(a.source_words))
        ]
        # Alternate sentences, so both halves come from all parts of the corpus.
        self.half = np.concatenate(
            [
                np.full(len(a.source_words) * len(a.target_words), number % 2, bool)
                for number, a in enumerate(self.attention)
            ]
        )

    def singles(self) -> tuple[list[tuple[list[tuple[int, int]], Row]], np.ndarray]:
        """Return every head and the mean of every layer as candidates, with the links of each."""
        layers, heads = range(self.layers), range(self.heads)
        groups = [[(n, h)] for n in layers for h in heads] + [
            [(n, h) for h in heads] for n in layers
        ]
        candidates = list(itertools.product(groups, ROWS))
        return candidates, np.stack([self.links(*candidate) for candidate in candidates])

    def links(self, heads: Sequence[tuple[int, int]], row: Row) -> np.ndarray:
        """Return the links [cells] bool of the mean of some heads."""
        layer, head = np.transpose(heads)
        at = ROWS.index(row)
        return np.concatenate(
            [links_of(a.weights[layer, head, at].mean(0)).ravel() for a in self.attention]
        )

    def swap_sides(self, links: np.ndarray) -> np.ndarray:
        """Return links [..., cells] with source and target exchanged."""
        sizes = [(len(a.target_words), len(a.source_words)) for a in self.attention]
        # Each sentence has a matrix of its own, so each is cut out of the row and transposed alone.
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
        """Return a score function, 1 − alignment error rate (Och and Ney 2003)."""
        if len(gold) != len(self.all):
            raise DataError(f"Gold links of {len(gold)} sentences for {len(self.all)}")
        # Sentences without words were dropped above, and their gold links with them.
        kept = [g for g, a in zip(gold, self.all, strict=True) if a.source_words and a.target_words]
        pairs = list(zip(kept, self.attention, strict=True))
        sure, possible = (np.concatenate([_cells(g[i], a) for g, a in pairs]) for i in (0, 1))

        def score(links: np.ndarray) -> np.ndarray:
            hits = (links & sure).sum(-1) + (links & (possible | sure)).sum(-1)
            return np.asarray(hits / np.maximum(links.sum(-1) + sure.sum(), 1))

        return score

    def prediction(self, links: np.ndarray) -> np.ndarray:
        """Compute the mutual information of linked words in bits, counted on the other half.

        It is the mean of log2 p(target | source) − log2 p(target) over links; the conditional
        probability is smoothed by the unigram probability.
        """
        return np.array([self._bits(each) for each in links])

    def _bits(self, links: np.ndarray) -> float:
        halves = [
            [self.words[cell] for cell in np.flatnonzero(links & (self.half == half))]
            for half in (False, True)
        ]
        total = 0.0
        # Cross-validated: a head whose links are random pairs would predict its own pairs
        # perfectly.
        for train, test in (halves, halves[::-1]):
            pairs, sources = Counter(train), Counter(source for source, _ in train)
            targets = Counter(target for _, target in train)
            kinds = len(targets) + 1
            for source, target in test:
                # Add-one smoothing with one more kind for unseen words; a source word never linked
                # gives 0 bits.
                prior = (targets[target] + 1) / (len(train) + kinds)
                conditional = (pairs[source, target] + prior) / (sources[source] + 1)
                total += math.log2(conditional / prior)
        return total / max(1, sum(map(len, halves)))


def _cells(links: Collection[Link], attention: WordAttention) -> np.ndarray:
    """Return links as the cells [target words · source words] of a sentence's matrix."""
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
        corpus: words and attention of the corpus.
        score: score function.
        criterion: name of the criterion.
        first: index of the candidate to begin with; the best if None.
    """
    candidates, links = corpus.singles()
    scores = score(links)
    heads, row = candidates[int(scores.argmax() if first is None else first)]
    best = HeadChoice(tuple(heads), row, criterion, float(scores[candidates.index((heads, row))]))
    for each in ROWS:
        single = [i for i, (group, at) in enumerate(candidates) if len(group) == 1 and at == each]
        # Greedy by single scores: the best k heads for each k, not all subsets of H heads.
        ranked = sorted(single, key=lambda i: -scores[i])[:MOST_HEADS]
        for count in range(2, len(ranked) + 1):
            group = tuple(candidates[i][0][0] for i in ranked[:count])
            value = float(score(corpus.links(group, each)[None])[0])
            if value > best.score:
                best = HeadChoice(group, each, criterion, value)
    return best


AT_ONCE = 500
"""Sentence pairs whose attention is in memory at a time; heads are chosen on the first chunk."""


@dataclass(frozen=True)
class AlignedPair(Result):
    """A sentence pair and its links.

    Args:
        source_words: words of the source.
        target_words: words of the target.
        links: pairs of source and target word indices, from 0.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    links: Links

    @property
    def pharaoh(self) -> str:
        """The links in the Pharaoh format `0-0 1-2 …`."""
        return pharaoh(self.links)

    def _repr_html_(self) -> str:
        """The words of both texts, with a line for each link."""
        weights = np.zeros((len(self.source_words), len(self.target_words)))
        for source, target in self.links:
            weights[source, target] = 1
        return word_links(self.source_words, self.target_words, weights, self.pharaoh)


@dataclass(frozen=True)
class Alignments(Result):
    """Aligned sentence pairs and the heads whose attention aligned them.

    Args:
        pairs: sentence pairs in the order of the corpus.
        forward: chosen heads of the model.
        backward: chosen heads of the model of the opposite direction; None without one.
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
        heads: an earlier choice of heads; chosen on the first 500 pairs if None.
        gold: links by annotators that heads are chosen by.
        reverse: a translator of the opposite direction, with the same pairs as its inputs.
        method: symmetrization method.

    Raises:
        ModelError: when a model has no cross-attention.
        DataError: when gold links or the inputs of the other direction do not fit the pairs.
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
        # Heads are chosen on the first chunk; later chunks use them.
        if choice is None or (reverse_choice is None and backward is not None):
            best, reverse_choice = _choose(forward, backward, None if gold is None else gold[chunk])
            # Heads given by the caller stay; only those of the other direction are chosen then.
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
    """Return links with source and target exchanged."""
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
