"""Number words and names of months in a language, from num2words and CLDR."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterable, Mapping
from typing import Any

from heedful.errors import ConfigError

LARGEST = 10**12
"""Largest number that is searched in words; larger numbers are not written out."""

# French number words that are written with or without an s.
_SINGULAR = {"cents": "cent", "vingts": "vingt"}
# Varieties with other words for the same numbers: Belgian and Swiss French.
_DIALECTS = {"fr": ("fr_BE", "fr_CH")}
# Continuations that make the word part of another number.
_GOES_ON = re.compile(r"[- ]?(?:und|zig|ßig|zehn|hundert|tausend|teen|ty|hundred|thousand|cent)")
_OTHER_MEANINGS = {
    "de": ("achte", "achten", "achter", "achtes"),  # "achten" also means to respect
    "en": ("million",),
    "fr": ("neuf", "million"),  # "neuf" also means new
}
_ORDINAL_ENDINGS = {"de": ("n", "r", "s", "m"), "fr": ("s",), "es": ("s",)}
# Number words that num2words does not know: groups, periods, fractions.
_COLLECTIVES: dict[str, dict[int, str]] = {
    "en": {
        0: "no|none|nil|zero|empty|nothing",
        2: "both(?![^,.;:!?]*\\band\\b)|couple|pairs?|twins?|twice|double|second|fortnights?",
        3: "triples?|triplets?|thrice|trio",
        4: "quadruples?|quadruplets?|quarters?",
        5: "quintuples?|quintuplets?",
        6: "sextuples?",
        10: "decades?|tens",
        12: "dozens?|noon|midnight",
        14: "fortnights?",
        15: "quarters?",
        25: "quarters?",
        30: "half",
        45: "quarters",
        50: "half|halves",
        75: "three[- ]quarters",
        100: "century|centuries|centenar\\w*|centennials?",
        200: "bicenten\\w*",
    },
    "de": {
        0: "kein\\w*|null|nichts|leer\\w*",
        2: "beid\\w*|zwo|tabellenzweit\\w*|paar\\w*|zwilling\\w*|doppel\\w*|zweit\\w*",
        3: "tripel|tabellendritt\\w*|drilling\\w*|trio",
        4: "viertel\\w*|tabellenviert\\w*|quadrupel",
        8: "viertelfinal\\w*",
        10: "jahrzehnt\\w*|dekade\\w*",
        12: "dutzend\\w*|mittags?|mitternachts?",
        15: "viertel\\w*",
        16: "achtelfinal\\w*",
        25: "viertel\\w*",
        30: "halb|halben? stunden?",
        45: "dreiviertel\\w*",
        50: "halb\\w*|hälfte\\w*",
        75: "drei ?viertel\\w*",
        100: "jahrhundert\\w*",
    },
    "fr": {
        0: "aucune?|zéro|nulle?|vides?|rien",
        2: "couples?|paires?|jum\\w+|doubles?|seconde?s?",
        3: "triplets?|triples?|tiers|trio",
        4: "quadruplets?|quadruples?|quarts?",
        5: "quintuplets?",
        6: "sextuplets?|demi-douzaine",
        7: "septuplets?",
        10: "dizaines?|décennies?",
        12: "douzaines?|midi|minuit",
        15: "quinzaines?|quarts?",
        20: "vingtaines?",
        30: "trentaines?|demie?",
        40: "quarantaines?",
        45: "quarts",
        50: "cinquantaines?",
        60: "soixantaines?",
        100: "centaines?|siècles?",
        1000: "milliers?",
    },
}
# Words whose translation may contain "two".
_TWO = {
    "en": r"both|either|neither|each|others?|another|between|or|half|halves|bi\w+|us",
    "de": r"beid\w*|ander\w*|\w*einander|zwischen|jed\w*|oder|halb\w*|hälft\w*|zwie\w*",
    "fr": r"autres?|entre|chaque|chacune?|ou|moitié|demie?s?|bi\w+",
}
# Beginnings of words for the base of a number: "in base 10".
_BASES = {2: "bin[aä]r", 8: "o[ck]tal", 10: "d[eé][cz]imal", 16: "hexad[eé][cz]imal"}
# Idioms, whose number at the beginning or end is not meant as a number.
_IDIOMS = {
    "en": r"cloud nine|eleventh hour|five o['’]clock shadow|six feet under|third part(?:y|ies)"
    r"|in two(?! \w+s\b)|two of (?:a kind|us)",
    "de": (
        r"vier augen|siebt\w+ himmel|wolke sieben|fünf fingern?|tausend stücke"
        r"|\b(?:gi?[ea]?b|hab)\w*\b[^.!?]*\bacht(?=\s*(?:[,.;:!?]|$|auf\b|dass\b))"
        r"|acht (?:zu )?(?:geben|nehmen|lassen|ge(?:geben|nommen|lassen|habt))|(?:in|außer) acht\b"
    ),
    "fr": (
        r"quatre à quatre|quatre pattes|quatre vérités|un de ces quatre"
        r"|(?:coup|mett|mis)\w*\b[^.!?]*\ben quatre|(?:mon|ton|son|leur) trente[- ]et[- ]un"
        r"|trois fois rien|(?:un|le) mille\b|deux[ -]points|deux pas|deux bouts|moins de deux"
        r"|(?:tous|toutes|les|nous|vous) deux\b(?! (?:heures|jours|semaines|mois|ans)\b)"
    ),
}
_HALF_OF = {"en": "half an?", "de": r"halbe\w?", "fr": "demi[- ]"}
# Parts of an hour, as minutes.
_OF_AN_HOUR = {
    "en": {
        15: r"(?<!three )(?<!three-)quarter of an hour|quarter-hour",
        30: r"half an hour|(?<!and a )half[- ]hour",
        45: r"three[- ]quarters of an hour",
    },
    "de": {15: r"viertelstunden?", 30: r"halbe[nr]? stunde|halbstunde", 45: r"dreiviertelstunden?"},
    "fr": {
        15: r"(?<!trois )(?<!sale )(?<!mauvais )quarts? d['’]heure",
        30: r"demie?[- ]heure",
        45: r"trois quarts d['’]heure",
    },
}
_CLOCK = {
    "en": "half|quarters?",
    "de": r"halb\w*|anderthalb\w*|\w*viertel\w*",
    "fr": "heures? moins|(?:et|le|un) quart|et demie?",
    "es": "media|cuarto",
    "it": "mezza|quarto",
    "nl": "half|kwart",
}


def normalise(text: str) -> str:
    """Return a text for the search of words: in lower case, with single spaces, without hyphens."""
    words = normalise_words(re.findall(r"[^\W_]+", text))
    return f" {' '.join(word for word in words if word not in ('and', 'et'))} "


def normalise_words(words: Iterable[str]) -> list[str]:
    """Return words in lower case, and French numbers without the s of the plural."""
    return [_SINGULAR.get(word, word) for word in map(str.casefold, words)]


@functools.lru_cache(maxsize=4096)
def spellings(value: int, language: str) -> tuple[str, ...]:
    """Return the normalised words of a number: cardinal, ordinal and year."""
    if value > LARGEST:
        return ()
    kinds = ["cardinal", "ordinal"] + (["year"] if 1000 < value < 2100 else [])
    spoken = (language, *(_DIALECTS.get(language[:2], ()) if value % 100 >= 70 else ()))
    words = [normalise(_spell(value, each, kind)).strip() for each in spoken for kind in kinds]
    # "a hundred" and "hundert" in addition to "one hundred" and "einhundert".
    words += [
        re.sub(r"^(?:one |eine? ?|un )(?=.*(?:hund|th?[oa]us|[mbr]illi))", "", word)
        for word in words
    ]
    if language.startswith("fr") and 1100 < value < 2000:
        hundreds, rest = (_spell(part, language, "cardinal") for part in divmod(value, 100))
        words.append(normalise(f"{hundreds} cent {rest if value % 100 else ''}").strip())
    # Variants such as "zweitausendundzwölf" and "zwei Million".
    words += [re.sub(r"(hundert|tausend)(?=[a-zäöü])", r"\1und", word) for word in words]
    words += [word.removesuffix("en") for word in words if word.endswith("millionen")]
    # Not for English, where "thread" would match the stem of "three".
    has_endings = not language.startswith("en")
    stems = [w[:-1] for w in words if has_endings and w.endswith("e") and len(w) > 4]
    stems += [f"{word[:-1]}ies" for word in words if word.endswith("y")]  # the thirties
    return tuple(dict.fromkeys(filter(None, [*words, *stems])))


def count_number_words(value: int, language: str, normalised: str) -> int:
    """Return how often a text has a number in words.

    Args:
        value: number to search.
        language: code of the text's language.
        normalised: text, normalised by `normalise`.
    """
    places = set()
    for word in spellings(value, language):
        place = normalised.find(f" {word}")
        while place >= 0:
            rest = normalised[place + 1 + len(word) :]
            # Endings and compounds ("dreißigste", "sechzehnjährig") count, larger numbers do not.
            if rest.startswith(" ") or (len(word) > 3 and not _GOES_ON.match(rest)):
                places.add(place)
            place = normalised.find(f" {word}", place + 1)
    return len(places)


def other_meanings(language: str) -> tuple[str, ...]:
    """Return number words that have another common meaning."""
    return _OTHER_MEANINGS.get(language[:2], ())


def ordinal_endings(language: str) -> tuple[str, ...]:
    """Return endings of inflected ordinals: "dritten", "troisièmes"."""
    return _ORDINAL_ENDINGS.get(language[:2], ())


@functools.cache
def ordinals(language: str) -> frozenset[str]:
    """Return the first hundred ordinals, normalised, and their stems."""
    words = {normalise(_spell(value, language, "ordinal")).strip() for value in range(2, 101)}
    return frozenset(words | {word.removesuffix("e") for word in words})


@functools.cache
def months(language: str) -> dict[str, int]:
    """Return the normalised names of months in a language, from CLDR."""
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
    """Return stems of the words for thousand, million and billion, with their numbers of zeros."""
    found = {"lakh": 5, "crore": 7} if language.startswith("en") else {}
    for zeros in (3, 6, 9):
        words = normalise(_spell(10**zeros, language, "cardinal")).split()
        if words:
            found[words[-1].removeprefix("ein")[:7]] = zeros
    return found


@functools.cache
def scale_word(language: str) -> re.Pattern[str]:
    """Return a pattern of the words for thousand, million and billion, after a number."""
    return re.compile(rf"[ \u00a0]?(?:{'|'.join(scales(language)) or '(?!)'})\w*", re.IGNORECASE)


def _pattern(words: str | None, end: str = r"\b") -> re.Pattern[str]:
    """Return a pattern of words, which matches nothing for a language without such words."""
    return re.compile(rf"\b(?:{words}){end}" if words else r"(?!)", re.IGNORECASE)


@functools.cache
def collective(value: int, language: str) -> re.Pattern[str]:
    """Return a pattern of words that imply a number: "a dozen"."""
    return _pattern(_COLLECTIVES.get(language[:2], {}).get(value))


def base_word(value: int) -> str | None:
    """Return a pattern of the words for numbers of a base, such as "octal"."""
    return _BASES.get(value)


@functools.cache
def words_for_two(language: str) -> re.Pattern[str]:
    """Return a pattern of words that may mean two: "either", "every other"."""
    return _pattern(_TWO.get(language[:2]))


@functools.cache
def idioms(language: str) -> re.Pattern[str]:
    """Return a pattern of idioms that begin or end with a number."""
    return _pattern(_IDIOMS.get(language[:2]), end="")


@functools.cache
def parts_of_an_hour(language: str) -> Mapping[int, re.Pattern[str]]:
    """Return patterns of phrases such as "half an hour", by their minutes."""
    return {n: _pattern(words) for n, words in _OF_AN_HOUR.get(language[:2], {}).items()}


@functools.cache
def rough_amounts(language: str) -> Mapping[int, re.Pattern[str]]:
    """Return patterns of phrases such as "tens of millions" and "half a million", by value."""
    words = _COLLECTIVES.get(language[:2], {})
    counts = {n: words[n] for n in (10, 12, 100, 1000) if n in words}
    half = _HALF_OF.get(language[:2], "(?!)")
    patterns: dict[int, re.Pattern[str]] = {}
    for stem, zeros in scales(language).items():
        patterns[10**zeros // 2] = _pattern(rf"{half} ?{stem}\w*")
        for count, word in counts.items():
            patterns[count * 10**zeros] = _pattern(rf"(?:{word}) (?:of |de )?{stem}\w*")
    return patterns


@functools.cache
def clock_words(language: str) -> re.Pattern[str]:
    """Return a pattern of words for minutes: "a quarter past"."""
    return _pattern(_CLOCK.get(language[:2]))


@functools.lru_cache(maxsize=4096)
def _spell(value: int, language: str, kind: str) -> str:
    try:
        return str(_library().num2words(value, lang=language, to=kind))
    # num2words raises all of these for unsupported languages, kinds and numbers.
    except (NotImplementedError, ValueError, TypeError, IndexError, KeyError, OverflowError):
        return ""


def knows_number_words() -> bool:
    """Return True if the package that spells numbers is installed."""
    return importlib.util.find_spec("num2words") is not None


@functools.cache
def _library() -> Any:
    if not knows_number_words():
        raise ConfigError(
            "Number words need the package num2words",
            where="the check of numbers",
            remedy="Install it with: pip install 'heedful[check]'",
        )
    import num2words

    return num2words
