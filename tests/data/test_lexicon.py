"""Tables of likely translations, beside the textbook's loops over dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data import lexicon
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.encoded_pairs import EncodedCorpus
from heedful.data.lexicon import learn_lexicon, ragged, ranks

SOURCES, TARGETS = 5, 7
PAIRS = st.lists(
    st.tuples(
        st.lists(st.integers(0, SOURCES - 1), max_size=5),
        st.lists(st.integers(0, TARGETS - 1), max_size=5),
    ),
    min_size=1,
    max_size=8,
)


def corpus_of(pairs) -> EncodedCorpus:
    arrays = {}
    for number, side in enumerate(("source", "target")):
        rows = [pair[number] for pair in pairs]
        arrays[f"{side}.ids"] = np.array([i for row in rows for i in row], dtype=np.uint16)
        arrays[f"{side}.offsets"] = np.cumsum([0, *map(len, rows)])
    return EncodedCorpus(CorpusSpec(source="s", target="t"), arrays, {"files": [{}, {}]}, "key")


def textbook(pairs, rounds):
    """p(target | source), where source None is no token."""
    table = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in pairs:
            for token in target:
                whole = sum(table[token, other] for other in [None, *source])
                for other in [None, *source]:
                    counts[token, other] += table[token, other] / whole
                    totals[other] += table[token, other] / whole
        table = defaultdict(float, {key: n / totals[key[1]] for key, n in counts.items()})
    return {key: p for key, p in table.items() if key[1] is not None and p > 0}


@given(pairs=PAIRS, rounds=st.integers(1, 4), cells=st.sampled_from([36, 50, 1 << 20]))
@settings(max_examples=60)
def test_as_the_textbook_counts(pairs, rounds, cells):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexicon, "_CELLS", cells)  # in parts, or all at once
        found = learn_lexicon(corpus_of(pairs), SOURCES, TARGETS, rounds=rounds)
    rows = zip(found.source.tolist(), found.target.tolist(), found.probability, strict=True)
    table = {(target, source): p for source, target, p in rows}
    expected = textbook(pairs, rounds)
    assert table == pytest.approx(expected, abs=1e-9)
    order = list(zip(found.source, -found.probability, strict=True))
    assert order == sorted(order)
    counted = Counter(token for _, target in pairs for token in target)
    assert found.counts.tolist() == [counted[token] for token in range(TARGETS)]
    assert found.skipped == 0


def test_what_always_stands_together_is_found():
    rng = np.random.default_rng(0)
    becomes = rng.permutation(40)
    sources = [rng.integers(0, 40, rng.integers(2, 9)).tolist() for _ in range(400)]
    pairs = [(source, rng.permutation(becomes[source]).tolist()) for source in sources]
    found = learn_lexicon(corpus_of(pairs), 40, 40)
    best = ranks(found.source) == 0
    assert found.source[best].tolist() == list(range(40))
    assert found.target[best].tolist() == becomes.tolist()


def test_a_table_that_grows_too_large_keeps_the_commonest():
    rng = np.random.default_rng(1)
    sources = [rng.integers(0, 30, 6).tolist() for _ in range(300)]
    pairs = [(source, [token + 30 for token in source]) for source in sources]
    corpus = corpus_of(pairs)
    small, whole = (learn_lexicon(corpus, 30, 60, most_pairs=most) for most in (300, 1 << 20))
    assert len(small.source) <= 300 < len(whole.source)
    assert np.bincount(small.source).tolist() == [4] * 30  # as has no token at all: 124 of 150
    best = ranks(small.source) == 0
    assert small.target[best].tolist() == list(range(30, 60))


def test_pairs_that_are_too_long_are_left_out(monkeypatch):
    monkeypatch.setattr(lexicon, "_CELLS", 20)
    pairs = [([1], [2]), ([0] * 10, [3] * 10), ([1, 1], [2, 2])]
    told = []
    found = learn_lexicon(
        corpus_of(pairs), SOURCES, TARGETS, rounds=1, progress=lambda *step: told.append(step)
    )
    assert found.skipped == 1
    assert set(found.source.tolist()) == {1}
    assert told == [(3, 3, "round 1 of 1")]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=6))
def test_stretches(parts):
    starts, lengths = (np.array([p[i] for p in parts], dtype=np.int64) for i in (0, 1))
    expected = [start + i for start, length in parts for i in range(length)]
    assert ragged(starts, lengths).tolist() == expected
