"""Words for numbers and months in a language, by num2words and CLDR."""

from __future__ import annotations

import functools
import importlib.util
import re
from typing import Any

from heedful.errors import ConfigError

LARGEST = 10_000_000
"""Numbers up to here are looked for as words; nobody writes out longer ones."""

COMMON = (*range(3, 21), *range(30, 100, 10))
"""Numbers whose words are numbers for certain. "One" is an article, "two" may be "both"."""

# What turns the word of a number into that of another one, at its end.
_GOES_ON = re.compile(r"[- ]?(?:und|zig|ßig|zehn|hundert|tausend|teen|ty|hundred|thousand|cent)")
_OTHER_MEANINGS = {"de": ("acht",), "fr": ("neuf",)}  # attention, new
_CLOCK = {
    "en": "half|quarters?|noon|midnight",
    "de": r"halb\w*|anderthalb\w*|\w*viertel\w*|mittags?|mitternachts?",
    "fr": "demie?|quart|midi|minuit|moins",
    "es": "media|cuarto|mediodía|medianoche",
    "it": "mezza|quarto|mezzogiorno|mezzanotte",
    "nl": "half|kwart|middag|middernacht",
}


def normalise(text: str) -> str:
    """Return a text as words are looked for in it: small letters, single spaces, no hyphens."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return f" {' '.join(word for word in words if word not in ('and', 'et'))} "


def is_supported(language: str) -> bool:
    """Return True if words of its numbers are known.

    Raises:
        ConfigError: when num2words is not installed.
    """
    return _library() is not None and bool(_spell(2, language, "cardinal"))


@functools.lru_cache(maxsize=4096)
def spellings(value: int, language: str) -> tuple[str, ...]:
    """Return the words of a number, normalised: as a count, in order, and as a year."""
    if value > LARGEST:
        return ()
    kinds = ["cardinal", "ordinal"] + (["year"] if 1000 < value < 2100 else [])
    words = [normalise(_spell(value, language, kind)).strip() for kind in kinds]
    # "a hundred", "hundert" beside "one hundred", "einhundert".
    words += [re.sub(r"^(?:one |ein)(?=.*(?:hund|th?[oa]us))", "", word) for word in words]
    if language.startswith("fr") and 1100 < value < 2000:
        hundreds, rest = (_spell(part, language, "cardinal") for part in divmod(value, 100))
        words.append(normalise(f"{hundreds} cent {rest if value % 100 else ''}").strip())
    stems = [word[:-1] for word in words if word.endswith("e") and len(word) > 4]
    stems += [f"{word[:-1]}ies" for word in words if word.endswith("y")]  # the thirties
    return tuple(dict.fromkeys(filter(None, [*words, *stems])))


def has_number_word(value: int, language: str, normalised: str) -> bool:
    """Return True if a text says a number in words.

    Args:
        value: the number.
        language: of the text, a code.
        normalised: the text, by `normalise`.
    """
    for word in spellings(value, language):
        place = normalised.find(f" {word}")
        while place >= 0:
            rest = normalised[place + 1 + len(word) :]
            # Endings and compounds ("dreißigste", "sechzehnjährig"), but no larger number.
            if rest.startswith(" ") or (len(word) > 3 and not _GOES_ON.match(rest)):
                return True
            place = normalised.find(f" {word}", place + 1)
    return False


@functools.cache
def common_words(language: str) -> dict[str, int]:
    """Return the words of common numbers, each one word, and what they stand for."""
    spelled = {normalise(_spell(value, language, "cardinal")).strip(): value for value in COMMON}
    other = _OTHER_MEANINGS.get(language, ())
    return {w: value for w, value in spelled.items() if w and " " not in w and w not in other}


@functools.cache
def parts_of_numbers(language: str) -> frozenset[str]:
    """Return words that longer numbers are made of, normalised."""
    spelled = [_spell(value, language, "cardinal") for value in (*range(1, 101), 200, 2000, 10**6)]
    return frozenset(word for each in spelled for word in normalise(each).split()) | {"million"}


@functools.cache
def months(language: str) -> dict[str, int]:
    """Return the names of the months in a language, by CLDR, normalised."""
    from babel import UnknownLocaleError
    from babel.dates import get_month_names

    names: dict[str, int] = {}
    for width in ("wide", "abbreviated"):
        for context in ("format", "stand-alone"):
            try:
                found = get_month_names(width, context, locale=language)
            except (UnknownLocaleError, ValueError):
                return {}
            names |= {normalise(name).strip(): number for number, name in found.items()}
    return names


@functools.cache
def scales(language: str) -> dict[str, int]:
    """Return beginnings of the words for a thousand, a million and a billion, and their zeros."""
    found = {}
    for zeros in (3, 6, 9):
        words = normalise(_spell(10**zeros, language, "cardinal")).split()
        if words:
            found[words[-1].removeprefix("ein")[:7]] = zeros
    return found


@functools.cache
def clock_words(language: str) -> re.Pattern[str] | None:
    """Return a pattern of words by which times are told without their numbers."""
    words = _CLOCK.get(language)
    return re.compile(rf"\b(?:{words})\b", re.IGNORECASE) if words else None


@functools.lru_cache(maxsize=4096)
def _spell(value: int, language: str, kind: str) -> str:
    try:
        return str(_library().num2words(value, lang=language, to=kind))
    # It raises all of these for languages, kinds and numbers that it does not have.
    except (NotImplementedError, ValueError, TypeError, IndexError, KeyError, OverflowError):
        return ""


@functools.cache
def _library() -> Any:
    if importlib.util.find_spec("num2words") is None:
        raise ConfigError(
            "Words of numbers are known by num2words, which is not installed",
            where="the check of numbers",
            remedy="Install it with: pip install 'heedful[check]'",
        )
    import num2words

    return num2words
