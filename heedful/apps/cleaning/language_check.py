"""A check of the languages of pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from heedful.apps.cleaning.text_keys import without_code
from heedful.apps.language_detector import (
    known_languages,
    language_probability,
    most_probable_language,
)
from heedful.errors import ConfigError, suggest
from heedful.text.pretokenization import LETTER

FEWEST_LETTERS = 15
"""Minimum number of letters of a judged text: with 10 to 20 letters 2 to 4 % are misjudged."""

_LONGEST = 256  # maximum number of characters that the detector reads
_GUESSED = 2000  # number of pairs that decide the languages of a corpus


class LanguageCheck:
    """A check that both sides of a pair are in their languages.

    Args:
        languages: codes of the source's and the target's language.
        least: probability of a side's language below which the rule finds the pair.

    Raises:
        ConfigError: when a language is unknown, or py3langid is not installed.
    """

    def __init__(self, languages: Sequence[str], least: float) -> None:
        known = known_languages()
        self.languages = tuple(languages)
        # The ratio of logarithms is 0 at probability 1, and 1 at the least probability.
        self._least = math.log(least)
        if len(languages) != 2:
            raise ConfigError(
                f"There are {len(languages)} languages instead of two",
                where="--languages",
                remedy="Give the codes of source and target, such as: --languages en de",
            )
        for code in languages:
            if code not in known:
                raise ConfigError(
                    f"The language {code!r} is unknown",
                    where="--languages",
                    remedy=suggest(code, known),
                )

    def doubts(self, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float64]:
        """Return the doubt of each pair: 1 at the least probability, more below it.

        Args:
            pairs: N pairs of source and target.

        Returns:
            Doubts [N], each that of the more doubtful side; sides that are too short have a doubt
            of 0.
        """
        result = np.zeros(len(pairs))
        for side, language in enumerate(self.languages):
            rows, texts = _judged(pair[side] for pair in pairs)
            if rows:
                found = [language_probability(text, language) for text in texts]
                doubts = np.log(np.maximum(found, 1e-30)) / self._least  # avoids log(0)
                result[rows] = np.maximum(result[rows], doubts)
        return result

    def detail(self, source: str, target: str) -> str:
        """Name the detected languages of a pair if they differ from the expected languages."""
        found = []
        for text, side, language in zip(
            (source, target), ("source", "target"), self.languages, strict=True
        ):
            for judged in _judged([text])[1]:
                best, probability = most_probable_language(judged)
                if best != language:
                    found.append(f"{side}: {best} {probability:.0%}")
        return ", ".join(found)


def guess_languages(pairs: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the languages of at least half of the pairs; None if there are no such languages.

    Args:
        pairs: pairs of source and target, of which the first 2,000 are read.
    """
    sample = [pair for pair, _ in zip(pairs, range(_GUESSED), strict=False)]
    found = []
    for side in (0, 1):
        _, texts = _judged(pair[side] for pair in sample)
        if not texts:
            return None
        votes = Counter(most_probable_language(text)[0] for text in texts)
        ((best, count),) = votes.most_common(1)
        # A mixed corpus has no single language: the rule would remove half of it.
        if count * 2 < len(texts):
            return None
        found.append(best)
    return found[0], found[1]


def _judged(texts: Iterable[str]) -> tuple[list[int], list[str]]:
    """Return the indices and shortened contents of texts that are long enough without code."""
    rows, kept = [], []
    for row, text in enumerate(texts):
        words = without_code(text[:_LONGEST])
        if len(words) >= FEWEST_LETTERS and len(LETTER.findall(words)) >= FEWEST_LETTERS:
            rows.append(row)
            kept.append(words)
    return rows, kept
