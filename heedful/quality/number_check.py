"""The check of numbers: each number of a source is in its translation, and no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from heedful.quality.number_forms import Number, find_numbers
from heedful.quality.number_words import (
    clock_words,
    common_words,
    has_number_word,
    months,
    normalise,
    parts_of_numbers,
    scales,
)
from heedful.quality.reports import CheckResult, Evidence, Side, counted

_ROMAN = re.compile(r"\b([IVXLC]+)(?:e|\.|th|st|nd|rd)?\b")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


class NumberSide:
    """The numbers of one text, and the ways in which it may say those of the other one.

    Args:
        text: the text; what is protected, such as addresses, is blanked.
        side: source or target.
        language: its code; words of numbers are not looked for if unknown.
    """

    def __init__(self, text: str, side: Side, language: str | None) -> None:
        self.text = text
        self.side: Side = side
        self.language = language
        self.numbers = [self._scaled(number) for number in find_numbers(text)]
        self.normalised = normalise(text)
        self.words = self.normalised.split()

    def tells(self, number: Number) -> bool:
        """Return True if a number of the other text may be said here in another form."""
        for reading in number.readings:
            if all(isinstance(value, int) and self.says(value) for value in reading):
                return True
        # "A quarter to one" is 12:45.
        return self.tells_times and number.is_time

    def has_value(self, value: int) -> bool:
        """Return True if the text has a whole number, in figures or in words, or in a time."""
        return self.says(value) or any(
            value in reading for number in self.numbers for reading in number.readings
        )

    @property
    def tells_times(self) -> bool:
        """True if times may be told without their numbers: "a quarter past"."""
        pattern = clock_words(self.language) if self.language else None
        return pattern is not None and pattern.search(self.text) is not None

    def spoken(self) -> list[tuple[re.Match[str], int]]:
        """Return words that are numbers for certain, and what they stand for.

        Parts of "thirty-four" and "two thousand" are none, nor is that of "four-wheeler".
        """
        if self.language is None:
            return []
        known, parts = common_words(self.language), parts_of_numbers(self.language)
        words = list(re.finditer(r"[^\W_]+", self.text))
        folded = [None, *(word[0].casefold() for word in words), None]
        found = []
        for place, word in enumerate(words, start=1):
            value = known.get(folded[place] or "")
            around = self.text[max(word.start() - 1, 0) : word.end() + 1]
            if value is None or "-" in around or "’" in around or "'" in around:
                continue
            if folded[place - 1] not in parts and folded[place + 1] not in parts:
                found.append((word, value))
        return found

    def says(self, value: int) -> bool:
        """Return True if the text has a whole number in words."""
        if value == 1:  # an article, a pronoun, "first": no telling
            return True
        if value in self._roman_values():
            return True
        if self.language is None:
            return False
        if has_number_word(value, self.language, self.normalised):
            return True
        names = months(self.language) if value <= 12 else {}
        return any(names.get(word) == value for word in self.words)

    def _roman_values(self) -> set[int]:
        return {_roman(match[1]) for match in _ROMAN.finditer(self.text)}

    def _scaled(self, number: Number) -> Number:
        """Return the number with the reading of "3 million" as 3,000,000."""
        after = re.match(r"[ \u00a0]?([^\W\d_]+)", self.text[number.end :])
        if self.language is None or after is None:
            return number
        word = after[1].casefold()
        zeros = next((n for b, n in scales(self.language).items() if word.startswith(b)), 0)
        if not zeros:
            return number
        more: set[tuple[int | str, ...]] = set()
        for reading in number.readings:
            whole, decimals = reading[0], reading[1] if len(reading) == 2 else ""
            if isinstance(whole, int) and isinstance(decimals, str) and len(decimals) <= zeros:
                more.add((int(f"{whole}{decimals}{'0' * (zeros - len(decimals))}"),))
        return Number(number.start, number.end, number.text, number.readings | more, number.parts)


def check_numbers(
    source: str, target: str, languages: tuple[str | None, str | None] = (None, None)
) -> CheckResult:
    """Compare the numbers of a text and its translation.

    Numbers agree across the ways to write them: 1,000.5 and 1.000,5; 9:15, 9.15 Uhr and 9 h 15;
    dates in any order; figures and words, months and their numbers, Roman numerals, where the
    languages are known. A 1 needs no counterpart. Of numbers that are words in both texts, only
    those are compared that are numbers for certain: from three on, and no parts of longer ones.

    Args:
        source: the text, what is protected blanked.
        target: its translation, the same.
        languages: codes of both.
    """
    left = NumberSide(source, "source", languages[0])
    right = NumberSide(target, "target", languages[1])
    found = compare_numbers(left, right)
    evidence = [_at(number, "source", "missing") for number in found.missing]
    evidence += [_at(number, "target", "added") for number in found.added]
    return counted("numbers", evidence or _different_words(left, right))


class NumberComparison(NamedTuple):
    """The figures of a text and its translation.

    Args:
        pairs: numbers of both that agree, one with one.
        told: numbers of the text that the translation has in another form, such as words.
        missing: numbers of the text that the translation has in no form.
        added: numbers of the translation that the text has in no form.
    """

    pairs: Sequence[tuple[Number, Number]]
    told: Sequence[Number]
    missing: Sequence[Number]
    added: Sequence[Number]


def compare_numbers(left: NumberSide, right: NumberSide) -> NumberComparison:
    """Compare the figures of a text and its translation."""
    if not left.numbers and not right.numbers:  # most texts
        return NumberComparison((), (), (), ())
    pairs, mine, others = _paired(left.numbers, right.numbers)
    mine, others = _without_parts(mine, others, right)
    others, mine = _without_parts(others, mine, left)
    told = [number for number in mine if right.tells(number)]
    return NumberComparison(
        pairs,
        told,
        [number for number in mine if number not in told],
        [number for number in others if not left.tells(number)],
    )


def _paired(
    left: Sequence[Number], right: Sequence[Number]
) -> tuple[list[tuple[Number, Number]], list[Number], list[Number]]:
    """Return the numbers that agree, one with one, and what is left of each side."""
    pairs: list[tuple[Number, Number]] = []
    alone, rest = [], list(right)
    for number in left:
        fits = [other for other in rest if other.readings & number.readings]
        if not fits:
            alone.append(number)
            continue
        # Of several the one that is written alike, or has the fewest other readings.
        best = min(fits, key=lambda other: (other.text != number.text, len(other.readings)))
        pairs.append((number, best))
        rest.remove(best)
    return pairs, alone, rest


def _without_parts(
    numbers: Sequence[Number], others: Sequence[Number], opposite: NumberSide
) -> tuple[list[Number], list[Number]]:
    """Return numbers without dates, times and the like whose parts the other text says apart.

    Args:
        numbers: those left over of one text.
        others: those left over of the other text.
        opposite: the other text.
    """
    alone, rest = [], list(others)
    for number in numbers:
        used: list[Number] = []
        for part in number.parts:
            single = [each for each in rest if each not in used and not each.parts]
            match = next((each for each in single if _has_part(each, part)), None)
            if match is not None:
                used.append(match)
            elif not opposite.says(part):
                alone.append(number)
                break
        else:
            if not number.parts:
                alone.append(number)
            rest = [each for each in rest if each not in used]
    return alone, rest


def _has_part(number: Number, part: int) -> bool:
    return (part,) in number.readings or any(
        len(reading) == 1 and isinstance(reading[0], int) and reading[0] % 100 == part
        for reading in number.readings
        if part < 100 and number.end - number.start == 4  # a year of four digits
    )


def _different_words(left: NumberSide, right: NumberSide) -> list[Evidence]:
    """Return words for numbers that the other text does not have in any form."""
    if left.tells_times or right.tells_times or left.language is None or right.language is None:
        return []
    return [
        Evidence(side.side, *word.span(), word[0], note)
        for side, other, note in ((left, right, "missing"), (right, left, "added"))
        for word, value in side.spoken()
        # Seven in the evening is "neunzehn Uhr".
        if not any(map(other.has_value, (value, value + 12, value - 12)))
    ]


def _at(number: Number, side: Side, note: str) -> Evidence:
    return Evidence(side, number.start, number.end, number.text, note)


def _roman(numeral: str) -> int:
    values = [_ROMAN_VALUES[letter] for letter in numeral]
    return sum(
        -value if value < following else value
        for value, following in zip(values, [*values[1:], 0], strict=True)
    )
