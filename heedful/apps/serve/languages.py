"""Language codes of requests and texts, matched with those of the models.

Codes are compared as BCP 47 and the tables of CLDR say: `zh-CN` is `zh-Hans`, `en-US` is near `en`,
and `zh-TW` is far from `zh-Hans`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection

import langcodes

from heedful.apps.language_detector import detect_languages

MOST_DISTANCE = 5
"""Maximum distance of matching codes: 5 is another region (`pt-PT` for `pt-BR`); from 8 on, codes
are other languages that CLDR offers to the same reader (German for Luxembourgish)."""

LEAST_CERTAIN = 0.2
MOST_UNLIKELY = 10
"""A text counts as unreadable for all models if another language has at least the probability
`LEAST_CERTAIN` and is `MOST_UNLIKELY` times as probable. If en and de are served, 3 % of the
English and 1 % of the German texts of Django's catalogues (mostly one to three words) are refused,
half of the texts in other languages, and nearly all sentences in other languages."""

_ALIASES = {"pb": "pt-BR", "zt": "zh-Hant"}  # LibreTranslate's own codes
# The detector confuses each of these with the other, so both count as one language.
_VARIETIES = {"yue": "zh", "wuu": "zh", "arz": "ar", "ary": "ar"}
_NO_LANGUAGE = "zxx"
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")


def primary_subtag(code: str) -> str:
    """Return the language of a code without script and region."""
    return code.replace("_", "-").partition("-")[0].lower()


def match_language(code: str, known: Collection[str]) -> str | None:
    """Return the known code that a requested code means; None if no known code is near enough.

    Args:
        code: code in any case, perhaps with script or region.
        known: codes of the models.
    """
    if code in known:
        return code
    try:
        wanted = _ALIASES.get(code.lower(), code)
        near = langcodes.closest_supported_match(wanted, [*known], max_distance=MOST_DISTANCE)
    except ValueError:  # not a code
        return None
    # Among equal distances the first model wins.
    return near


def has_letters(text: str) -> bool:
    """Return True for a text with letters, not only digits and punctuation."""
    return any(map(str.isalpha, text))


def ranked_languages(text: str, known: Collection[str]) -> list[tuple[str, float]]:
    """Return the languages that a text may be in, the most probable first; none without letters.

    Args:
        text: text in one or several scripts; the script with the most letters decides.
        known: codes of the models, which the result uses for their languages.
    """
    found: dict[str, float] = {}
    for label, probability in detect_languages(_in_main_script(text)):
        label = _VARIETIES.get(label, label)
        if label != _NO_LANGUAGE:
            code = _code_of(label, known)
            found[code] = found.get(code, 0.0) + probability
    return sorted(found.items(), key=lambda item: -item[1])


def choose_source(
    ranked: list[tuple[str, float]], able: Collection[str]
) -> tuple[str, float, bool]:
    """Choose the language from which a text is translated.

    Args:
        ranked: languages of the text, from `ranked_languages`, at least one.
        able: codes from which models translate.

    Returns:
        The language, its probability among all languages, and True if a model translates from it.
    """
    best, probability = ranked[0]
    own = next(((code, p) for code, p in ranked if code in able), None)
    if own is None or probability >= max(LEAST_CERTAIN, MOST_UNLIKELY * own[1]):
        return best, probability, best in able
    return *own, True


def _code_of(label: str, known: Collection[str]) -> str:
    """Return the models' code of a detected language, whatever its script and region."""
    alike = (code for code in known if primary_subtag(code) == label)
    return match_language(label, known) or next(alike, label)


def _in_main_script(text: str) -> str:
    """Return a text without letters outside of its most frequent script; "" without letters."""
    scripts = [_script(character) for character in text]
    sizes = Counter(script for script in scripts if script)
    if not sizes:
        return ""
    # A Han character stands for two or three letters of an alphabet.
    main = max(sizes, key=lambda script: sizes[script] * (2 if script in _EAST_ASIAN else 1))
    kept = zip(text, scripts, strict=True)
    return "".join(letter if script in ("", main) else " " for letter, script in kept)


def _script(character: str) -> str:
    """Return the script of a letter; "" for other characters, such as spaces."""
    if not character.isalpha():
        return ""
    script = unicodedata.name(character, "").partition(" ")[0]
    return _EAST_ASIAN[0] if script in _EAST_ASIAN else script
