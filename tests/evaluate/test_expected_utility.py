"""Expected chrF against sacreBLEU's, pair by pair."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from heedful.evaluate.expected_utility import chrf_matrix, expected_chrf

TEXTS = st.lists(
    st.one_of(st.text("ab c.", max_size=14), st.text(max_size=8)), min_size=1, max_size=5
)


@given(texts=TEXTS)
@settings(max_examples=80, deadline=None)
def test_it_is_the_mean_over_pairs(texts):
    metric = CHRF()
    known = [[metric.sentence_score(one, [other]).score for other in texts] for one in texts]
    for row, scores in zip(chrf_matrix(texts).tolist(), known, strict=True):
        assert row == pytest.approx(scores, abs=1e-6)
    means = [sum(scores) / len(scores) for scores in known]
    assert expected_chrf(texts) == pytest.approx(means, abs=1e-6)
