"""A record of a beam search: the continuations that each step looked at, and their fate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from heedful.search.beam_selection import Beam
from heedful.search.search_settings import Hypothesis
from heedful.search.step_model import Candidates

Fate = Literal["lived", "ended", "dropped"]
"""Went on to the next step; ended its hypothesis; was not good enough to live on."""


@dataclass(frozen=True)
class Looked:
    """A continuation that a step looked at.

    Args:
        parent: which live hypothesis of the step before it continues, from 0.
        token: with which token.
        token_score: that token's log-probability.
        score: summed log-probability of the hypothesis with it.
        fate: what became of it.
        beam: which live hypothesis it is from here on; None unless it lived.
        normalized_score: what it is ranked by among those that ended; None unless it ended.
        tokens: of the whole hypothesis, end token left out.
    """

    parent: int
    token: int
    token_score: float
    score: float
    fate: Fate
    beam: int | None
    normalized_score: float | None
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One step of the search for a sentence.

    Args:
        looked: the continuations it looked at, best first.
        bound: no hypothesis that is still to end can be ranked above this.
        worst: what the last of those that would be returned is ranked by; −∞ while there are too
            few. The search is done once this reaches the bound.
    """

    looked: tuple[Looked, ...]
    bound: float
    worst: float


@dataclass(frozen=True)
class _Seen:
    """Tensors of a step as the search hands them over, a row for each sentence still searched."""

    sentences: Tensor
    beam: Beam
    norm: float
    bound: Tensor
    worst: Tensor


class SearchTrace:
    """Watches a beam search that it is given to. It sees values and changes none.

    For example:

        trace = SearchTrace()
        found = search(model, source, positions, settings, specials=specials, trace=trace)
        steps = trace.steps(0)
        path = places(steps, found[0][0])
    """

    def __init__(self) -> None:
        self._seen: list[_Seen] = []

    def add(
        self, sentences: Tensor, beam: Beam, *, norm: float, bound: Tensor, worst: Tensor
    ) -> None:
        """Keep a step; called by the search.

        Args:
            sentences: [B] rows of the full batch.
            beam: the outcome of the step.
            norm: what the totals of those that end are divided by.
            bound: [B] float64; see `Step`.
            worst: [B] float64; see `Step`.
        """
        self._seen.append(_Seen(sentences, beam, norm, bound, worst))

    def steps(self, sentence: int) -> list[Step]:
        """All steps of one sentence.

        Args:
            sentence: its row in the batch.
        """
        results: list[Step] = []
        before: list[tuple[int, ...]] = [()]
        for seen in self._seen:
            rows = (seen.sentences == sentence).nonzero().flatten().tolist()
            if not rows:
                break
            looked = _looked(seen, rows[0], before)
            before = [each.tokens for each in looked if each.fate == "lived"]
            results.append(Step(looked, float(seen.bound[rows[0]]), float(seen.worst[rows[0]])))
        return results


def places(steps: Sequence[Step], hypothesis: Hypothesis) -> list[int]:
    """The place of a returned hypothesis among the continuations of each step.

    Args:
        steps: of its sentence.
        hypothesis: from the search.
    """
    tokens = hypothesis.tokens
    path = []
    for length, step in enumerate(steps[: len(tokens) + 1], start=1):
        fate = "lived" if length <= len(tokens) else "ended"
        path.append(
            next(
                place
                for place, each in enumerate(step.looked)
                if each.fate == fate and each.tokens == tokens[:length]
            )
        )
    return path


def _looked(seen: _Seen, row: int, before: Sequence[tuple[int, ...]]) -> tuple[Looked, ...]:
    """The continuations of a step.

    Args:
        seen: the step.
        row: the sentence's.
        before: the tokens of the hypotheses that are continued.
    """
    live = [
        (parent, token)
        for total, parent, token, _ in _rows(seen.beam.live, row)
        if total > -math.inf
    ]
    results: list[Looked] = []
    candidates, ends = seen.beam.candidates, seen.beam.ends
    ended = [False] * candidates.total.shape[1] if ends is None else ends[row].tolist()
    for end, (total, parent, token, token_score) in zip(ended, _rows(candidates, row), strict=True):
        if total == -math.inf:
            continue
        lives = not end and (parent, token) in live
        results.append(
            Looked(
                parent=parent,
                token=token,
                token_score=token_score,
                score=total,
                fate="ended" if end else "lived" if lives else "dropped",
                beam=live.index((parent, token)) if lives else None,
                normalized_score=total / seen.norm if end else None,
                tokens=before[parent] if end else (*before[parent], token),
            )
        )
    return tuple(results)


def _rows(candidates: Candidates, row: int) -> Iterator[tuple[float, int, int, float]]:
    """A sentence's candidates, one by one."""
    return zip(*(values[row].tolist() for values in candidates), strict=True)
