"""The language of a text, by py3langid (langid.py, Lui and Baldwin 2012).

It is loaded when first asked: its model takes 0.3 seconds.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Collection
from typing import Any

from heedful.errors import ConfigError

_LOCK = threading.Lock()


def detect_languages(text: str, among: Collection[str] = ()) -> list[tuple[str, float]]:
    """Return languages and their probabilities, the most probable first.

    Args:
        text: any; the longer, the surer.
        among: codes that it may be; any language that is known if empty.

    Raises:
        ConfigError: when py3langid is not installed.
    """
    if not text.strip():
        return []
    identifier = _identifier()
    with _LOCK:  # the identifier holds the languages that it chooses from
        identifier.set_languages(None)
        known = set(identifier.labels)
        identifier.set_languages(sorted(known & set(among)) or None)
        ranked = identifier.rank(text)
    return [(language, float(probability)) for language, probability in ranked]


@functools.cache
def _identifier() -> Any:
    if importlib.util.find_spec("py3langid") is None:
        raise ConfigError(
            "Languages are detected with py3langid, which is not installed",
            where="source = auto",
            remedy="Name the language, or install it with: pip install 'heedful[serve]'",
        )
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
