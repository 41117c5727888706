"""Training of tokenizers. The same text gives the same tokenizer."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
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
_UNLEARNED_STEP = 1e-4  # by which the library raises the score of each character without one
_SPECIAL_PIECES = [special_piece(name) for name in SPECIALS]


def train_tokenizer(spec: TokenizerSpec, texts: Iterable[str]) -> Tokenizer | RegisteredTokenizer:
    """Train a tokenizer of one of the package's kinds or of a registered kind.

    The vocabulary never exceeds `spec.vocabulary_size`. If more than half of it would be single
    characters, only as many are kept as cover 99.95 % of the text; the others become unknown.

    Args:
        spec: settings of the tokenizer.
        texts: lines of text, iterated twice; an iterator is first read into memory.

    Raises:
        ConfigError: when the vocabulary size leaves no place for pieces.
        DataError: when there is no text.
    """
    if iter(texts) is texts:
        texts = list(texts)
    for kind in KINDS:
        if spec.kind == kind:
            return _train_own(spec, kind, texts)
    registered: type[RegisteredTokenizer] = find("tokenizer", spec.kind, KINDS)
    return registered.train(spec, texts)


def _train_own(spec: TokenizerSpec, kind: TokenizerKind, texts: Iterable[str]) -> Tokenizer:
    marking = Marking(spec.kind, spec.lowercase)
    counts = _count_characters(texts, marking)
    alphabet = _alphabet(spec, counts)
    if spec.kind == "characters":
        state = _character_state(spec, alphabet)
    else:
        # Rare characters become spaces: the trainer gives every character a piece of its own.
        rare = {ord(character): marking.space for character in counts.keys() - set(alphabet)}
        marked = _mark_lines(texts, marking, {} if marking.in_bytes else rare)
        state = _train(spec, marked)
    special = {name: number for number, name in enumerate(SPECIALS)}
    return Tokenizer(kind, spec.lowercase, special, state)


@dataclass(frozen=True)
class _Chained:
    """Two collections of lines, concatenated; can be iterated repeatedly."""

    first: Iterable[str]
    second: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.first, self.second)


def train_pair(
    spec: TokenizerSpec, sources: Iterable[str], targets: Iterable[str]
) -> TokenizerPair:
    """Train one tokenizer on both languages, or one on each, as `spec.joint` says.

    Args:
        spec: settings of the tokenizers.
        sources: lines of the source language.
        targets: lines of the target language.

    Raises:
        ConfigError: when the vocabulary size leaves no place for pieces.
        DataError: when there is no text.
    """
    if not spec.joint:
        return TokenizerPair(train_tokenizer(spec, sources), train_tokenizer(spec, targets))
    # A one-shot iterator would be used up by the first of the trainer's two passes.
    sources = list(sources) if iter(sources) is sources else sources
    targets = list(targets) if iter(targets) is targets else targets
    tokenizer = train_tokenizer(spec, _Chained(sources, targets))
    return TokenizerPair(tokenizer, tokenizer)


def _count_characters(texts: Iterable[str], marking: Marking) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(marking.mark(text))
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


def _mark_lines(
    texts: Iterable[str], marking: Marking, replacements: dict[int, str]
) -> Iterator[str]:
    for text in texts:
        marked = marking.mark(text)
        yield marked.translate(replacements) if replacements else marked


def _train(spec: TokenizerSpec, marked: Iterator[str]) -> dict[str, Any]:
    unk = special_piece("unk")
    options: dict[str, Any] = {
        "vocab_size": spec.vocabulary_size,
        "special_tokens": _SPECIAL_PIECES,
        "show_progress": False,
    }
    trainer: trainers.Trainer
    if spec.kind == "unigram":
        library = tokenizers.Tokenizer(models.Unigram())
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
    # BPE without merges: every character is a piece, and nothing else is needed for this kind.
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
