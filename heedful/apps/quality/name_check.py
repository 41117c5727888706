"""Names that a translation replaces by others: candidates by spelling, which a model then judges.

A name mostly stays the same or changes a few letters: Lisbon, Lissabon. If a translation lacks a
word similar to a name of its source, but has a capitalised word that is similar to nothing in the
source, it may have replaced the name by that word. This is certain if the word is a name in other
sources of the file; otherwise the likelihood of the repaired translation decides.
"""

from __future__ import annotations

import difflib
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from heedful.apps.quality.reports import CheckResult, Evidence, Languages, counted
from heedful.apps.quality.respelling import Edit
from heedful.apps.quality.wording_checks import Word
from heedful.text.seen_words import FEWEST_LETTERS, SeenWords
from heedful.text.tokenizer_pair import is_spelled_out

MOST_REPAIRS = 4
"""Maximum number of repairs of a translation that a model scores, nearest positions first."""

_WORD = re.compile(r"[^\W\d_]+")
_FEWEST_LETTERS = 3
_ALIKE = 0.6  # least similarity; Naples and Neapel have 0.67
_BEGINS = 4  # first letters that similar words share: Korea, Koreaner
_OPENING = " \t\"'“”„«»‘’(["
_MOST_MORE = 2  # letters of a misspelled name
_TITLES = frozenset(("Mrs", "Miss", "Sir", "Lady", "Lord"))  # shorter ones are no names anyway
_QUOTES = ("", *"\"'“„«»‘")
_NOUN = 0.3  # share of its occurrences in which a noun follows an article
_HEADLINE = 0.5  # share of capitalised words above which capitals do not mark names
_CAPITALS = frozenset(("Lu", "Lt"))
_LONGEST = 12  # letters; longer German words are compounds (Verteidigungsminister), not names

# Capitalised words after an article are a title or an office, which is translated: "the Ministry of
# Health", "a Supreme Court judge". They were 12 of 25 false alarms on 500 news sentences. In German
# they are nouns: "die Aufklärung".
_ARTICLES = {
    "en": re.compile(
        r"the|an?|his|her|its|their|our|my|your|this|that|these|those|every|each|some|any|no"
    ),
    "de": re.compile(
        r"d(?:ie|e[rmns]|as)|(?:k?ein|[msd]ein|ihr|unser|euer|dies|jed)(?:e[mnrs]?)?|zu[mr]|[ia]m|vom|ins"
    ),
}
_CAPITAL_NOUNS = frozenset(("de", "lb"))
_LATIN = re.compile(r"[A-Za-z]")
_NOTHING = re.compile(r"(?!)")
_JOINS = frozenset(("of", "for", "and"))
_BREAK = re.compile(r"[.,;:!?()\"“”„«»]")

IsCommon = Callable[[str], bool]
"""Function that returns True for a capitalised word that has fewer tokens in lower case."""


class Repair(NamedTuple):
    """A translation with a name of its source in place of another word.

    Args:
        name: name in the source.
        word: word of the translation that it replaces.
        text: repaired translation.
        is_certain: True if the word is a name of another source, which needs no model.
    """

    name: Word
    word: Word
    text: str
    is_certain: bool


class FileWords(NamedTuple):
    """Words of the texts of a file, by which names are recognised.

    Args:
        common: words that occur in lower case, so they are no names at the start of a sentence.
        names: words that are capitalised within a sentence, so they may be names at its start.
        capitalized: words that are capitalised anywhere.
        nouns: words that mostly follow an article, which names seldom do.
        full_names: adjacent capitalised words, in both orders.
    """

    common: frozenset[str]
    names: frozenset[str]
    capitalized: frozenset[str] = frozenset()
    nouns: frozenset[str] = frozenset()
    full_names: frozenset[tuple[str, str]] = frozenset()


def file_words(texts: Sequence[str], language: str | None = None) -> FileWords:
    """Return the words of the texts of a file, in lower case and with a capital.

    Args:
        texts: texts of one language.
        language: its code, None where unknown.
    """
    common: set[str] = set()
    names: set[str] = set()
    full_names: set[tuple[str, str]] = set()
    capitalized: Counter[str] = Counter()
    after_article: Counter[str] = Counter()
    article = _article(language)
    for text in texts:
        words = _words(text)
        common.update(word.text for word in words if word.text == word.folded)
        capitalized.update(word.text for word in words if _is_capitalized(word))
        names.update(w.text for w in words if _is_capitalized(w) and _is_inside(w, text))
        for one, other in pairwise(words):
            if _is_capitalized(other) and other.start == one.end + 1:
                after_article[other.text] += article.fullmatch(one.folded) is not None
                if _is_capitalized(one):
                    full_names |= {(one.text, other.text), (other.text, one.text)}
    nouns = (w for w, count in after_article.items() if count > max(1, _NOUN * capitalized[w]))
    return FileWords(
        frozenset(common),
        frozenset(names),
        frozenset(capitalized),
        frozenset(nouns),
        frozenset(full_names),
    )


class NameRepairs:
    """Finds names of sources that their translations may lack.

    Args:
        languages: codes of the sources' and the translations' language, None where unknown. Names
            of months, countries and languages of the sources' are translated.
        sources: words of the sources of a file.
        targets: words of the translations of the file.
        is_common: function that returns True for capitalised words that have fewer tokens in lower
            case.
    """

    def __init__(
        self,
        languages: Languages,
        sources: FileWords,
        targets: FileWords,
        is_common: IsCommon,
    ) -> None:
        self.translated = translated_names(languages[0]) if languages[0] else frozenset()
        self.long_names = _long_names(self.translated)
        self.article, self.target_article = map(_article, languages)
        self.sources = sources
        self.targets = targets
        self.full_names = sources.full_names | targets.full_names
        self.is_common = is_common

    def lost(self, source: str, target: str) -> list[Word]:
        """Return the names of a source that nothing in its translation is like.

        Args:
            source: source text.
            target: text of its translation.
        """
        words = _words(source)
        capitalized = [word for word in words if _is_capitalized(word)]
        if len(capitalized) > max(1, _HEADLINE * len(words)):
            return []
        return self._missing(capitalized, _words(target), source)

    def find(self, source: str, target: str) -> list[Repair]:
        """Return translations in which a missing name replaces an unexplained word.

        Args:
            source: source text.
            target: text of its translation.
        """
        mine, others = _words(source), _words(target)
        capitalized = [word for word in mine if _is_capitalized(word)]
        if len(capitalized) > max(1, _HEADLINE * len(mine)):
            return []
        missing = self._missing(capitalized, others, source)
        kept = {
            word: list(self._kept_beside(word, capitalized, others, source)) for word in missing
        }
        unexplained = [
            word
            for word in others
            if _is_capitalized(word)
            and word.folded not in self.targets.common
            and (word.text not in self.targets.nouns or word.text in self.sources.capitalized)
            and not any(_are_alike(word, other) for other in mine)
        ]
        titles = set(self._titles(mine, source)) if missing and unexplained else set()
        nouns = {
            word
            for before, word in pairwise(others)
            if self.target_article.fullmatch(before.folded) and word.start == before.end + 1
            if self.sources.names and word.text not in self.sources.capitalized
        }
        pairs = sorted(
            (
                (name, word, is_certain)
                for name in missing
                for word in unexplained
                # "Kit" may be "Harington", if another line has "Kit Harington". Beside "Trump",
                # the name for "Donald" is beside him, too, unless it was left out.
                if (name.text, word.text) not in self.full_names
                and (not kept[name] or any(_are_adjacent(word, k, target) for k in kept[name]))
                if (is_certain := self._is_name(word))
                or (
                    name not in titles
                    # In a file, an unknown word that begins a sentence is rarely a name.
                    and (not self.sources.names or self._is_a_name_here(name, source))
                    and not self.is_common(name.text)
                    and len(word.text) <= _LONGEST
                    and word not in nouns
                )
            ),
            key=lambda each: (not each[2], abs(_place(each[0], source) - _place(each[1], target))),
        )
        return [
            Repair(a, b, target[: b.start] + a.text + target[b.end :], is_certain)
            for a, b, is_certain in pairs[:MOST_REPAIRS]
        ]

    def names(self, capitalized: Sequence[Word], source: str) -> list[Word]:
        """Return those of a source's capitalised words that are names which mostly stay."""
        return [
            word
            for word in capitalized
            if len(word.text) >= _FEWEST_LETTERS
            # Abbreviations are translated or spelled out: UN, MPs, PhD.
            and 2 * sum(map(str.isupper, word.text)) <= len(word.text)
            and word.folded not in self.sources.common
            and word.text not in _TITLES
            and word.text not in self.translated
            and not word.text.startswith(self.long_names)  # Sundays, Syrians
            and self._may_begin(word, source)
        ]

    def _missing(
        self, capitalized: Sequence[Word], others: Sequence[Word], source: str
    ) -> list[Word]:
        """Return the names of a source that nothing in its translation is like."""
        missing = [
            word
            for word in self.names(capitalized, source)
            if not any(_are_alike(word, other) for other in others)
        ]
        # "Red Devils" may be translated as a whole; of "Steve Adler", at least one part is kept.
        return [
            word
            for word in missing
            if not any(other != word and _are_adjacent(word, other, source) for other in missing)
        ]

    def _kept_beside(
        self, name: Word, capitalized: Sequence[Word], others: Sequence[Word], source: str
    ) -> Iterator[Word]:
        """Yield the words of a translation that stand for the neighbours of a missing name."""
        for beside in capitalized:
            gap = source[min(name.end, beside.end) : max(name.start, beside.start)]
            if gap in (" ", "-") and len(beside.text) >= _FEWEST_LETTERS:
                yield from (o for o in others if _stem(o) == _stem(beside))

    def _may_begin(self, word: Word, source: str) -> bool:
        """Return True for a word that may be a name, even at the start of a sentence."""
        return self._is_a_name_here(word, source) or not self.is_common(word.text)

    def _is_a_name_here(self, word: Word, source: str) -> bool:
        return word.text in self.sources.names or _is_inside(word, source)

    def _is_name(self, word: Word) -> bool:
        """Return True for a word of a translation that is a name in sources of the file."""
        return (
            word.text in self.sources.names
            and word.folded not in self.sources.common  # Fall, Land
            and len(word.text) >= _FEWEST_LETTERS
            and not word.text.isupper()
        )

    def _titles(self, words: Sequence[Word], text: str) -> Iterator[Word]:
        """Yield the capitalised words that an article begins: "the Ministry of Health"."""
        follows = False
        for before, word in pairwise(words):
            follows = not _BREAK.search(text, before.end, word.start) and (
                self.article.fullmatch(before.folded) is not None
                or (follows and (_is_capitalized(before) or before.text in _JOINS))
            )
            if follows and _is_capitalized(word):
                yield word


def check_lost_names(
    source: str,
    target: str,
    languages: Languages,
    encode: Callable[[str], Sequence[int]],
) -> list[CheckResult]:
    """Check that a translation has a word like each name of its source.

    Languages that capitalise every noun, and translations into another script, are not checked. Of
    3,000 human translations of Tatoeba, 19 fail, such as *Eiffelturm* for *Eiffel Tower*.

    Args:
        source: source text.
        target: text of its translation.
        languages: codes of source and target language, None where unknown.
        encode: function that returns the tokens of a word of the source.
    """

    repairs = _repairs(target, languages, encode)
    if repairs is None:
        return []
    lost = repairs.lost(source, target)
    note = "nothing in the translation is like it"
    found = [Evidence("source", each.start, each.end, each.text, note) for each in lost]
    return [counted("lost_names", found)]


def lost_names(
    source: str,
    target: str,
    languages: Languages,
    encode: Callable[[str], Sequence[int]],
) -> frozenset[str]:
    """Return the names to copy of a source that nothing in its translation is like.

    Args:
        source, target, languages, encode: see `check_lost_names`.
    """
    repairs = _repairs(target, languages, encode)
    if repairs is None:
        return frozenset()
    # "Panama Canal", "Family": what has fewer tokens in lower case is translated, not copied.
    gone = (word.text for word in repairs.lost(source, target))
    return frozenset(name for name in gone if not repairs.is_common(name))


def misspelled_names(
    source: str,
    target: str,
    languages: Languages,
    encode: Callable[[str], Sequence[int]],
    seen: SeenWords,
) -> list[Edit]:
    """Return edits of a translation that put names of its source where made-up words are like them.

    A model that spells words in pieces joins pieces to a made-up word: Eridelberg for Heidelberg. A
    word is made up if it stands neither in the source nor among the words of the model's training,
    and begins with a capital. A name that the translation has, or a form of it such as
    Heidelberger, is not put there again.

    Args:
        source, target, languages, encode: see `check_lost_names`.
        seen: words of the targets that the model was trained on.
    """
    repairs = _repairs(target, languages, encode)
    if repairs is None:
        return []
    mine, others = _words(source), _words(target)
    known = {word.folded for word in mine}
    kept = {word.folded for word in others}
    made_up = [
        word
        for word in others
        if _is_capitalized(word) and word.folded not in known
        if len(word.text) >= FEWEST_LETTERS and word.text not in seen
    ]
    edits: dict[Word, str] = {}
    for name in repairs.names([word for word in mine if _is_capitalized(word)], source):
        if any(each.startswith(name.folded) for each in kept):
            continue
        alike = [
            each
            for each in made_up
            if each not in edits
            and _are_alike(name, each)
            # "Celtmusik" is more than a misspelled "Celtic".
            and len(each.text) <= len(name.text) + _MOST_MORE
        ]
        if alike:
            closest = max(alike, key=functools.partial(_likeness, name))
            edits[closest] = name.text
    return [(word.start, word.end, name) for word, name in edits.items()]


def _repairs(
    target: str, languages: Languages, encode: Callable[[str], Sequence[int]]
) -> NameRepairs | None:
    """Return what finds the names of a sentence by itself; None where capitals do not mark them."""

    def is_common(word: str) -> bool:
        return not is_spelled_out(word, encode)  # a model loses names that it does not know

    if not marks_names(languages[0]) or not _LATIN.search(target):
        return None
    nothing = FileWords(frozenset(), frozenset())
    return NameRepairs(languages, nothing, nothing, is_common)


def marks_names(language: str | None) -> bool:
    """Return True for a known language in which capitals mark names, not nouns as well."""
    return language is not None and language[:2] not in _CAPITAL_NOUNS


def _likeness(one: Word, other: Word) -> float:
    a, b = plain_letters(one.text), plain_letters(other.text)
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


def _article(language: str | None) -> re.Pattern[str]:
    return _ARTICLES.get((language or "")[:2], _NOTHING)


def _place(word: Word, text: str) -> float:
    return word.start / len(text)


def _words(text: str) -> list[Word]:
    return [Word(*m.span(), m[0], m[0].casefold()) for m in _WORD.finditer(text)]


def _are_adjacent(one: Word, other: Word, text: str) -> bool:
    first, second = sorted((one, other), key=lambda word: word.start)
    return not text[first.end : second.start].strip(" -.’'s")


def _is_inside(word: Word, text: str) -> bool:
    """Return True for a word that begins neither a sentence nor a quotation, nor a quoted title."""
    if text[word.start - 1 : word.start] in _QUOTES:
        return False
    return text[: word.start].rstrip(_OPENING)[-1:] not in ("", *".!?:…-–")


def _is_capitalized(word: Word) -> bool:
    return len(word.text) > 1 and unicodedata.category(word.text[0]) in _CAPITALS


@functools.lru_cache(maxsize=50_000)
def plain_letters(text: str) -> str:
    """Return a text without case, accents and ß, which makes München more similar to Munich."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    letters = "".join(each for each in decomposed if not unicodedata.combining(each))
    return letters.replace("c", "k").replace("ph", "f")  # California, Kalifornien


def _stem(word: Word) -> str:
    return plain_letters(word.text).removesuffix("s")  # a genitive


def _are_alike(one: Word, other: Word) -> bool:
    """Return True for words that may be the same name, or a name and a word derived from it."""
    a, b = plain_letters(one.text), plain_letters(other.text)
    shorter, longer = sorted((a, b), key=len)
    if a == b or (len(shorter) >= _FEWEST_LETTERS and longer.startswith(shorter)):
        return True
    if len(shorter) >= _BEGINS and (shorter in longer or a[:_BEGINS] == b[:_BEGINS]):
        return True
    if not (_is_capitalized(one) and _is_capitalized(other)):  # not "name" and "Dunham"
        return False
    if len(shorter) == _BEGINS and a[: _BEGINS - 1] == b[: _BEGINS - 1]:  # Martian, Mars
        return True
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.real_quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE


@functools.cache  # made anew for each text, it took a twentieth of the time of its translation
def _long_names(names: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in names if len(name) > _BEGINS)


@functools.cache
def translated_names(language: str) -> frozenset[str]:
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
