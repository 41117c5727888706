"""Gaps in texts: nothing is lost, shares and lengths are the papers', all by the place alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.corruption import (
    Corruption,
    Denoising,
    SentenceEnds,
    SpanCorruption,
    denoising,
    span_corruption,
)
from heedful.errors import ConfigError
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

MASK = 7
SENTINELS = tuple(range(1000, 1300))
TEXT = "One dog ran. Was it 3.5 miles? Yes!! It was, e.g. fast… 走った。はい！ it is\n. So."
PLAIN = "One dog ran. Was it fast? Yes!! It was. And so on …"

places = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 99), st.integers(0, 2**40))
shares = st.floats(0.01, 0.99)
spans = st.floats(1, 20)
lengths = st.integers(1, 200)


def row(length: int) -> np.ndarray:
    """Pieces that are all different, and none of them special."""
    return np.arange(10_000, 10_000 + length)


def at(corruption: Corruption, pieces: np.ndarray, place: tuple[int, int, int]):
    seed, epoch, start = place
    return corruption(pieces, seed=seed, epoch=epoch, start=start)


def put_back(source: list[int], target: list[int]) -> list[int]:
    """The text of which the target says what its source's sentinels stand for."""
    found: dict[int, list[int]] = {}
    for id in target:
        if id in SENTINELS:
            found[id] = current = []
        else:
            current.append(id)
    return [piece for id in source for piece in found.get(id, [id])]


@settings(max_examples=200)
@given(length=lengths, share=shares, mean=spans, place=places)
def test_source_and_target_together_are_the_text(length, share, mean, place) -> None:
    pieces = row(length)
    corruption = SpanCorruption(SENTINELS, share, mean)
    source, target = (ids.tolist() for ids in at(corruption, pieces, place))
    assert put_back(source, target) == pieces.tolist()
    used = [id for id in source if id in SENTINELS]
    # Each gap has its own, in order; the target says them all and ends with the next.
    assert used == list(SENTINELS[: len(used)])
    assert [id for id in target if id in SENTINELS] == list(SENTINELS[: len(used) + 1])
    assert target[-1] == SENTINELS[len(used)]
    assert not any({a, b} <= set(SENTINELS) for a, b in itertools.pairwise(source))
    assert not any({a, b} <= set(SENTINELS) for a, b in itertools.pairwise(target))
    dropped = len(target) - len(used) - 1
    wanted = min(max(1, math.floor(share * length + 0.5)), max(1, length - 1))
    assert dropped == wanted
    assert len(used) == min(max(1, math.floor(dropped / mean + 0.5)), length - dropped + 1)
    most = corruption.longest(np.array([length]))
    assert (len(source), len(target)) == (most[0][0], most[1][0])


@settings(max_examples=200)
@given(length=lengths, share=shares, mean=spans, place=places)
def test_a_denoised_text_is_the_text(length, share, mean, place) -> None:
    pieces = row(length)
    corruption = Denoising(MASK, share, mean)
    source, target = (ids.tolist() for ids in at(corruption, pieces, place))
    assert target == pieces.tolist()
    kept = [id for id in source if id != MASK]
    assert kept == [id for id in target if id in set(kept)]
    assert len(target) - len(kept) in {max(1, int(share * length) + more) for more in (0, 1)}
    assert MASK in source
    assert len(source) <= length
    touching = any(a == b == MASK for a, b in itertools.pairwise(source))
    assert not touching or len(kept) < source.count(MASK) - 1


@settings(max_examples=60)
@given(length=lengths, share=shares, mean=spans, place=places, spanned=st.booleans())
def test_gaps_are_a_function_of_the_place(length, share, mean, place, spanned) -> None:
    def fresh() -> Corruption:
        return SpanCorruption(SENTINELS, share, mean) if spanned else Denoising(MASK, share, mean)

    pieces = row(length)
    one, two = at(fresh(), pieces, place), fresh()
    at(two, row(50), (1, 2, 3))  # what came before changes nothing
    again = at(two, pieces, place)
    assert np.array_equal(one[0], again[0])
    assert np.array_equal(one[1], again[1])
    assert np.array_equal(pieces, row(length))


@pytest.mark.parametrize("kind", ["spans", "denoising"])
def test_epoch_seed_and_row_each_change_the_gaps(kind: str) -> None:
    corruption = SpanCorruption(SENTINELS, 0.15, 3) if kind == "spans" else Denoising(MASK, 0.3, 3)
    given_ = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]
    assert len({at(corruption, row(100), place)[0].tobytes() for place in given_}) == 4


def test_shares_and_spans_are_those_of_t5() -> None:
    # 512 tokens: 77 are dropped in 26 spans (Raffel 2020, 3.3.4: 15 %, mean 3).
    corruption = SpanCorruption(SENTINELS, 0.15, 3)
    dropped = np.zeros(512)
    found: Counter[int] = Counter()
    for start in range(1500):
        source, target = at(corruption, row(512), (5, 0, start))
        kept = source[source >= 10_000]
        dropped += ~np.isin(row(512), kept)
        cuts = np.flatnonzero(target < 10_000)
        assert len(cuts) == 27
        found.update((np.diff(cuts) - 1).tolist())
    assert dropped.sum() / (1500 * 512) == pytest.approx(77 / 512)
    total = found.total()
    assert sum(n * count for n, count in found.items()) / total == pytest.approx(77 / 26)
    # Of all ways to cut 77 pieces into 26 spans, those with a first span of n pieces.
    for n in (1, 2, 5):
        ways = math.comb(77 - n - 1, 24) / math.comb(76, 25)
        assert found[n] / total == pytest.approx(ways, abs=0.01)
    # Every place alike, but for the first and the last few, beside which no kept piece must be.
    assert dropped[20:-20] / 1500 == pytest.approx(np.full(472, 77 / 512), abs=0.05)
    assert dropped[0] > 0
    assert dropped[-1] > 0


def test_shares_and_spans_are_those_of_bart() -> None:
    corruption = Denoising(MASK, 0.3, 3)
    found: Counter[int] = Counter()
    hidden = 0
    for start in range(1500):
        source, _ = at(corruption, row(513), (5, 0, start))
        gaps = np.diff(np.concatenate([[9_999], source[source >= 10_000], [10_513]])) - 1
        hidden += int(gaps.sum())
        masks = np.flatnonzero(source == MASK)
        before = np.concatenate([[9_999], source])[masks]
        after = np.concatenate([source, [10_513]])[masks + 1]
        found.update((after - before - 1).tolist())
    assert hidden / (1500 * 513) == pytest.approx(0.3, abs=0.0005)
    total = found.total()
    for n in range(8):
        poisson = math.exp(-3) * 3**n / math.factorial(n)
        # The gap that goes past the share is cut, one in about 50.
        assert found[n] / total == pytest.approx(poisson, abs=0.01)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerSpec(vocabulary_size=120), [TEXT] * 3 + [PLAIN])


def test_sentences_are_told_apart_by_their_ends(tokenizer: Tokenizer) -> None:
    ids = np.array(tokenizer.encode(TEXT))
    parts = [tokenizer.decode(part).strip() for part in SentenceEnds(tokenizer).cut(ids)]
    assert parts == [
        "One dog ran.",
        "Was it 3.5 miles?",
        "Yes!!",
        "It was, e.g.",
        "fast…",
        "走った。",
        "はい！",
        "it is\n.",
        "So.",
    ]


def test_sentences_are_moved_whole_and_to_every_place(tokenizer: Tokenizer) -> None:
    pieces = np.array(tokenizer.encode(PLAIN))
    ends = SentenceEnds(tokenizer)
    sentences = [part.tolist() for part in ends.cut(pieces)]
    assert len(sentences) == 5
    orders: Counter[tuple[int, ...]] = Counter()
    for start in range(3000):
        source, target = at(Denoising(10**6, 1e-9, 3, ends), pieces, (1, 0, start))
        assert np.array_equal(target, pieces)
        (missing,) = (Counter(pieces.tolist()) - Counter(source.tolist())).elements()
        whole = np.where(source == 10**6, missing, source)  # one piece is hidden
        orders[tuple(sentences.index(part.tolist()) for part in ends.cut(whole))] += 1
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len(orders) == 120
    assert max(orders.values()) < 50  # 25 on the average


def test_tokenizers_without_the_right_tokens_are_refused(tokenizer: Tokenizer) -> None:
    few, one = tokenizer.with_sentinels(5), tokenizer.with_sentinels(1)
    assert span_corruption(few, 0.15, 3, 80).sentinels.tolist() == list(few.sentinels)
    with pytest.raises(ConfigError, match="need 6 sentinels, and the tokenizer has 5"):
        span_corruption(few, 0.15, 3, 100)
    with pytest.raises(ConfigError, match=r"has 0.*span_corruption"):
        span_corruption(tokenizer, 0.15, 3, 80)
    assert denoising(one, 0.3, 3, permute_sentences=False).mask.tolist() == [one.size - 1]
    assert denoising(tokenizer.for_encoder(), 0.3, 3, permute_sentences=True).sentences
    with pytest.raises(ConfigError, match="no mask token"):
        denoising(tokenizer, 0.3, 3, permute_sentences=False)
    with pytest.raises(ConfigError, match=r"5 sentinels.*span_corruption"):
        denoising(few, 0.3, 3, permute_sentences=False)
