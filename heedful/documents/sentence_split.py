"""Sentences of a text, by the rules of its language (the library `sentencex`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from heedful.errors import ConfigError


def sentence_spans(text: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield the range of each sentence, without space around it.

    Args:
        text: a passage.
        language: code of its language; one without rules of its own has those of English.

    Raises:
        ConfigError: when the library is not installed.
    """
    if importlib.util.find_spec("sentencex") is None:
        raise ConfigError(
            "Sentences are found by sentencex",
            where="--split sentences",
            remedy="Install it with: pip install 'heedful[documents]'; or use --split passages",
        )
    from sentencex import get_sentence_boundaries

    for boundary in get_sentence_boundaries(language, text):
        start, end = boundary["start_index"], boundary["end_index"]
        sentence = text[start:end]
        start += len(sentence) - len(sentence.lstrip())
        end -= len(sentence) - len(sentence.rstrip())
        if start < end:
            yield start, end
