"""Names of a text that its translation replaces: candidates by spelling, for a model to judge.

A name mostly stays as it is or changes a few letters: Lisbon, Lissabon. Where a translation has
nothing like a name of its source, and has a capitalised word that nothing in the source is like,
one may stand for the other. Whether it does, the likelihood of the repaired translation tells.
"""

from __future__ import annotations

import difflib
import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from heedful.apps.quality.wording_checks import Word

MOST_REPAIRS = 4
"""Most repairs of a translation that a model scores, those of the nearest places first."""

_WORD = re.compile(r"[^\W\d_]+")
_FEWEST_LETTERS = 3
_ALIKE = 0.6  # Naples and Neapel: 0.67
_BEGINS = 4  # letters at the beginning that make words alike: Korea, Koreaner
_OPENING = " \t\"'“”„«»‘’(["
_HEADLINE = 0.5  # share of capitalised words from which capitals mark no names
_CAPITALS = frozenset(("Lu", "Lt"))


class Repair(NamedTuple):
    """A translation with a name of its source in place of another word.

    Args:
        name: name in the source.
        word: word of the translation that it replaces.
        text: repaired translation.
    """

    name: Word
    word: Word
    text: str


class FileWords(NamedTuple):
    """Words of the sources of a file, by which its names are known.

    Args:
        common: words in lower case, which are no names where a sentence begins with them.
        names: words with a capital inside of a sentence, which may be names at its beginning.
    """

    common: frozenset[str]
    names: frozenset[str]


def file_words(sources: Sequence[str]) -> FileWords:
    """Return the words of the sources of a file, in lower case and with a capital."""
    common: set[str] = set()
    names: set[str] = set()
    for source in sources:
        words = _words(source)
        common.update(word.text for word in words if word.text == word.folded)
        names.update(w.text for w in words if _is_capitalized(w) and _is_inside(w, source))
    return FileWords(frozenset(common), frozenset(names))


def name_repairs(source: str, target: str, language: str | None, words: FileWords) -> list[Repair]:
    """Return translations in which a missing name of the source replaces an unexplained word.

    Args:
        source: source text.
        target: text of its translation.
        language: code of the source's language, whose months, countries and languages are no names
            that stay; None where unknown.
        words: words of other texts of the language.
    """
    mine, others = _words(source), _words(target)
    capitalized = [word for word in mine if _is_capitalized(word)]
    if len(capitalized) > max(1, _HEADLINE * len(mine)):
        return []
    translated = _translated_names(language) if language else frozenset()
    missing = [
        word
        for word in capitalized
        if len(word.text) >= _FEWEST_LETTERS
        and not word.text.isupper()  # abbreviations are translated or spelled out
        and word.folded not in words.common
        and (word.text in words.names or _is_inside(word, source))
        and word.text not in translated
        and not any(_are_alike(word, other) for other in others)
    ]
    # "Chief Minister" and "Red Devils" are translated as a whole; of "Steve Adler" one part stays.
    missing = [
        word
        for word in missing
        if not any(other != word and _are_adjacent(word, other, source) for other in missing)
    ]
    if not missing:
        return []
    unexplained = [
        word
        for word in others
        if _is_capitalized(word) and not any(_are_alike(word, other) for other in mine)
    ]
    pairs = sorted(
        ((a, b) for a in missing for b in unexplained),
        key=lambda pair: abs(pair[0].start / len(source) - pair[1].start / len(target)),
    )
    return [
        Repair(a, b, target[: b.start] + a.text + target[b.end :]) for a, b in pairs[:MOST_REPAIRS]
    ]


def _words(text: str) -> list[Word]:
    return [Word(*m.span(), m[0], m[0].casefold()) for m in _WORD.finditer(text)]


def _are_adjacent(one: Word, other: Word, text: str) -> bool:
    first, second = sorted((one, other), key=lambda word: word.start)
    return not text[first.end : second.start].strip(" -.’'s")


def _is_inside(word: Word, text: str) -> bool:
    """Return True for a word that does not begin a sentence, nor a quotation in it."""
    return text[: word.start].rstrip(_OPENING)[-1:] not in ("", *".!?:…-–")


def _is_capitalized(word: Word) -> bool:
    return len(word.text) > 1 and unicodedata.category(word.text[0]) in _CAPITALS


@functools.lru_cache(maxsize=50_000)
def _plain(text: str) -> str:
    """Return a word without case, accents and ß: München is more like Munich so."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    letters = "".join(each for each in decomposed if not unicodedata.combining(each))
    return letters.replace("c", "k").replace("ph", "f")  # California, Kalifornien


def _are_alike(one: Word, other: Word) -> bool:
    """Return True for words that may be one name, or a name and a word made of it."""
    a, b = _plain(one.text), _plain(other.text)
    shorter, longer = sorted((a, b), key=len)
    if a == b or (len(shorter) >= _FEWEST_LETTERS and longer.startswith(shorter)):
        return True
    if len(shorter) >= _BEGINS and (shorter in longer or a[:_BEGINS] == b[:_BEGINS]):
        return True
    if not (_is_capitalized(one) and _is_capitalized(other)):  # else "name" is like "Dunham"
        return False
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.real_quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE


@functools.cache
def _translated_names(language: str) -> frozenset[str]:
    """Return words of a language for months, days, countries and languages, by CLDR."""
    from babel.core import Locale, UnknownLocaleError

    try:
        locale = Locale.parse(language.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        return frozenset()
    names: Sequence[str] = [
        *locale.months["format"]["wide"].values(),
        *locale.days["format"]["wide"].values(),
        *locale.territories.values(),
        *locale.languages.values(),
    ]
    return frozenset(word for name in names for word in _WORD.findall(name))
