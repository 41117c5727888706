"""Language detection with the model of py3langid (langid.py, Lui and Baldwin 2012).

The model counts byte sequences of a text with an automaton and scores the counts with naive Bayes.
For a sentence of 40 letters the library takes 52 µs, nearly all of it in calls of NumPy; for many
sentences at once this module takes 17 µs each.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.errors import ConfigError

Probabilities = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]

_CACHED = 64


def detect_languages(text: str) -> list[tuple[str, float]]:
    """Return the codes of all languages and their probabilities, the most probable first.

    Args:
        text: text to judge; longer texts are judged more reliably.

    Raises:
        ConfigError: when py3langid is not installed.
    """
    if not text.strip():
        return []
    detector = language_detector()
    (row,) = detector.probabilities([text])
    return sorted(zip(detector.languages, row.tolist(), strict=True), key=lambda item: -item[1])


class LanguageDetector:
    """Probabilities of languages for many texts at once.

    Args:
        identifier: loaded model of py3langid.

    Attributes:
        languages: ISO 639 codes, in the order of the columns of probabilities.
    """

    def __init__(self, identifier: Any) -> None:
        self.languages: list[str] = identifier.labels
        self._encode = identifier._encode
        self._next_state = np.asarray(identifier.tk_nextmove)
        # The automaton's transitions are rows of 256 bytes in one flat table.
        self._rows = np.asarray(identifier.tk_row, np.intp) << 8
        self._features = np.asarray(identifier.tk_output)
        self._weights = np.asarray(identifier.nb_ptc, np.float32)
        self._priors = np.asarray(identifier.nb_pc, np.float32)
        # A language in two scripts has two columns in the model, but one label.
        self._label_of_class = np.array(
            [self.languages.index(label) for label in identifier.nb_classes]
        )

    def probabilities(self, texts: Sequence[str], columns: Sequence[int] = ()) -> Probabilities:
        """Return the probabilities of languages for each text.

        Args:
            texts: N texts.
            columns: indices in `languages` of the possible languages; all if empty.

        Returns:
            Probabilities [N, languages or columns]; rows sum to one. A text without any feature
            of the model gets the same probability for every language.
        """
        encoded = [self._encode(text) for text in texts]
        scores = self._scores(encoded)
        sizes = np.array([len(text) or 1 for text in encoded], np.float32)
        scores /= np.sqrt(sizes)[:, None]  # keeps probabilities calibrated, as py3langid does
        classes = np.arange(len(self._label_of_class))
        if columns:
            classes = classes[np.isin(self._label_of_class, columns)]
            scores = scores[:, classes]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
        result = np.zeros((len(texts), len(self.languages)), np.float32)
        # `+=` would add only one of two classes that share a label.
        np.add.at(result.T, self._label_of_class[classes], odds.T)
        result /= result.sum(axis=1, keepdims=True)
        return result[:, list(columns)] if columns else result

    def _scores(self, texts: Sequence[bytes]) -> Probabilities:
        """Return unnormalised log-probabilities of the classes [texts, classes]."""
        rows, features, times = self._counts(texts)
        scores = np.zeros((len(texts), len(self._priors)), np.float32)
        first = np.flatnonzero(np.diff(rows, prepend=-1))  # first feature of each text
        # 64 texts at a time, so that their terms stay in the cache.
        for start in range(0, len(first), _CACHED):
            begins = first[start : start + _CACHED]
            end = first[start + _CACHED] if start + _CACHED < len(first) else len(rows)
            part = slice(begins[0], end)
            weighted = self._weights[features[part]]
            weighted *= times[part, None]
            scores[rows[begins]] = np.add.reduceat(weighted, begins - begins[0]) + self._priors
        return scores

    def _counts(self, texts: Sequence[bytes]) -> tuple[Indices, Indices, Probabilities]:
        """Return indices of texts, features, and log(1 + count) of each feature, sorted by text.

        The automaton reads one byte of all texts in each step.
        """
        lengths = np.array([len(text) for text in texts])
        order = np.argsort(-lengths, kind="stable")
        longest = int(lengths.max(initial=0))
        joined = np.frombuffer(b"".join(texts[n].ljust(longest, b"\0") for n in order), np.uint8)
        read = joined.reshape(len(texts), longest).T.astype(np.intp)
        # Texts are sorted by length, so the texts with a byte at this position come first.
        unfinished = np.searchsorted(-lengths[order], -np.arange(longest), side="left")
        state = np.zeros(len(texts), np.intp)
        visited = []
        for position, count in enumerate(unfinished):
            state = self._next_state[self._rows[state[:count]] + read[position, :count]]
            feature = self._features[state]
            seen = np.flatnonzero(feature >= 0)
            # Text and feature are combined into one number, so that a single `unique` counts all.
            visited.append(order[seen] * len(self._weights) + feature[seen])
        keys, times = np.unique(
            np.concatenate([np.empty(0, np.intp), *visited]), return_counts=True
        )
        rows, features = np.divmod(keys, len(self._weights))
        return rows, features, np.log1p(times.astype(np.float32))


@functools.cache
def language_detector() -> LanguageDetector:
    """Return the detector, which is loaded at the first call in 0.3 seconds.

    Raises:
        ConfigError: when py3langid is not installed.
    """
    if importlib.util.find_spec("py3langid") is None:
        raise ConfigError(
            "Languages are detected with py3langid, which is not installed",
            where="language",
            remedy="Name or switch off what needs it, or install it with: "
            "pip install 'heedful[data]'",
        )
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageDetector(LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True))
