"""CTC against all alignments of tiny cases, written out one by one."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.search.ctc_search import best_path, label_scores, prefix_beam

Floats = npt.NDArray[np.float64]
EVERYTHING = 10_000  # a beam that drops nothing


@st.composite
def frames(draw: st.DrawFn) -> Floats:
    """Log-probabilities of up to five frames of up to four labels."""
    count, labels = draw(st.integers(1, 5)), draw(st.integers(2, 4))
    seed = draw(st.integers(0, 10**6))
    scores = np.random.default_rng(seed).normal(0, 2, (count, labels))
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


def text_of(alignment: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(label for label, _ in itertools.groupby(alignment) if label)


def all_texts(log_probs: Floats) -> dict[tuple[int, ...], float]:
    """The probability of every text: the sum over its alignments."""
    found: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for alignment in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        found[text_of(alignment)] += math.exp(log_probs[range(len(log_probs)), alignment].sum())
    return dict(found)


@given(frames())
def test_a_wide_beam_finds_every_text_with_its_probability(log_probs: Floats) -> None:
    wanted = all_texts(log_probs)
    found = prefix_beam(log_probs, EVERYTHING)
    assert {each.labels: math.exp(each.score) for each in found} == pytest.approx(wanted)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


@given(frames(), st.integers(1, 4))
def test_a_narrow_beam_finds_no_more_than_there_is(log_probs: Floats, beam: int) -> None:
    wanted = all_texts(log_probs)
    found = prefix_beam(log_probs, beam)
    assert 1 <= len(found) <= beam
    assert all(math.exp(each.score) <= wanted[each.labels] * (1 + 1e-9) for each in found)


@given(frames())
def test_scores_of_labels_are_those_of_prefixes(log_probs: Floats) -> None:
    wanted = all_texts(log_probs)
    for labels, probability in wanted.items():
        if not labels:
            continue
        scores = label_scores(log_probs, labels)
        assert len(scores) == len(labels)
        assert math.exp(sum(scores)) == pytest.approx(probability)
        # All texts that begin so, by those that begin with one label less.
        begin = [
            sum(p for text, p in wanted.items() if text[:count] == labels[:count])
            for count in range(len(labels))
        ]
        ratios = [after / before for before, after in itertools.pairwise(begin)]
        assert np.exp(scores[:-1]).tolist() == pytest.approx(ratios)


@given(frames())
def test_the_best_path_is_the_text_of_the_best_alignment(log_probs: Floats) -> None:
    alignments = itertools.product(range(log_probs.shape[1]), repeat=len(log_probs))
    best = max(alignments, key=lambda each: log_probs[range(len(log_probs)), each].sum())
    assert best_path(log_probs) == text_of(best)


def test_a_sum_may_choose_another_text_than_the_best_path() -> None:
    # Blank twice is the best alignment, and the label is the best text: it has three alignments.
    log_probs = np.log([[0.6, 0.4], [0.6, 0.4]])
    assert best_path(log_probs) == ()
    assert prefix_beam(log_probs, 2)[0].labels == (1,)
    assert prefix_beam(log_probs, 2)[0].score == pytest.approx(math.log(0.64))


def test_a_repeat_needs_a_frame_between() -> None:
    log_probs = np.log(np.full((2, 2), 0.5))
    assert label_scores(log_probs, [1, 1])[-1] == -math.inf
    assert label_scores(log_probs, [1, 1, 1]) == (pytest.approx(math.log(0.75)), *[-math.inf] * 2)
    assert sum(label_scores(np.log(np.full((3, 2), 0.5)), [1, 1])) == pytest.approx(math.log(1 / 8))
