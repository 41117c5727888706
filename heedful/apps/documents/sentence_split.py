"""Sentences of a text, by the rules of its language (the library `sentencex`)."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from heedful.errors import ConfigError

_SPACE = re.compile(r"[^\S\x00-\x7f]")


def sentence_spans(text: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield the range of each sentence, without space around it.

    Args:
        text: text of a passage.
        language: code of its language; English rules serve for a language without rules.

    Raises:
        ConfigError: when the library is not installed.
    """
    if importlib.util.find_spec("sentencex") is None:
        raise ConfigError(
            "Splitting into sentences needs the package sentencex",
            where="--split sentences",
            remedy="Install it with: pip install 'heedful[documents]'; or use --split passages",
        )
    from sentencex import get_sentence_boundaries

    # sentencex 1.0.32 panics in Rust where punctuation follows a space of several bytes.
    for boundary in get_sentence_boundaries(language, _SPACE.sub(" ", text)):
        start, end = boundary["start_index"], boundary["end_index"]
        sentence = text[start:end]
        start += len(sentence) - len(sentence.lstrip())
        end -= len(sentence) - len(sentence.rstrip())
        if start < end:
            yield start, end
