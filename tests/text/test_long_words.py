"""Tokenizers trained on text without spaces: in reasonable time, and not without a word."""

from __future__ import annotations

import random
import time

import pytest

from heedful.text import tokenizer_training
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer
from heedful.text.unknown_characters import describe_unknown


def letters(count: int, seed: int = 1) -> str:
    return "".join(random.Random(seed).choices("abcdefghij", k=count))


def test_unigram_takes_a_part_of_very_long_words_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_training, "_UNIGRAM_CHARACTERS", 4000)
    told: list[str] = []
    spec = TokenizerSpec(kind="unigram", vocabulary_size=100)
    lines = [f"the cat {letters(15_000, seed)} sat" for seed in range(10)]
    start = time.perf_counter()
    tokenizer = train_tokenizer(spec, lines, told.append)
    assert time.perf_counter() - start < 10
    assert len(told) == 1
    assert "3% of the 150,010 characters" in told[0]
    assert tokenizer.size <= 100
    assert tokenizer.unk not in tokenizer.encode(lines[0])


def test_time_for_many_words_without_spaces_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_training, "_SLOW_CHARACTERS", 1000)
    lines = [letters(50, seed) for seed in range(40)]
    for kind, count in (("unigram", 1), ("bpe", 0)):
        told: list[str] = []
        spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": 60})
        train_tokenizer(spec, lines, told.append)
        assert len(told) == count, kind


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram"])
def test_words_of_usual_length_are_not_touched(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": 300})
    lines = [f"the cat {letters(150)}, sat {letters(180, 2)} 你好。" * 3] * 4
    before = train_tokenizer(spec, lines).fingerprint
    monkeypatch.setattr(tokenizer_training._LongWords, "cut", lambda self, marked: marked)
    assert train_tokenizer(spec, lines).fingerprint == before


def test_unknown_characters_are_named() -> None:
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), ["abc é"])
    assert describe_unknown(tokenizer, ["abc", "ab cé"]) is None
    message = describe_unknown(tokenizer, ["a東b", "京 東 🐱"])
    assert message is not None
    assert message.startswith("4 characters unknown")
    assert message.endswith("東 京 🐱")
    signs = describe_unknown(tokenizer, ["a🐱b!"], signs=False)
    assert signs is None
    in_bytes = train_tokenizer(TokenizerSpec(kind="byte-bpe", vocabulary_size=300), ["abc"])
    assert describe_unknown(in_bytes, ["東京"]) is None
