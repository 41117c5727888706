"""Beam search for one sentence; greedy search is the beam of width 1.

It is the search of `heedful.search.beam`, which says why it ends when it does, without what batches
need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from heedful.engines.lowering import Floats, address, empty, workspace
from heedful.engines.numpy_translator import NumpyTranslator
from heedful.kernels.library import kernels
from heedful.search.search_settings import (
    Hypothesis,
    SearchSettings,
    Specials,
    length_norm,
    not_numbers,
)


class _Candidate(NamedTuple):
    """One more token of a live hypothesis.

    Args:
        total: summed log-probability; −∞ where there is no candidate.
        parent: which hypothesis is continued.
        token: with what.
        score: the log-probability of that.
    """

    total: float
    parent: int
    token: int
    score: float


@dataclass(frozen=True)
class _Ending:
    """A hypothesis that has ended.

    Args:
        rank: its normalised score.
        total: its summed log-probability.
        length: its tokens, the end not counted.
        beam: which live hypothesis of that length it was.
        score: log-probability of the end.
        wanted: whether the model itself would have ended there.
    """

    rank: float
    total: float
    length: int
    beam: int
    score: float
    wanted: bool


def search(
    translator: NumpyTranslator,
    source: Sequence[int],
    settings: SearchSettings,
    specials: Specials,
    *,
    longest: int | None,
    kept: int,
) -> list[Hypothesis]:
    """The best translations of a sentence, best first.

    Args:
        translator: the model.
        source: ids, special tokens included.
        settings: of the search.
        specials: ids of the target's special tokens.
        longest: most tokens that can be written, if positions end somewhere.
        kept: how many hypotheses are wanted.

    Raises:
        ModelError: when the model gives no numbers.
    """
    limit = settings.longest(len(source))
    limit = limit if longest is None else min(limit, longest)
    width, eos = settings.beam, specials.eos
    never = {specials.pad, specials.bos} - {eos}
    longest_norm = length_norm(limit + 1.0, settings.length_penalty)
    text = translator.begin(source)
    tokens, totals = [specials.bos], [0.0]
    steps: list[list[_Candidate]] = []
    best: list[_Ending] = []
    while True:
        age = len(steps)
        scores = text.step(tokens)
        excess = _excess(scores)
        wanted = [True] * len(tokens)
        if age == limit:
            wanted = [bool(found == eos) for found in scores.argmax(1)]
        _constrain(scores, age, never, settings, eos, must_end=age >= limit)
        found = _continuations(scores, excess, totals, 2 * width if width > 1 else 1)
        norm = length_norm(age + 1.0, settings.length_penalty)
        ended = [
            _Ending(total / norm, total, age, parent, score, wanted[parent])
            for total, parent, token, score in found
            if token == eos and total > -math.inf
        ]
        best = sorted(best + ended, key=lambda ending: -ending.rank)[:kept]
        live = [each for each in found if each.token != eos]
        live += [each._replace(total=-math.inf) for each in found if each.token == eos]
        live = live[:width]
        steps.append(live)
        worst = best[-1].rank if len(best) == kept else -math.inf
        if not worst < live[0].total / longest_norm:
            return [_hypothesis(steps, each) for each in best]
        parents = [each.parent for each in live]
        if parents != list(range(len(tokens))):
            text.choose(parents)
        tokens, totals = [each.token for each in live], [each.total for each in live]


def _excess(scores: Floats) -> Floats:
    """What scores [W, V] exceed log-probabilities by, [W] float64."""
    excess = empty((len(scores),), np.float64)
    if not kernels().heedful_logsumexp(address(scores), *scores.shape, address(excess)):
        raise not_numbers()
    return excess


def _constrain(
    scores: Floats,
    age: int,
    never: set[int],
    settings: SearchSettings,
    eos: int,
    *,
    must_end: bool,
) -> None:
    """Set what may not follow to −∞, in place."""
    if must_end:
        end = scores[:, eos].copy()
        scores[...] = -math.inf
        scores[:, eos] = end
        return
    for token in never:
        scores[:, token] = -math.inf
    if age < settings.min_length:
        scores[:, eos] = -math.inf


def _continuations(
    scores: Floats, excess: Floats, totals: Sequence[float], count: int
) -> list[_Candidate]:
    """The best continuations of all hypotheses, as many as asked for, best first."""
    hypotheses, size = scores.shape
    so_far = np.array(totals, np.float64)
    found, token_scores = empty((count,), np.float64), empty((count,))
    parents, tokens = empty((2, count), np.int64)
    room = workspace(12 * hypotheses * min(count, size))
    kernels().heedful_topk(
        *(address(scores), address(excess), address(so_far)),
        *(1, hypotheses, size, count),
        *(address(found), address(parents), address(tokens), address(token_scores)),
        address(room),
    )
    columns = (each.tolist() for each in (found, parents, tokens, token_scores))
    return [_Candidate(*each) for each in zip(*columns, strict=True)]


def _hypothesis(steps: Sequence[Sequence[_Candidate]], ending: _Ending) -> Hypothesis:
    """What led to an ending."""
    path: list[_Candidate] = []
    beam = ending.beam
    for live in reversed(steps[: ending.length]):
        path.append(live[beam])
        beam = live[beam].parent
    path.reverse()
    return Hypothesis(
        tokens=tuple(each.token for each in path),
        score=ending.total,
        normalized_score=ending.rank,
        token_scores=(*(each.score for each in path), ending.score),
        finished=ending.wanted,
    )
