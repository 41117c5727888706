"""Correction of numbers in a translation, and of their form.

A number is changed only where its counterpart in the source is certain: the two agree, only one
number is wrong and one missing, or the word alignment connects them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from heedful.apps.quality.kept_parts import blanked, protected_spans
from heedful.apps.quality.number_check import compare_numbers
from heedful.apps.quality.number_forms import Number
from heedful.apps.quality.number_side import NumberSide
from heedful.apps.quality.number_words import parts_of_an_hour
from heedful.apps.quality.reports import Languages
from heedful.apps.quality.respelling import Edit, Span
from heedful.errors import ConfigError
from heedful.search.alignment import Alignment
from heedful.text.pretokenization import word_spans

Form = Literal["keep", "localize"]

_FIGURES = re.compile(r"\d+(?:[.,'’٫٬ \u00a0\u2009\u202f]\d+)*")
_SPACES = " \u00a0\u2009\u202f"


@dataclass(frozen=True)
class NumberForm:
    """The form of numbers in a translation.

    Args:
        form: `keep` for the form of the source, `localize` for the separators of the target
            language.
        languages: codes of source and target, None where unknown.

    Raises:
        ConfigError: when CLDR does not know a language whose separators are needed.
    """

    form: Form
    languages: Languages = (None, None)

    def __post_init__(self) -> None:
        if self.form == "localize":
            _signs(self.languages[0])
            _signs(self.languages[1])

    def write(self, figures: str) -> str:
        """Return a number of the source in the translation's form.

        Digits stay the same, with group separators where the source has them. A number that does
        not follow the rules of the source language, such as a version, stays unchanged.
        """
        if self.form == "keep":
            return figures
        decimal, group = _signs(self.languages[0])
        groups = _SPACES if group in _SPACES else group
        match = re.fullmatch(
            rf"(\d+|[1-9]\d{{0,2}}(?:[{re.escape(groups)}]\d{{2,3}})*[{re.escape(groups)}]\d{{3}})"
            rf"(?:{re.escape(decimal)}(\d+))?",
            figures,
        )
        if match is None:
            return figures
        from babel.numbers import format_decimal

        whole, decimals = match[1], match[2]
        if not whole.isdecimal():
            value = int(re.sub(r"\D", "", whole))
            whole = format_decimal(value, locale=_code(self.languages[1]))
        return whole if decimals is None else f"{whole}{_signs(self.languages[1])[0]}{decimals}"


def _code(language: str | None) -> str:
    return (language or "").replace("-", "_")


def _signs(language: str | None) -> tuple[str, str]:
    """Return the decimal and the group separator of a language."""
    from babel import Locale, UnknownLocaleError

    if language is None:
        raise ConfigError(
            "To localize numbers, the languages of the model must be known",
            where="numbers = localize",
            remedy="Name the languages, such as en-de",
        )
    try:
        symbols = Locale.parse(_code(language)).number_symbols["latn"]
    except (UnknownLocaleError, ValueError):
        raise ConfigError(
            f"CLDR has no language {language!r}, so the form of its numbers is unknown",
            where="numbers = localize",
            remedy="Name the languages, such as en-de",
        ) from None
    return symbols["decimal"], symbols["group"]


@dataclass(frozen=True)
class Mending:
    """The edits of a translation, and the numbers that remain wrong.

    Args:
        edits: edits of the translation.
        missing: numbers of the source that the translation still lacks.
        added: numbers of the translation that the source does not have.
    """

    edits: Sequence[Edit]
    missing: Sequence[Number]
    added: Sequence[Number]

    @property
    def wrong(self) -> int:
        """The count of numbers that do not agree."""
        return len(self.missing) + len(self.added)


def mend_numbers(
    source: str, target: str, form: NumberForm, alignment: Alignment | None = None
) -> Mending:
    """Find the numbers of a translation to change.

    Args:
        source: source text.
        target: text of its translation.
        form: form of the numbers.
        alignment: word alignment of source and target; without it, several wrong numbers stay
            unchanged.
    """
    left = NumberSide(blanked(source, protected_spans(source)), "source", form.languages[0])
    right = NumberSide(blanked(target, protected_spans(target)), "target", form.languages[1])
    found = compare_numbers(left, right)
    edits = [
        (*span, form.write(number.text))
        for number, other in found.pairs
        if (span := _figures(other, target)) is not None
        if _is_plain(number, source)
        if _digits(number.text) == _digits(target[slice(*span)])
    ]
    wrong = _matched(found.missing, found.added, source, target, alignment)
    for number, other in wrong:
        span = _figures(other, target)
        assert span is not None
        edits.append((*span, form.write(number.text)))
    told = _in_words(found.told, right) if form.form == "keep" else []
    edits += [(*span, number.text) for number, span in told]
    mended = [number for number, _ in wrong]
    return Mending(
        [edit for edit in edits if target[edit[0] : edit[1]] != edit[2]],
        [number for number in found.missing if number not in mended],
        [number for number in found.added if all(number is not other for _, other in wrong)],
    )


def _matched(
    missing: Sequence[Number],
    added: Sequence[Number],
    source: str,
    target: str,
    alignment: Alignment | None,
) -> list[tuple[Number, Number]]:
    """Return pairs of a missing and a wrong number that certainly belong together."""
    left = [number for number in missing if _is_plain(number, source)]
    right = [number for number in added if _figures(number, target) is not None]
    if len(missing) == len(left) == 1 and len(added) == len(right) == 1:
        return [(left[0], right[0])]
    if alignment is None:
        return []
    words = word_spans(source), word_spans(target)
    if tuple(map(len, words)) != (len(alignment.source_words), len(alignment.target_words)):
        return []
    strongest = {target: source for source, target, _ in alignment.links}
    pairs: list[tuple[Number, Number]] = []
    for other in right:
        place = strongest.get(_word_of(other, words[1]), -1)
        fits = [number for number in left if _word_of(number, words[0]) == place]
        pairs += [(number, other) for number in fits if len(fits) == 1]
    # A source number with two wrong counterparts is ambiguous.
    counts = [number for number, _ in pairs]
    return [(number, other) for number, other in pairs if counts.count(number) == 1]


def _in_words(told: Sequence[Number], right: NumberSide) -> list[tuple[Number, Span]]:
    """Return pairs of source numbers and the words for them in the translation."""
    if right.has_clock_words:  # "halb drei" is not 3
        return []
    of_hours = parts_of_an_hour(right.language).values() if right.language else ()
    words = [
        each
        for each in right.spoken
        if each.is_certain and not any(part.fullmatch(each.text) for part in of_hours)
    ]
    found = []
    for number in told:
        same = [each for each in words if each.readings & number.readings]
        if len(same) == 1 and number.text.isdecimal():
            found.append((number, (same[0].start, same[0].end)))
    return found


def _is_plain(number: Number, text: str) -> bool:
    """Return True for a number of digits and separators, but not for a date, time or version."""
    before = text[max(0, number.start - 1) : number.start]
    return _FIGURES.fullmatch(number.text) is not None and not before.isalpha()


def _figures(number: Number, text: str) -> Span | None:
    """Return the range of a number's digits, without "Uhr"; None for dates, times and versions."""
    match = _FIGURES.match(text, number.start, number.end)
    if match is None or any(sign in number.text for sign in ":/-"):
        return None
    return match.span()


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _word_of(number: Number, words: Sequence[Span]) -> int:
    """Return the range of the word in which a number begins."""
    return next(i for i, (start, end) in enumerate(words) if start <= number.start < end)
