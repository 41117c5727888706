"""Training of tokenizers. The same text gives the same tokenizer."""

from __future__ import annotations

import itertools
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models, trainers

from heedful.config import TokenizerKind
from heedful.errors import ConfigError, DataError
from heedful.registry import find
from heedful.text.pretokenization import Marking, byte_alphabet, splitter
from heedful.text.registered_tokenizer import RegisteredTokenizer
from heedful.text.tokenizer import SPECIALS, Tokenizer, special_piece
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import KINDS, TokenizerSpec

_COVERAGE = 0.9995  # SentencePiece's default
_SCORE_DIGITS = 4
_UNLEARNED_STEP = 1e-4  # step by which the library raises the score of each character without one
_SPECIAL_PIECES = [special_piece(name) for name in SPECIALS]
# A word of more characters is cut: BPE takes quadratic time for one.
_LONG_WORD = 200
# Unigram's time grows with the text and with the candidates for pieces: 900,000 characters without
# a space took 200 s, cut or not; 100,000 with two candidates for each piece take 5 s.
_UNIGRAM_CHARACTERS, _UNIGRAM_CANDIDATES = 100_000, 2
# Shorter than a word without spaces, longer than one of a language with spaces.
_SPACELESS_WORD = 30
_SLOW_CHARACTERS = 500_000
_PUNCTUATION = re.escape(string.punctuation) + "\u2010-\u2027\u3001-\u303f\uff01-\uff20"


def train_tokenizer(
    spec: TokenizerSpec, texts: Iterable[str], notice: Callable[[str], None] | None = None
) -> Tokenizer | RegisteredTokenizer:
    """Train a tokenizer of one of the package's kinds or of a registered kind.

    The vocabulary never exceeds `spec.vocabulary_size`. If more than half of it would be single
    characters, only as many are kept as cover 99.95 % of the text; the others become unknown.

    Args:
        spec: settings of the tokenizer.
        texts: lines of text, iterated twice; an iterator is first read into memory.
        notice: receiver of a sentence if parts of very long words are left out.

    Raises:
        ConfigError: when the vocabulary size leaves no place for pieces.
        DataError: when there is no text.
    """
    if iter(texts) is texts:
        texts = list(texts)
    for kind in KINDS:
        if spec.kind == kind:
            return _train_own(spec, kind, texts, notice)
    registered: type[RegisteredTokenizer] = find("tokenizer", spec.kind, KINDS)
    return registered.train(spec, texts)


def _train_own(
    spec: TokenizerSpec,
    kind: TokenizerKind,
    texts: Iterable[str],
    notice: Callable[[str], None] | None,
) -> Tokenizer:
    marking = Marking(spec.kind, spec.lowercase, spec.normalization)
    words = _LongWords(spec, marking.space)
    counts = _count_characters(texts, marking, words)
    alphabet = _alphabet(spec, counts)
    if spec.kind == "characters":
        state = _character_state(spec, alphabet)
    else:
        # Rare characters become spaces: the trainer gives every character a piece of its own.
        rare = {ord(character): marking.space for character in counts.keys() - set(alphabet)}
        marked: Iterator[str] = map(marking.mark, texts)
        if rare and not marking.in_bytes:
            marked = (line.translate(rare) for line in marked)
        if notice is not None and (message := words.describe()):
            notice(message)
        state = _train(spec, words.cut(marked), few_candidates=words.share < 1)
    special = {name: number for number, name in enumerate(SPECIALS)}
    return Tokenizer(kind, spec.lowercase, special, state, normalization=spec.normalization)


@dataclass(frozen=True)
class _Chained:
    """Two collections of lines, concatenated; can be iterated repeatedly."""

    first: Iterable[str]
    second: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.first, self.second)


class _LongWords:
    """Words so long that training leaves parts of them out, or is slow with unigram.

    Args:
        spec: settings of the tokenizer.
        space: character that stands for a space.
    """

    def __init__(self, spec: TokenizerSpec, space: str) -> None:
        ends = rf"\s{space}" + (rf"\d{_PUNCTUATION}" if spec.words == "punctuation" else "")
        self._is_unigram = spec.kind == "unigram"
        self._shortest = _SPACELESS_WORD if self._is_unigram else _LONG_WORD
        # The lookbehind avoids an attempt at every character of a word that is too short.
        self._pattern = re.compile(rf"{space}?(?<![^{ends}])[^{ends}]{{{self._shortest + 1},}}")
        self._long = self._others = 0

    def count(self, marked: str) -> None:
        """Count the characters of the words of a line."""
        if len(marked) <= self._shortest:
            return
        for word in self._pattern.findall(marked):
            if len(word) > _LONG_WORD:
                self._long += len(word)
            else:
                self._others += len(word)

    @property
    def share(self) -> float:
        """Share of each long word that a tokenizer is trained on, in (0, 1]."""
        bounded = self._is_unigram and self._long > _UNIGRAM_CHARACTERS
        return _UNIGRAM_CHARACTERS / self._long if bounded else 1.0

    def describe(self) -> str | None:
        """Return a sentence on words that unigram leaves out or is slow on; None without any."""
        if self.share < 1:
            return (
                f"The tokenizer is trained on {self.share:.0%} of the {self._long:,} characters in "
                f"words of more than {_LONG_WORD}: unigram would take minutes for all of them. "
                "tokenizer.kind = bpe takes all"
            )
        if self._is_unigram and self._others > _SLOW_CHARACTERS:
            return (
                f"{self._others:,} characters are in words of more than {_SPACELESS_WORD}: a "
                "unigram tokenizer takes minutes for them. tokenizer.kind = bpe takes seconds"
            )
        return None

    def cut(self, lines: Iterator[str]) -> Iterator[str]:
        """Yield lines with their long words in parts."""
        for line in lines:
            done = 0
            for word in self._pattern.finditer(line) if len(line) > _LONG_WORD else ():
                if len(word[0]) <= _LONG_WORD:
                    continue
                yield line[done : word.start()]
                end = word.start() + math.ceil(len(word[0]) * self.share)
                for start in range(word.start(), end, _LONG_WORD):
                    yield line[start : min(start + _LONG_WORD, end)]
                done = word.end()
            yield line[done:]


def train_pair(
    spec: TokenizerSpec,
    sources: Iterable[str],
    targets: Iterable[str],
    notice: Callable[[str], None] | None = None,
) -> TokenizerPair:
    """Train one tokenizer on both languages, or one on each, as `spec.joint` says.

    Args:
        spec: settings of the tokenizers.
        sources: lines of the source language.
        targets: lines of the target language.
        notice: receiver of a sentence if parts of very long words are left out.

    Raises:
        ConfigError: when the vocabulary size leaves no place for pieces.
        DataError: when there is no text.
    """
    if not spec.joint:
        source, target = (train_tokenizer(spec, side, notice) for side in (sources, targets))
        return TokenizerPair(source, target)
    # A one-shot iterator would be used up by the first of the trainer's two passes.
    sources = list(sources) if iter(sources) is sources else sources
    targets = list(targets) if iter(targets) is targets else targets
    tokenizer = train_tokenizer(spec, _Chained(sources, targets), notice)
    return TokenizerPair(tokenizer, tokenizer)


def _count_characters(texts: Iterable[str], marking: Marking, words: _LongWords) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        marked = marking.mark(text)
        counts.update(marked)
        words.count(marked)
    if not counts:
        raise DataError(
            "There is no text to train a tokenizer on",
            remedy="Check that the training corpus is not empty",
        )
    return counts


def _alphabet(spec: TokenizerSpec, counts: Counter[str]) -> list[str]:
    """Return the characters that become pieces, the most frequent first."""
    available = spec.vocabulary_size - len(SPECIALS)
    if spec.kind == "unigram":
        available -= 1  # the library does not stop at the limit when characters alone fill it
    needed = 256 if spec.kind == "byte-bpe" else 1  # a piece for each byte
    if available < needed:
        smallest = needed + spec.vocabulary_size - available
        raise ConfigError(
            f"A {spec.kind} tokenizer needs at least {smallest} pieces",
            where=f"tokenizer.vocabulary_size = {spec.vocabulary_size}",
            remedy="Raise it",
        )
    # Ties by code point, so that the order of the text does not matter.
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    if spec.kind == "characters":
        return ranked[:available]
    half = spec.vocabulary_size // 2
    covered, enough = 0, _COVERAGE * counts.total()
    for position, character in enumerate(ranked[:available]):
        if position >= half and covered >= enough:
            return ranked[:position]
        covered += counts[character]
    return ranked[:available]


def _train(spec: TokenizerSpec, marked: Iterator[str], *, few_candidates: bool) -> dict[str, Any]:
    unk = special_piece("unk")
    options: dict[str, Any] = {
        "vocab_size": spec.vocabulary_size,
        "special_tokens": _SPECIAL_PIECES,
        "show_progress": False,
    }
    trainer: trainers.Trainer
    if spec.kind == "unigram":
        library = tokenizers.Tokenizer(models.Unigram())
        if few_candidates:
            options["seed_size"] = _UNIGRAM_CANDIDATES * spec.vocabulary_size
        trainer = trainers.UnigramTrainer(unk_token=unk, **options)
    elif spec.kind == "byte-bpe":
        library = tokenizers.Tokenizer(models.BPE())
        # A merge that occurs once would only store a word of the corpus.
        trainer = trainers.BpeTrainer(min_frequency=2, initial_alphabet=byte_alphabet(), **options)
    else:
        library = tokenizers.Tokenizer(models.BPE(unk_token=unk))
        trainer = trainers.BpeTrainer(min_frequency=2, **options)
    library.pre_tokenizer = splitter(spec.words, spec.kind)
    library.train_from_iterator(marked, trainer)
    return _state(library)


def _character_state(spec: TokenizerSpec, alphabet: list[str]) -> dict[str, Any]:
    vocabulary = {piece: number for number, piece in enumerate([*_SPECIAL_PIECES, *alphabet])}
    # The library's BPE without merges makes every character a token, as this kind of tokenizer
    # does.
    model = models.BPE(vocab=vocabulary, merges=[], unk_token=special_piece("unk"))
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = splitter(spec.words, spec.kind)
    return _state(library)


def _state(library: tokenizers.Tokenizer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(library.to_str())
    # As added tokens the library would cut the special pieces out of raw text; as entries of the
    # vocabulary they only hold their ids.
    state["added_tokens"] = []
    if state["model"]["type"] == "Unigram":
        _make_scores_reproducible(state["model"])
    return state


def _make_scores_reproducible(model: dict[str, Any]) -> None:
    """Make training reproducible, though the library processes words in a random order.

    The library sums in that order, so scores (log-probabilities) differ in their last digits, and
    with them the order of pieces of equal scores, which decides their ids. A character without an
    estimated score gets the lowest score, raised by one step more for each in that order.
    """
    special, learned = model["vocab"][: len(SPECIALS)], model["vocab"][len(SPECIALS) :]
    lowest = min(score for _, score in learned)
    raised = lowest + _UNLEARNED_STEP * sum(len(piece) == 1 for piece, _ in learned)
    reproducible = [
        (piece, round(lowest if len(piece) == 1 and score <= raised else score, _SCORE_DIGITS))
        for piece, score in learned
    ]
    reproducible.sort(key=lambda item: (-item[1], item[0]))
    model["vocab"] = [*special, *(list(item) for item in reproducible)]
