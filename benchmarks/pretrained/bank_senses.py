"""Two senses of "bank": is the word's vector nearer to the mean vector of its own sense?"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import grammar_sentences
import numpy as np

from heedful import inspect
from heedful.inspect.readings import batches
from heedful.pretrained.catalogue import FOLDER

WORD = re.compile(r"\bbank\b")
SENSES = {"water": "Ufer", "money": "Bank"}
MEAN_OF = 500
"""Training sentences of each sense, whose vectors make its mean."""

Sentences = dict[str, list[str]]
"""Sentences of each sense."""


def bank_senses(name: str) -> list[dict[str, Any]]:
    """Return how often the vector of "bank" in the last layer is nearer to its own sense's mean.

    The sense is known by the German word. Means are taken over training sentences of the grammar,
    and test sentences are those of its patterns `bank` and `bank_place`. In those that begin with
    "The bank", all that decides comes after the word, which a model that reads from left to right
    cannot know. They are measured a second time with means over training sentences that begin so,
    since the word's place is the same in these; equal distances are half right.

    Args:
        name: name of a model at hand that reads English.

    Returns:
        Shares of right ones for all test sentences, for those that begin so and for the others.
    """
    made = grammar_sentences.parts()
    model = inspect.load(FOLDER / name)
    train = _by_sense(line.split("\t")[:2] for line in made["train"])
    tests = [line.split("\t") for part in ("known", "unseen") for line in made[part]]
    tested = _by_sense(test[:2] for test in tests if test[3] in ("bank", "bank_place"))
    begun = {sense: [*filter(begins, texts)] for sense, texts in tested.items()}
    others = {sense: [x for x in texts if not begins(x)] for sense, texts in tested.items()}
    means = _means(model, train)
    own_means = _means(model, {sense: [*filter(begins, texts)] for sense, texts in train.items()})
    return [
        {"which": "all", **_shares(model, tested, means)},
        {
            "which": "the sense is decided before, or before and after",
            **_shares(model, others, means),
        },
        {"which": "the sense is decided after", **_shares(model, begun, means)},
        {"which": "the same, means of such sentences", **_shares(model, begun, own_means)},
    ]


def begins(text: str) -> bool:
    """Return whether nothing before the word decides its sense."""
    return text.startswith("The bank ")


def _means(model: inspect.Subject, sentences: Sentences) -> dict[str, np.ndarray]:
    draw = random.Random(1)
    drawn = {k: draw.sample(texts, min(len(texts), MEAN_OF)) for k, texts in sentences.items()}
    return {sense: _vectors(model, texts).mean(axis=0) for sense, texts in drawn.items()}


def _shares(
    model: inspect.Subject, sentences: Sentences, means: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Return the share of right ones for each sense, and their numbers."""
    shares: dict[str, Any] = {"counts": {sense: len(texts) for sense, texts in sentences.items()}}
    for sense, texts in sentences.items():
        vectors = _vectors(model, texts)
        own = np.linalg.norm(vectors - means[sense], axis=1)
        other = np.min([np.linalg.norm(vectors - means[x], axis=1) for x in means if x != sense], 0)
        # A vector that knows nothing is the same for both senses, but for rounding.
        equal = np.isclose(own, other, rtol=1e-4, atol=1e-4)
        shares[sense] = round(float(np.where(equal, 0.5, own < other).mean()), 3)
    return shares


def _by_sense(pairs: Iterable[Sequence[str]]) -> Sentences:
    """Return the different sources with one "bank" by their sense."""
    found: dict[str, dict[str, None]] = {sense: {} for sense in SENSES}
    for source, target in pairs:
        if len(WORD.findall(source)) == 1:
            for sense, german in SENSES.items():
                if grammar_sentences.has(target, german):
                    found[sense][source] = None
    return {sense: [*texts] for sense, texts in found.items()}


def _vectors(model: inspect.Subject, texts: Sequence[str]) -> np.ndarray:
    """Return the output of the last layer at "bank", the mean of its pieces, (texts, width)."""
    targets = ["."] * len(texts) if model.model.spec.reads == "pairs" else None
    readings = inspect.read_all(model, texts, targets)
    stack = "encoder" if "encoder" in model.model.stacks() else "decoder"
    vectors: list[np.ndarray] = [np.empty(0)] * len(texts)
    for numbers in batches(readings):
        inputs = inspect.tensors(model, [readings[number] for number in numbers])
        output = inspect.capture(model.model, inputs, [f"{stack}.output"])[f"{stack}.output"]
        for row, number in zip(output, numbers, strict=True):
            vectors[number] = row[
                _pieces_of_bank(model, texts[number], readings[number], stack)
            ].mean(0)
    return np.stack(vectors)


def _pieces_of_bank(
    model: inspect.Subject, text: str, reading: inspect.ModelInput, stack: str
) -> list[int]:
    match = WORD.search(text)
    assert match is not None
    first = reading.tokens(stack).special.index(False)
    _, spans = model.source.encode_spans(text)
    return [first + i for i, (a, b) in enumerate(spans) if a < match.end() and b > match.start()]
