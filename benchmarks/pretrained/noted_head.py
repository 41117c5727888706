"""Find the head of a translator that looks from a pronoun at the noun for which it stands."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grammar_sentences import Test
from grammar_words import vocabulary

from heedful import inspect
from heedful.inspect.readings import pair_words

SENTENCE = re.compile(r"The (\w+) .* the (\w+) because it was (?:too |very )?(\w+)\.")
PATTERNS = ("reason_way", "reason_seat")
SENTENCES = 100
"""Sentences on which heads are compared, and as many on which the best one is measured."""


def noted_head(place: Path, tests: Sequence[Test]) -> dict[str, Any]:
    """Return the field `noted_head` of a card: the head that finds the noun most often.

    In the encoder the word is "it", in cross-attention the pronoun that is written. A head is right
    where it gives the noun that is meant more weight than the other noun of the sentence. Its
    figure is the lower of two shares: of sentences in which the animal is meant, and of those in
    which the other noun is, so that a head that always looks at the first noun gets nothing.

    Args:
        place: directory of the translator.
        tests: sentences of the grammar.
    """
    animals = vocabulary(random.Random(0)).table["adjectives"]["animal"]
    fitting = [test for test in tests if test[3] in PATTERNS]
    random.Random(1).shuffle(fitting)
    model = inspect.load(place)
    found: list[tuple[bool, dict[str, np.ndarray]]] = []
    for source, target, *_ in fitting:
        parsed = SENTENCE.fullmatch(source)
        if parsed is None:
            continue
        first, second, adjective = parsed.groups()
        right = _right(model, (source, target), (first, second), animal=adjective in animals)
        if right is not None:
            found.append((adjective in animals, right))
    half = len(found) // 2
    chosen, measured = found[:half][:SENTENCES], found[half:][:SENTENCES]
    shares = {part: _shares(chosen, part).min(axis=0) for part in ("encoder", "cross")}
    part = max(shares, key=lambda each: float(shares[each].max()))
    layer, head = np.unravel_index(shares[part].argmax(), shares[part].shape)
    animal, other = _shares(measured, part)[:, layer, head]
    print(f"heads: best of each part {[(k, round(float(v.max()), 2)) for k, v in shares.items()]}")
    word = "it" if part == "encoder" else "sie"
    begins = "From “it”" if part == "encoder" else "Where the pronoun is written,"
    return {
        "part": part,
        "layer": int(layer) + 1,
        "head": int(head) + 1,
        "word": word,
        "about": f"{begins} it looks more at the noun that is meant than at the other one in "
        f"{animal:.0%} of sentences about the animal and in {other:.0%} of those about the street "
        f"or the seat ({len(measured)} sentences of the grammar that were not trained on; the head "
        "was chosen on others).",
    }


def example_head(place: Path, sentences: Sequence[str]) -> dict[str, Any]:
    """Return the head of the encoder in which "it" looks most at the cat, for `example_heads`.

    Args:
        place: directory of the translator.
        sentences: that about the cat, and others with "it", for which its strongest word is told.
    """
    model = inspect.load(place)
    looks = [_from_it(model, sentence) for sentence in sentences]
    words, weights = looks[0]
    cat = weights[:, :, words.index("cat")]
    layer, head = np.unravel_index(cat.argmax(), cat.shape)
    # Both sentences about the animal may have the same answer, which is said once.
    strongest = dict.fromkeys(words[int(seen[layer, head].argmax())] for words, seen in looks[1:])
    return {
        "part": "encoder",
        "layer": int(layer) + 1,
        "head": int(head) + 1,
        "word": "it",
        "about": f"In the example about the cat, “it” gives {cat.max():.0%} of its attention to "
        "“cat”, more than in any other head of the encoder. In the other examples with “it” it "
        f"gives most to {', '.join(f'“{word}”' for word in strongest)}: telling them apart is left "
        "to the decoder.",
    }


def _from_it(model: Any, sentence: str) -> tuple[list[str], np.ndarray]:
    """Return the words of a sentence, and what "it" gives to each: (layers, heads, words)."""
    seen = inspect.read(model, sentence, "")
    (words, word_of), _ = pair_words(model, seen)
    columns = [np.flatnonzero(np.array(word_of) == number) for number in range(len(words))]
    row = word_of.index(words.index("it"))
    weights = between_words(inspect.attention(model, seen, "encoder").weights, [[row]], columns)
    return words, weights[:, :, 0]


def _right(
    model: Any, pair: tuple[str, str], nouns: tuple[str, str], *, animal: bool
) -> dict[str, np.ndarray] | None:
    """Return for each part which heads are right, (layers, heads); None if a word is missing."""
    seen = inspect.read(model, *pair)
    (source, source_of), (target, target_of) = pair_words(model, seen)
    if not {"it", *nouns} <= {*source} or "weil" not in target:
        return None
    rows = {
        "encoder": source_of.index(source.index("it")),
        "cross": target_of.index(target.index("weil") + 1),
    }
    columns = [np.flatnonzero(np.array(source_of) == source.index(noun)) for noun in nouns]
    right = {}
    for part, row in rows.items():
        weights = between_words(inspect.attention(model, seen, part).weights, [[row]], columns)
        one, two = weights[:, :, 0, 0], weights[:, :, 0, 1]
        right[part] = one > two if animal else two > one
    return right


def between_words(
    weights: np.ndarray, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]
) -> np.ndarray:
    """Return attention between words: the mean over pieces that look, the sum over those looked at.

    Args:
        weights: (layers, heads, pieces, pieces) weights of all pieces.
        rows: pieces of each word that looks.
        columns: pieces of each word that is looked at.

    Returns:
        (layers, heads, words, words) weights.
    """
    looking = np.zeros((len(rows), weights.shape[2]), weights.dtype)
    for word, pieces in enumerate(rows):
        looking[word, list(pieces)] = 1 / len(pieces)
    looked_at = np.zeros((weights.shape[3], len(columns)), weights.dtype)
    for word, pieces in enumerate(columns):
        looked_at[list(pieces), word] = 1
    between: np.ndarray = looking @ weights @ looked_at
    return between


def _shares(found: list[tuple[bool, dict[str, np.ndarray]]], part: str) -> np.ndarray:
    """Return the shares of right ones, (2, layers, heads): the animal is meant, or the other."""
    return np.stack(
        [
            np.mean([right[part] for animal, right in found if animal is wanted], axis=0)
            for wanted in (True, False)
        ]
    )
