"""A record of a beam search: the continuations that each step ranked, and the fate of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from heedful.search.search_settings import Hypothesis
from heedful.search.step_model import Beam, Candidates

Fate = Literal["lived", "ended", "dropped"]
"""A continuation goes on to the next step, ends its hypothesis, or is not among the best."""


@dataclass(frozen=True)
class RankedContinuation:
    """A continuation that a step ranked.

    Args:
        parent: index of the live hypothesis of the step before that it continues.
        token: token that it adds.
        token_score: log-probability of that token.
        score: summed log-probability of the hypothesis with it.
        fate: life, end or drop of the continuation.
        beam: index of the live hypothesis that it becomes; None unless it lived.
        normalized_score: score among the finished hypotheses; None unless it ended.
        tokens: tokens of the whole hypothesis, the end token left out.
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
        ranked: continuations that it ranked, best first.
        bound: highest normalised score that a hypothesis still to end can reach.
        worst: normalised score of the last hypothesis that would be returned; −∞ while there are
            too few. The search is done once this reaches the bound.
    """

    ranked: tuple[RankedContinuation, ...]
    bound: float
    worst: float


@dataclass(frozen=True)
class _StepTensors:
    """Tensors of a step as the search hands them over, a row for each sentence still searched."""

    sentences: Tensor
    beam: Beam
    norm: float
    bound: Tensor
    worst: Tensor


class SearchTrace:
    """A record that a beam search fills, step by step. It changes nothing in the search.

    For example:

        trace = SearchTrace()
        found = search(model, source, positions, settings, specials=specials, trace=trace)
        steps = trace.steps(0)
        path = places(steps, found[0][0])
    """

    def __init__(self) -> None:
        # Tensors of the device: to read them within a search would wait for a GPU in every step.
        self._steps: list[_StepTensors] = []

    def add(
        self, sentences: Tensor, beam: Beam, *, norm: float, bound: Tensor, worst: Tensor
    ) -> None:
        """Keep a step; called by the search.

        Args:
            sentences: rows [B] of the sentences in the full batch.
            beam: outcome of the step.
            norm: length norm of the hypotheses that end.
            bound: bounds [B] float64; see `Step`.
            worst: worst ranks [B] float64; see `Step`.
        """
        self._steps.append(_StepTensors(sentences, beam, norm, bound, worst))

    def steps(self, sentence: int) -> list[Step]:
        """Return all steps of a sentence by its row in the batch."""
        results: list[Step] = []
        prefixes: list[tuple[int, ...]] = [()]
        for tensors in self._steps:
            rows = (tensors.sentences == sentence).nonzero().flatten().tolist()
            if not rows:  # the sentence has left the batch
                break
            row = rows[0]
            ranked = _ranked(tensors, row, prefixes)
            live = [each for each in ranked if each.beam is not None]
            prefixes = [each.tokens for each in live]
            results.append(Step(ranked, float(tensors.bound[row]), float(tensors.worst[row])))
        return results


def places(steps: Sequence[Step], hypothesis: Hypothesis) -> list[int]:
    """Return the rank of a hypothesis's continuation in each step of the search."""
    tokens = hypothesis.tokens
    path = []
    for length, step in enumerate(steps[: len(tokens) + 1], start=1):
        fate = "lived" if length <= len(tokens) else "ended"
        path.append(
            next(
                place
                for place, each in enumerate(step.ranked)
                if each.fate == fate and each.tokens == tokens[:length]
            )
        )
    return path


def _ranked(
    tensors: _StepTensors, row: int, prefixes: Sequence[tuple[int, ...]]
) -> tuple[RankedContinuation, ...]:
    """Return the continuations of the sentence in a row; `prefixes` are its live hypotheses."""
    # A parent and a token name a continuation, so live ones are found among the candidates.
    live = [
        (parent, token)
        for log_prob, parent, token, _ in _rows(tensors.beam.live, row)
        if log_prob > -math.inf
    ]
    results: list[RankedContinuation] = []
    candidates, ends = tensors.beam.candidates, tensors.beam.ends
    ended = [False] * candidates.log_prob.shape[1] if ends is None else ends[row].tolist()
    for end, (log_prob, parent, token, token_score) in zip(
        ended, _rows(candidates, row), strict=True
    ):
        if log_prob == -math.inf:  # it is forbidden, or fills up a step with too few
            continue
        lives = not end and (parent, token) in live
        results.append(
            RankedContinuation(
                parent=parent,
                token=token,
                token_score=token_score,
                score=log_prob,
                fate="ended" if end else "lived" if lives else "dropped",
                beam=live.index((parent, token)) if lives else None,
                normalized_score=log_prob / tensors.norm if end else None,
                # The end token is no token of the hypothesis, as in `Hypothesis.tokens`.
                tokens=prefixes[parent] if end else (*prefixes[parent], token),
            )
        )
    return tuple(results)


def _rows(candidates: Candidates, row: int) -> Iterator[tuple[float, int, int, float]]:
    """Return the candidates of a sentence, one by one."""
    return zip(*(values[row].tolist() for values in candidates), strict=True)
