"""BPE-dropout: plain BPE at 0, characters at 1, and the distribution of the paper in between."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError, DataError
from heedful.text.bpe_dropout import MergeTable
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

LINES = [
    "the lower slower flower follows the lowest widest river",
    "newer and wider towers are lower than the widest flower",
    "aaaa aaa banana ananas bananas, 17:45 ... fließt ein fluss",
]


@cache
def trained(kind: str) -> Tokenizer:
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": 320})
    return train_tokenizer(spec, LINES * 5)


words = st.sampled_from(" ".join(LINES).split())
fragments = st.text(alphabet=sorted(set("".join(LINES)) | set("東☃\x00")), max_size=9)


@given(text=st.lists(words | fragments | st.just(" ")).map("".join))
@example(text=" ".join(LINES))
@settings(max_examples=100)
def test_without_dropout_it_is_the_plain_encoding(text: str) -> None:
    for kind in ("bpe", "byte-bpe"):
        assert trained(kind).encode_dropout(text, 0.0, 1) == trained(kind).encode(text)


@given(text=st.sampled_from(LINES), p=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_it_is_a_function_of_text_dropout_and_seed(text: str, p: float, seed: int) -> None:
    for kind in ("bpe", "byte-bpe"):
        tokenizer = trained(kind)
        ids = tokenizer.encode_dropout(text, p, seed)
        assert ids == tokenizer.encode_dropout(text, p, seed)
        assert ids == Tokenizer.from_json(tokenizer.to_json()).encode_dropout(text, p, seed)
        assert tokenizer.decode(ids) == text


def test_full_dropout_leaves_characters() -> None:
    tokenizer = trained("bpe")
    pieces = tokenizer.pieces(tokenizer.encode_dropout("the flower", 1.0, 1))
    assert pieces == list("\u2581the\u2581flower")


def test_seeds_give_different_pieces() -> None:
    tokenizer = trained("bpe")
    cuts = {tuple(tokenizer.encode_dropout(LINES[0], 0.3, seed)) for seed in range(50)}
    assert len(cuts) > 40


def paper_algorithm(
    word: str, ranks: dict[tuple[str, str], int], p: float, draw: random.Random
) -> tuple[str, ...]:
    """Algorithm 1 of the paper, as written: drop from all possible merges, take the best."""
    split = list(word)
    while True:
        possible = [
            (ranks[pair], place)
            for place, pair in enumerate(itertools.pairwise(split))
            if pair in ranks
        ]
        left = [merge for merge in possible if draw.random() >= p]
        if not left:
            return tuple(split)
        _, place = min(left)
        split[place : place + 2] = [split[place] + split[place + 1]]


def test_distribution_is_that_of_the_paper() -> None:
    merges = [("a", "b"), ("ab", "a"), ("b", "a"), ("ba", "b"), ("aba", "b")]
    pieces = sorted({"a", "b", *("".join(merge) for merge in merges)})
    table = MergeTable({piece: i for i, piece in enumerate(pieces)}, merges, None)
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    draws, p, word = 20_000, 0.4, "ababab"
    ours, expected = random.Random(1), random.Random(2)
    counted = Counter(
        tuple(pieces[i] for i in table.split(word, p, ours.random)) for _ in range(draws)
    )
    reference = Counter(paper_algorithm(word, ranks, p, expected) for _ in range(draws))
    distance = sum(abs(counted[cut] - reference[cut]) for cut in {*counted, *reference}) / draws / 2
    # Two samples of this size of one distribution over this many outcomes differ by about 0.015.
    assert len(reference) > 5
    assert distance < 0.03


@pytest.mark.parametrize("kind", ["unigram", "characters"])
def test_other_kinds_have_no_merges_to_leave_out(kind: str) -> None:
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": 100})
    with pytest.raises(ConfigError, match="BPE-dropout needs"):
        train_tokenizer(spec, LINES).encode_dropout("the", 0.1, 1)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(DataError, match="character 1"):
        trained("bpe").encode_dropout("\udfff", 0.1, 1)


def test_a_very_long_word_takes_reasonable_time() -> None:
    start = time.perf_counter()
    ids = trained("bpe").encode_dropout("banana" * 10_000, 0.1, 1)
    assert len(ids) >= 10_000
    assert time.perf_counter() - start < 5
