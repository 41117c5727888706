"""Checks of the words of a translation: repetition, length, copies of the source, quotes."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from heedful.apps.quality.reports import CheckResult, Evidence, Languages, counted
from heedful.text.pretokenization import is_spaceless
from heedful.text.sentences import count_sentences
from heedful.text.tokenizer_pair import ENGLISH

_WORD = re.compile(r"[^\W_]+(?:['’_-][^\W_]+)*")
_FIRST_SPACELESS = "\u0e00"  # Thai
_SHORTEST_PHRASE = 4
_LOOP = re.compile(r"(.{1,12}?)\1{4,}", re.DOTALL)
_LETTER_LOOP = re.compile(r"([^\W\d_]{1,4}?)\1{3,}")
_MARKS = re.compile(r"[\"“”„‟«»「」『』]|''|``")
_SINGLE = re.compile(r"(?<![\w'’])[‚‘'‹](?=\w)[^'’‘›\"“”„]*?[‘’'›](?![\w'’])")
_QUOTED = re.compile(r"[\"“„«][^\"“”„«»]*[\"”“»]")
# Code and emphasised words, often names, and domains: travel.example.org.
_MARKED_UP = re.compile(r"`[^`]*`|\*[^*\s][^*]*\*|(?<![\w-])[\w-]+(?:\.[a-z][\w-]*)+\b")
_INCHES = re.compile(r"(?<=\d)\"")


@dataclass(frozen=True)
class Word:
    """A word of a text.

    Args:
        start: index of its first character.
        end: index after its last character.
        text: word as written.
        folded: word for comparison, case folded.
    """

    start: int
    end: int
    text: str
    folded: str


def find_words(text: str) -> list[Word]:
    """Return the words of a text, or its characters in scripts without spaces."""
    if max(text, default="") < _FIRST_SPACELESS:  # a fast path for most texts
        return [Word(*m.span(), m[0], m[0].casefold()) for m in _WORD.finditer(text)]
    words = []
    for match in _WORD.finditer(text):
        if any(map(is_spaceless, match[0])):
            words += [
                Word(place, place + 1, text[place], text[place].casefold())
                for place in range(*match.span())
            ]
        else:
            words.append(Word(*match.span(), match[0], match[0].casefold()))
    return words


def check_repetition(source: str, target: str) -> CheckResult:
    """Find repeated phrases and loops of characters that the source does not have.

    A phrase has at least two words, since "die die" and "nous nous" may be right. A single word
    counts if it occurs three times in a row.

    Args:
        source: source text.
        target: text of its translation.

    Returns:
        The result; its value is the number of repeated words.
    """
    evidence, value = [], 0
    allowed = len(_repeats(_tokens(source)))
    for first, count, length in _repeats(tokens := _tokens(target))[allowed:]:
        start, end = tokens[first + length].start, tokens[first + length * count - 1].end
        value += length * (count - 1)
        evidence.append(Evidence("target", start, end, target[start:end], "repeated"))
    if not evidence:
        for pattern in (_LOOP, _LETTER_LOOP):
            loop = pattern.search(target)
            if loop and loop[0].strip() and not pattern.search(source) and _is_loop(loop[1]):
                evidence.append(Evidence("target", *loop.span(), loop[0], "a loop"))
                value = len(loop[0]) // len(loop[1])
                break
    return CheckResult("repetition", bool(evidence), value, 0, tuple(evidence))


def _is_loop(unit: str) -> bool:
    return any(character.isalpha() for character in unit)


def _tokens(text: str) -> list[Word]:
    """Return words with their punctuation, or characters in scripts without spaces.

    Punctuation counts, because "… objects. Objects …" is no repetition.
    """
    if max(text, default="") >= _FIRST_SPACELESS and any(map(is_spaceless, text)):
        return find_words(text)
    return [Word(*m.span(), m[0], m[0].casefold()) for m in re.finditer(r"\S+", text)]


def _repeats(words: Sequence[Word]) -> list[tuple[int, int, int]]:
    """Return the first word, the count and the length in words of repeated phrases."""
    found: list[tuple[int, int, int]] = []
    folded = [word.folded for word in words]
    if len(set(folded)) == len(folded):  # a shortcut for most texts
        return found
    lettered = [0, *accumulate(any(map(str.isalpha, word)) for word in folded)]
    place = 0
    while place < len(words):
        for length in range(1, (len(words) - place) // 2 + 1):
            if folded[place] != folded[place + length]:
                continue
            if lettered[place] == lettered[place + length]:  # phrases without letters may repeat
                continue
            count = 1
            unit = folded[place : place + length]
            while folded[place + count * length : place + (count + 1) * length] == unit:
                count += 1
            if count > 1 and _is_repetition(unit, count):
                found.append((place, count, length))
                place += length * count - 1
                break
        place += 1
    return found


def _is_repetition(unit: Sequence[str], count: int) -> bool:
    """Return True for a phrase with letters whose repetition is hardly intended.

    Args:
        unit: words of the phrase.
        count: number of its occurrences in a row.
    """
    # "Nous nous", "die die", "very, very, very" and "1 + 1 + 1" may be intended.
    if count == 2:
        return len(set(unit)) > 1 and sum(map(len, unit)) >= _SHORTEST_PHRASE
    return not unit[0].endswith(",") or len(unit) > 1


_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_THAI = re.compile("[\u0e01-\u0eff]")
_SYLLABLE = re.compile("[\u3040-\u30ff\uac00-\ud7a3]")  # kana and hangul


def text_length(text: str) -> float:
    """Return the length of a text in letters of an alphabet.

    An ideograph counts as 3 letters and a kana or hangul syllable as 2, about as many as their
    translations have. A letter of Thai or Lao, which have no spaces, counts as 4/3.
    """
    text = text.strip()
    if text.isascii():  # a fast path, usual for English
        return float(len(text))
    wide = 2 * len(_IDEOGRAPH.findall(text)) + len(_SYLLABLE.findall(text))
    return len(text) + wide + len(_THAI.findall(text)) / 3


_KEY = 5


def word_keys(text: str) -> frozenset[str]:
    """Return the beginnings of the words of a text, which identify names and loanwords."""
    return frozenset(
        word[:_KEY] for word in _LETTERS.findall(text.casefold()) if len(word) > 3 or word.isdigit()
    )


_LETTERS = re.compile(r"[^\W_]+")


def length_deviation(source: float, target: float) -> float:
    """Return the deviation of a translation's length from the expected one, in standard deviations.

    The expected length is that of the source, with a variance proportional to it: 6.8 per character
    in Gale and Church (1993).

    Args:
        source: length of the source text.
        target: length of its translation.
    """
    mean = (source + target) / 2
    return (target - source) / math.sqrt(_VARIANCE * max(mean, 1.0))


_VARIANCE = 6.8
_STRETCH = 0.1


def check_length(
    source: str, target: str, *, shortest: float, longest: float
) -> tuple[CheckResult, CheckResult]:
    """Compare the lengths of a text and its translation, in characters.

    Without the full stop of its source, a translation is too short from `SHORT_OF_A_MARK` on.

    Args:
        source: source text.
        target: text of its translation.
        shortest: smallest allowed deviation, below 0; see `length_deviation`.
        longest: largest allowed deviation.

    Returns:
        The results of the check for short and of the check for long translations.
    """
    lengths = text_length(source), text_length(target)
    value = length_deviation(*lengths)
    # Translators also stretch a whole text by a tenth, which counts in long texts.
    longest *= math.sqrt(1 + sum(lengths) / 2 * _STRETCH**2 / _VARIANCE)
    empty = bool(source.strip()) and not target.strip()
    unfinished = value < SHORT_OF_A_MARK and _lacks_final_mark(source, target)
    whole = (Evidence("target", 0, len(target), target, "all of it"),)
    if unfinished:
        whole = (Evidence("target", len(target), len(target), "", "the end is missing"),)
    short = empty or value < shortest or unfinished
    return (
        CheckResult("too_short", short, value, shortest, whole if short else ()),
        CheckResult(
            "too_long",
            value > longest,
            value,
            longest,
            (Evidence("target", 0, len(target), target, "all of it"),) * (value > longest),
        ),
    )


SHORT_OF_A_MARK = -0.6
"""Deviation of the length below which a missing full stop shows that the end is missing."""

_FINAL_MARK = re.compile(r"[.!?…。！？।։។။؟۔][\"'“”’»」』)\]\s]*\Z")
_UNPUNCTUATED = re.compile(r"[\u0e00-\u0eff]\s*\Z")  # Thai and Lao have no full stop


def has_final_mark(text: str) -> bool:
    """Return True for a text that ends in punctuation of a sentence."""
    return _FINAL_MARK.search(text) is not None


def _lacks_final_mark(source: str, target: str) -> bool:
    """Return True for a translation that ends in a word where its source ends a sentence."""
    last = target.rstrip()[-1:]
    return (
        has_final_mark(source)
        and (last.isalnum() or last in ",;")
        and not _UNPUNCTUATED.search(target)
    )


def check_sentences(source: str, target: str, languages: Languages) -> CheckResult:
    """Count the sentences of a text and its translation.

    Translators also join sentences. So a sentence counts as lost only if the translation is short
    as well: with two of three sentences, its length must be nearer to two thirds of the source than
    to the whole.

    Args:
        source: source text.
        target: text of its translation.
        languages: codes of source and target language; None for English rules.

    Returns:
        The result; its value is the number of lost sentences.
    """
    wanted = count_sentences(source, languages[0] or ENGLISH)
    if wanted < 2 or not target.strip():  # an empty translation is reported as too short
        return counted("sentences", [])
    found = count_sentences(target, languages[1] or ENGLISH)
    share = text_length(target) / text_length(source)
    if found >= wanted or share > (found / wanted + 1) / 2:
        return counted("sentences", [])
    note = f"{found} of {wanted} sentences"
    evidence = (Evidence("target", 0, len(target), target, note),)
    return CheckResult("sentences", True, wanted - found, 0, evidence)


def check_copies(
    source: str,
    target: str,
    *,
    most_copied: float,
    longest_run: int,
) -> tuple[CheckResult, CheckResult]:
    """Find words of the source that are unchanged in the translation.

    Names, words with digits, and code may stay unchanged. Many words are the same in two languages,
    so a single one is no evidence.

    Args:
        source: source text with spaces in place of protected parts.
        target: translation with spaces in place of protected parts.
        most_copied: share of copied words above which the whole source was copied.
        longest_run: maximum number of copied words in a row.

    Returns:
        The results of the check for a copied source and of the check for untranslated words.
    """
    source, target = without_markup(source), without_markup(target)
    # Quoted inscriptions often stay, unless the quotation is most of the text.
    signs = _QUOTED.sub(_spaces, target)
    target = signs if len(signs.split()) * 2 > len(target.split()) else target
    mine, words = find_words(source), find_words(target)
    # Case counts: "Comics" is a German translation of "comics".
    own = {word.text for word in mine if not _may_stay(word, source)}
    counting = [word for word in words if word.text in own or not _may_stay(word, target)]
    kept: list[Word] = []
    if own.intersection(word.text for word in words):
        kept = _in_order(mine, words)
    new = [word for word in kept if word.text in own]
    # With its names, too, most of a copy is the source: "Juventus Turin Champion in Italy" is none.
    share = min(len(new) / max(len(counting), 1), len(kept) / max(len(words), 1))
    # Of three words two are often the same: a name that begins the text, and a word such as "in".
    copied = share > most_copied and len(new) > (1 if len(new) == len(counting) else 2)
    whole = Evidence("target", 0, len(target), target, "a copy of the source")
    runs = [] if copied else _runs(kept, words)
    # Names may contain few words in lower case: "Premier League: Man United", "St. Wolfgang in".
    runs = [run for run in runs if sum(w.text in own for w in _outside_names(run)) > 1]
    longest = max(map(len, runs), default=0)
    left = [word for run in runs if len(run) > longest_run for word in run]
    evidence = tuple(Evidence("target", w.start, w.end, w.text, "as in the source") for w in left)
    return (
        CheckResult("copied", copied, share, most_copied, (whole,) if copied else ()),
        CheckResult("untranslated", bool(left), longest, longest_run, evidence),
    )


def _in_order(source: Sequence[Word], target: Sequence[Word]) -> list[Word]:
    """Return the words of a translation that the source has in the same order."""
    matcher = difflib.SequenceMatcher(
        None, [word.text for word in source], [word.text for word in target], autojunk=False
    )
    blocks = matcher.get_matching_blocks()
    return [word for block in blocks for word in target[block.b : block.b + block.size]]


def _runs(kept: Sequence[Word], words: Sequence[Word]) -> list[list[Word]]:
    """Return the copied words, grouped into runs of consecutive words."""
    places = {word.start for word in kept}
    runs: list[list[Word]] = [[]]
    for word in words:
        if word.start in places:
            runs[-1].append(word)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _outside_names(run: Sequence[Word]) -> list[Word]:
    """Return words in lower case, except short ones in a name: "Centers for Disease Control"."""
    upper = [number for number, word in enumerate(run) if word.text != word.folded]
    return [
        word
        for number, word in enumerate(run)
        if word.text == word.folded
        and not (len(word.text) <= _SHORT_WORD and upper and upper[0] < number < upper[-1])
    ]


_SHORT_WORD = 3  # letters: for, of, and, van, de


def _spaces(match: re.Match[str]) -> str:
    return " " * len(match[0])


def without_markup(text: str) -> str:
    """Return the text with spaces in place of code and emphasised words."""
    return _MARKED_UP.sub(_spaces, text)


def _may_stay(word: Word, text: str) -> bool:
    """Return True for words with digits, and capitalised words within a sentence, such as names."""
    if any(map(str.isdigit, word.text)) or "_" in word.text:
        return True
    if word.text != word.folded and word.text != word.text.lower():
        before = text[: word.start].rstrip(" \t\"'“”„«»¿¡(-—")
        begins = not before or before[-1] in ".!?:…"
        return not (begins and word.text[1:] == word.text[1:].lower())
    return False


def check_quotes(source: str, target: str) -> CheckResult:
    """Compare the quotations of a text and its translation in any quotation marks.

    Args:
        source: source text with spaces in place of protected parts.
        target: translation with spaces in place of protected parts."""
    mine, others = _quotation_marks(source), _quotation_marks(target)
    if len(mine) == len(others):
        return counted("quotes", [])
    missing = len(mine) > len(others)
    marks = mine if missing else others
    note = "missing" if missing else "added"
    side = "source" if missing else "target"
    text = source if missing else target
    return counted(
        "quotes",
        [Evidence(side, *span, text[slice(*span)], note) for span in marks],  # type: ignore[arg-type]
    )


def _quotation_marks(text: str) -> list[tuple[int, int]]:
    """Return the spans of double quotation marks, and of single quotation marks around words."""
    doubles = [match.span() for match in _MARKS.finditer(text)]
    if len(doubles) % 2 and (inches := _INCHES.search(text)):
        doubles.remove(inches.span())
    for match in _SINGLE.finditer(text):
        doubles += [(match.start(), match.start() + 1), (match.end() - 1, match.end())]
    return sorted(doubles)
