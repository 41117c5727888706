"""Translators that need no model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from random import Random

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.formats import open_document, translate_document
from heedful.apps.documents.line_up import TranslatedSentence
from heedful.search.alignment import Alignment


class Echo:
    """Returns its input."""

    def translate(self, texts: Sequence[str], *, alignment: bool) -> list[TranslatedSentence]:
        return [TranslatedSentence(text) for text in texts]


class Shouting:
    """Returns its input in capitals."""

    def translate(self, texts: Sequence[str], *, alignment: bool) -> list[TranslatedSentence]:
        return [TranslatedSentence(shout(text)) for text in texts]


class Dictionary:
    """Translates whole sentences that it knows, with links between their words.

    Args:
        known: of each sentence its translation and the numbers of the source words that each word
            of the translation comes from.
    """

    def __init__(self, known: dict[str, tuple[str, Sequence[int | None]]]) -> None:
        self.known = known

    def translate(self, texts: Sequence[str], *, alignment: bool) -> list[TranslatedSentence]:
        return [self._one(text, alignment) for text in texts]

    def _one(self, text: str, alignment: bool) -> TranslatedSentence:
        translation, links = self.known[text]
        if not alignment:
            return TranslatedSentence(translation)
        source, target = text.split(), translation.split()
        assert len(links) == len(target)
        matrix = tuple(tuple(0.9 * (n == link) for n in range(len(source))) for link in links)
        return TranslatedSentence(translation, Alignment(tuple(source), tuple(target), matrix))


def shout(text: str) -> str:
    """Capitals, letter by letter, so that no text gets longer."""
    return "".join(c.upper() if len(c.upper()) == 1 else c for c in text)


def echoed(data: bytes, format: str, **settings: object) -> bytes:
    return translate_document(
        data, Echo(), format=format, settings=DocumentSettings.parse(settings)
    )


def shouted(data: bytes | str, format: str, **settings: object) -> str:
    raw = data.encode() if isinstance(data, str) else data
    found = translate_document(
        raw, Shouting(), format=format, settings=DocumentSettings.parse(settings)
    )
    return found.decode()


def sentences(data: str, format: str, **settings: object) -> list[str]:
    """What a translator gets."""
    parsed = DocumentSettings.parse(settings)
    document = open_document(data.encode(), format=format, settings=parsed)
    return [sentence.text for sentence in document.sentences]


class Reordering:
    """Exchanges capitals and small letters, and puts the words in another order, with links.

    Args:
        seed: number that the order of words depends on; the last word comes first if it is unset.
        is_aligned: False to withhold the links.
    """

    def __init__(self, seed: int | None = None, *, is_aligned: bool = True) -> None:
        self.seed = seed
        self.is_aligned = is_aligned

    def translate(self, texts: Sequence[str], *, alignment: bool) -> list[TranslatedSentence]:
        return [self._one(text, alignment and self.is_aligned) for text in texts]

    def _one(self, text: str, alignment: bool) -> TranslatedSentence:
        words = text.split()
        order = [*reversed(range(len(words)))]
        if self.seed is not None:
            random.Random(f"{self.seed} {text}").shuffle(order)
        target = tuple(words[number].swapcase() for number in order)
        if not alignment:
            return TranslatedSentence(" ".join(target))
        matrix = tuple(tuple(0.9 * (n == link) for n in range(len(words))) for link in order)
        return TranslatedSentence(" ".join(target), Alignment(tuple(words), target, matrix))


class Shuffling:
    """Puts words in another order, with links between them.

    Args:
        random: source of the order.
        change: function that changes each word.
    """

    def __init__(self, random: Random, change: Callable[[str], str]) -> None:
        self.random = random
        self.change = change

    def translate(self, texts: Sequence[str], *, alignment: bool) -> list[TranslatedSentence]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> TranslatedSentence:
        words = text.split()
        order = self.random.sample(range(len(words)), len(words))
        target = tuple(self.change(words[number]) for number in order)
        matrix = tuple(tuple(0.9 * (n == link) for n in range(len(words))) for link in order)
        return TranslatedSentence(" ".join(target), Alignment(tuple(words), target, matrix))
