"""Numbers in words: "twenty-five", "zweitausendfünfhundert", "null Komma drei".

num2words spells every number of a language once; the text is then searched for these spellings, the
longest first.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heedful.apps.quality.number_forms import HOURS, Number, Reading
from heedful.apps.quality.number_words import (
    LARGEST,
    idioms,
    months,
    normalise_words,
    ordinal_endings,
    ordinals,
    other_meanings,
    parts_of_an_hour,
    rough_amounts,
    scale_word,
    spellings,
)

_MOST_WORDS = 5
"""Number of words of the longest spelling that is searched: "quatre-vingt-dix-neuf mille"."""

_POINT = frozenset(("point", "komma", "virgule", "comma", "coma", "virgola"))
_AND = frozenset(("and", "und", "et", "y", "e"))
_AND_A_HALF = re.compile(r"[\s-]+(?:and a half|et demie?|y medi[oa]|e mezz[oa])\b", re.IGNORECASE)
_HALF_IN_ONE_WORD = re.compile(r"(?:anderthalb|(\w{3,7}?)einhalb)(?:e[nr]?)?(tausend)?")
_PARTS = frozenset(("a", "one", "two", "three"))
"""Words before an ordinal that make it a fraction."""

_MANY = frozenset(("times", "mal", "dank", "fois", "mercis"))
"""Words after "a hundred", "a thousand" and "a million" that make it a figure of speech."""

_FIGURES_OF_SPEECH = (100, 1000, 10**6)

_NO_HUNDRED = (["pour"], ["les"])
"""Words before "cent" or "cents" that give it another meaning than hundred."""


_COMPOUND = re.compile(
    r"(\w+?)(?:jährig|monatig|wöchig|tägig|stündig|minütig|sekündig|stellig|köpfig|fach|mal)\w{0,2}"
    r"|(\w+(?:z|ß)ig)er[ns]?"
)
"""German words that consist of a number and an ending: "zehnminütig", "siebziger"."""

_O_CLOCK = re.compile(r"\s?o['’]clock\b", re.IGNORECASE)
_STRETCH = re.compile(r"[^\W_](?:[^\W_]|[\s-])*")
_WORD = re.compile(r"[^\W_]+")
_JOINERS = "-’'"


@dataclass(frozen=True)
class SpokenNumber(Number):
    """A number in words.

    Args:
        is_certain: false for words that may not be numbers, or may be part of a word: "one",
            "second", "four-wheeler", "thirties".
    """

    is_certain: bool = True


def find_spoken_numbers(text: str, language: str) -> list[SpokenNumber]:
    """Return the numbers in words of a text, in order.

    Args:
        text: text to search.
        language: code of its language.
    """
    starts = first_letters(language)
    found: list[SpokenNumber] = []
    for stretch in _STRETCH.finditer(text):
        words = list(_WORD.finditer(text, *stretch.span()))
        folded = normalise_words(word[0] for word in words)
        place = 0
        while place < len(words):
            half = _half(words[place], folded[place], language)
            value, after = None, place
            # Most words are not the beginning of a number.
            if folded[place][:2] in starts and half is None:
                value, after = _longest(folded, place, language)
            if value is not None:
                value, after = _with_rest(folded, value, after, language)
                number, place = _number(text, words, folded, (place, after), value, language)
                found.append(number)
                continue
            found += [half] if half is not None else []
            place += 1
    found = _without_idioms(text, found, language) if found else found
    whole = _whole_phrases(text, language)
    if not whole:
        return found
    taken = [(each.start, each.end) for each in whole]
    apart = [n for n in found if not any(n.start < end and start < n.end for start, end in taken)]
    return sorted(apart + whole, key=lambda number: number.start)


def _whole_phrases(text: str, language: str) -> list[SpokenNumber]:
    """Return "half an hour" as minutes, and rough amounts, which need no counterpart."""
    groups = [(True, parts_of_an_hour(language))]
    if scale_word(language).search(text):  # a shortcut for most texts
        groups.append((False, rough_amounts(language)))
    return [
        SpokenNumber(*match.span(), match[0], frozenset({(value,)}), (), is_certain)
        for is_certain, patterns in groups
        for value, pattern in patterns.items()
        for match in pattern.finditer(text)
    ]


def _without_idioms(text: str, found: Sequence[SpokenNumber], language: str) -> list[SpokenNumber]:
    """Return the numbers, uncertain at the start or end of an idiom ("unter vier Augen")."""
    matches = list(idioms(language).finditer(text))
    starts, ends = {match.start() for match in matches}, {match.end() for match in matches}
    return [
        replace(number, is_certain=False)
        if number.start in starts or number.end in ends
        else number
        for number in found
    ]


def _number(
    text: str,
    words: Sequence[re.Match[str]],
    folded: Sequence[str],
    places: tuple[int, int],
    value: int,
    language: str,
) -> tuple[SpokenNumber, int]:
    """Return the number at a word index, with its decimals, and the index of the next word."""
    first, after = places
    start, end = words[first].start(), words[after - 1].end()
    phrase = " ".join(folded[first:after])
    decimals = ""
    if after < len(words) and folded[after] in _POINT:
        decimals, last = _decimals(folded, after + 1, language)
        if decimals:
            after, end = last, words[last - 1].end()
    readings: set[Reading] = {(value, decimals)} if decimals else {(value,)}
    is_hour = (HOURS.match(text, end) or _O_CLOCK.match(text, end)) is not None
    if value <= 24 and not decimals and is_hour:
        readings |= {((value + 12) % 24,)}  # "seven in the evening" agrees with "neunzehn Uhr"
    half = _AND_A_HALF.match(text, end)
    if half is not None and not decimals:
        readings, end = {(value, "5"), (value,)}, half.end()
    around = text[max(start - 1, 0) : start] + text[end : end + 1]
    if folded[max(first - 1, 0)] == "mid" and phrase in ordinals(language):  # mid-nineteenth
        around = around[1:]
    is_certain = (
        (value > 2 or bool(decimals) or phrase == spellings(2, language)[0])
        and half is None
        and not any(mark in around for mark in _JOINERS)
        and (phrase not in other_meanings(language) or HOURS.match(text, end) is not None)
        and not (after < len(words) and folded[after] in _MANY and value in _FIGURES_OF_SPEECH)
        and not (value == 100 and _is_no_hundred(words, folded, first))
        and not (phrase == "acht" and text[start] == "A")  # the noun "Acht" means attention
        # "eine Drei" is a school grade.
        and not (folded[first - 1 : first] == ["eine"] and text[start].isupper())
        and not (phrase in ordinals(language) and _is_fraction(folded, places, language))
    )
    number = SpokenNumber(start, end, text[start:end], frozenset(readings), (), is_certain)
    return number, after


def _is_no_hundred(words: Sequence[re.Match[str]], folded: Sequence[str], first: int) -> bool:
    """Return True for "cents" (the coins), "pour cent" and "les cent pas"."""
    return words[first][0].casefold() == "cents" or folded[first - 1 : first] in _NO_HUNDRED


def _is_fraction(folded: Sequence[str], places: tuple[int, int], language: str) -> bool:
    """Return True for "a fourth", but not for "a fourth of July"."""
    first, after = places
    if first == 0 or folded[first - 1] not in _PARTS:
        return False
    return not (
        folded[after : after + 1] == ["of"]
        and set(folded[after + 1 : after + 2]) & set(months(language))
    )


def _half(word: re.Match[str], folded: str, language: str) -> SpokenNumber | None:
    """Return the number of "anderthalb", "zweieinhalb" or "dreieinhalbtausend"."""
    match = _HALF_IN_ONE_WORD.fullmatch(folded) if "halb" in folded else None
    if match is None:
        return None
    whole = 1 if match[1] is None else phrases(language).get(match[1])
    if whole is None:
        return None
    reading: Reading = (whole * 1000 + 500,) if match[2] else (whole, "5")
    is_certain = match[2] is not None
    return SpokenNumber(*word.span(), word[0], frozenset({reading}), (), is_certain)


def _decimals(folded: Sequence[str], place: int, language: str) -> tuple[str, int]:
    """Return decimals, digit by digit or as one number, and the index after them."""
    digits = ""
    while place < len(folded):
        value = phrases(language).get(folded[place])
        if value is None:
            break
        digits += str(value)
        place += 1
    return digits.rstrip("0"), place


def _longest(
    folded: Sequence[str], place: int, language: str, limit: int = LARGEST
) -> tuple[int | None, int]:
    """Return the number with the longest spelling from an index on, and the index after it.

    Numbers of at least the limit are ignored.
    """
    known = phrases(language)
    best: tuple[int | None, int] = (None, place)
    phrase = ""
    for after in range(place, min(place + _MOST_WORDS + 1, len(folded))):
        if folded[after] in _AND and after > place:  # spellings contain no "and", see `normalise`
            continue
        phrase = f"{phrase} {folded[after]}" if phrase else folded[after]
        value = known.get(phrase)
        if value is None and " " not in phrase:
            value = _in_one_word(phrase, language)
        # "vingt et mille" are two numbers, "hundred and five" is one.
        joins = folded[after - 1] in _AND and after > place and best[0] is not None
        if value is None or value >= limit or (joins and value >= 2 * (best[0] or 0)):
            continue
        best = value, after + 1
    return best


def _with_rest(folded: Sequence[str], value: int, after: int, language: str) -> tuple[int, int]:
    """Return "two thousand", "five hundred" and "three" as one number."""
    while value >= 100 and value % 100 == 0 and after < len(folded):
        place = after + (folded[after] in _AND)
        limit = 1_000_000 if value % 1_000_000 == 0 else 1000 if value % 1000 == 0 else 100
        rest, end = _longest(folded, place, language, limit)
        if not rest:
            break
        value, after = value + rest, end
    return value, after


def _in_one_word(word: str, language: str) -> int | None:
    """Return the number of "zweitausendfünfhundert", or of an inflected ordinal."""
    known = phrases(language)
    for ending in ("", *ordinal_endings(language)):
        if word.endswith(ending):
            value = known.get(word.removesuffix(ending))
            if value is not None and (
                not ending or word.removesuffix(ending) in ordinals(language)
            ):
                return value
    compound = _COMPOUND.fullmatch(word) if language.startswith("de") else None
    if compound is not None:
        return _in_one_word(compound[1] or compound[2], language)
    for stem, scale in _JOINED.get(language[:2], {}).items():
        left, mark, right = word.partition(stem)
        if mark:
            many = known.get(left, 1 if left in ("", "ein", "een") else None)
            rest = _in_one_word(re.sub("^(?:und|en)", "", right), language) if right else 0
            return None if many is None or rest is None else many * scale + rest
    return None


_JOINED = {
    "de": {"tausend": 1000, "hundert": 100},
    "nl": {"duizend": 1000, "honderd": 100},
}


@functools.cache
def phrases(language: str) -> Mapping[str, int]:
    """Return the spellings of numbers from which others are composed, with their values."""
    known: dict[str, int] = {}
    for value in (*range(101), *range(200, 2000, 100), *_LARGE):
        for phrase in spellings(value, language):
            known.setdefault(phrase, value)
    if language.startswith("en"):  # "nineteen forty-five"
        known |= {
            phrase: year for year in range(1100, 2000) for phrase in spellings(year, language)
        }
        known |= {f"{spellings(n, language)[0]} hundred": 100 * n for n in range(20, 100)}
    return known


_LARGE = (
    1000,
    10**6,
    10**9,
    *(
        many * scale
        for scale in (1000, 10**6, 10**9)
        for many in (*range(2, 100), *range(100, 1000, 50))
    ),
)


@functools.cache
def first_letters(language: str) -> frozenset[str]:
    """Return the first two letters of all spellings."""
    return frozenset(phrase[:2] for phrase in phrases(language))
