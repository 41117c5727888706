"""The numbers of one text, and the words that may stand for numbers of another text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from heedful.apps.quality.number_forms import Number, find_numbers
from heedful.apps.quality.number_words import (
    base_word,
    clock_words,
    collective,
    count_number_words,
    months,
    normalise,
    scales,
    words_for_two,
)
from heedful.apps.quality.reports import Side
from heedful.apps.quality.spoken_numbers import SpokenNumber, find_spoken_numbers

# The French words "Le" and "Ce" are excluded.
_ROMAN = re.compile(r"\b(?!Le\b|Ce\b)([IVXLC]+)(?:e|\.|th|st|nd|rd)?\b")
_BASE = re.compile(r"\bbas(?:e|is)\b", re.IGNORECASE)
_AFTER_BASE = re.compile(r"\bbas(?:e|is)\s$", re.IGNORECASE)
_CENTURY = re.compile(r"\W*(?:th|st|nd|rd|e|er)?\W*(?:centur|Jahrhundert|siècle)")
_DISEASE = re.compile(r"\b(covid|sars-cov)([- ](?:19|2))\b", re.IGNORECASE)
_SQUARE = re.compile(r"(?<=\d)([ \u00a0\u202f]?[kcdm]?m)2\b")  # 120 km2
_VERBS = {("may", "en"), ("march", "en")}
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


class NumberSide:
    """The numbers of one text, and the words that may stand for numbers of the other text.

    Args:
        text: text with spaces in place of protected parts, such as addresses.
        side: source or target of the translation.
        language: code of the language; None to skip number words.
        code: text with spaces in place of all but the protected parts that the other text lacks.
            Their numbers may match numbers of the other text, but need no counterpart.
    """

    def __init__(self, text: str, side: Side, language: str | None, code: str = "") -> None:
        # The 19 of COVID-19 is blanked, since a translation may write Covid.
        text = _DISEASE.sub(lambda match: match[1] + " " * len(match[2]), text)
        self.text = text = _SQUARE.sub(r"\1²", text)
        self.side: Side = side
        self.language = language
        self._scale_words: list[tuple[int, int]] = []
        self.numbers = [self._scaled(number) for number in find_numbers(text)]
        self.code = find_numbers(code)
        self._occurrences: dict[int, int] = {}

    @functools.cached_property
    def _unspoken(self) -> str:
        """The normalised text, without the words of `spoken`."""
        rest, end = [], 0
        spoken = [(number.start, number.end) for number in self.spoken]
        for start, after in sorted(spoken + self._scale_words):
            rest.append(self.text[end:start])
            end = after
        return normalise(" ".join([*rest, self.text[end:]]))

    @functools.cached_property
    def normalised(self) -> str:
        """The normalised text, in which words are searched."""
        return normalise(self.text)

    @functools.cached_property
    def spoken(self) -> list[SpokenNumber]:
        """Numbers in words."""
        if self.language is None:
            return []
        taken = [(number.start, number.end) for number in self.numbers] + self._scale_words
        return [
            spoken
            for spoken in find_spoken_numbers(self.text, self.language)
            if not any(spoken.start < end and start < spoken.end for start, end in taken)
        ]

    def tells(self, number: Number, other: NumberSide, before: int = 0) -> bool:
        """Return True if this text may write a number of the other text in another form.

        Args:
            number: number in digits.
            other: the other text; words that match its number words cannot match its digits.
            before: numbers of the same value that are matched already.
        """
        if any(number.readings & each.readings for each in self.code):
            return True
        for reading in number.readings:
            if len(reading) == 1 and isinstance(reading[0], int):
                value = reading[0]
                # A 1 may be an article or a pronoun, except for "1.0" and the 1 of "1 Million".
                if value == 1 and len(number.text) == 1 and len(number.readings) == 1:
                    return True
                if value != 1 and self.occurrences(value) - other.occurrences(value) > before:
                    return True
            elif any(reading in each.readings for each in self.spoken) or (
                set(reading) != {1}
                # the "no" of "no longer" is not the 0 of 1.0.0
                and (len(reading) < 3 or 0 not in reading)
                and all(isinstance(v, int) and self.says(v) for v in reading)
            ):
                return True
        return self._tells_time(number) or self.tells_otherwise(number, other.text, before)

    def tells_otherwise(self, number: Number, text: str, before: int = 0) -> bool:
        """Return True for a number that other words may express: bases, centuries, months.

        Args:
            number: number in digits or in words.
            text: other text, which contains the number.
            before: numbers of the same value that are matched already.
        """
        left, right = text[: number.start], text[number.end :]
        for value in (r[0] for r in number.readings if len(r) == 1 and isinstance(r[0], int)):
            base = base_word(value) if _AFTER_BASE.search(left) else None
            if base is not None and _bases(text) - _bases(self.text) > before:
                return len(re.findall(rf"\b{base}", self.text, re.IGNORECASE)) > before
            if _CENTURY.match(right) and any(
                (value - 1) * 100 <= year < value * 100
                for each in self.numbers
                for year in (r[0] for r in each.readings if len(r) == 1)
                if isinstance(year, int)
            ):
                return True  # "the 1880s", "in den achtziger Jahren des 19. Jahrhunderts"
            if (left[-1:] == "/" or right[:1] == "/") and self.says_month(value):
                return True  # 9/11
        return False

    def has_value(self, value: int) -> bool:
        """Return True if the text has a whole number, in digits, in words or in a time."""
        return self.says(value) or has_value((*self.numbers, *self.code), value)

    def says(self, value: int) -> bool:
        """Return True if the text has a whole number in words."""
        return value == 1 or self.occurrences(value) > 0

    def occurrences(self, value: int) -> int:
        """Return how often the text has a whole number in words."""
        if value not in self._occurrences:
            self._occurrences[value] = self._count(value)
        return self._occurrences[value]

    def _count(self, value: int) -> int:
        roman = self._roman_values.count(value)
        if self.language is None:
            return roman
        spoken = sum((value,) in number.readings for number in self.spoken)
        named = count_number_words(value, self.language, self._unspoken)
        places = [(each.start, each.end) for each in self.spoken]
        others = sum(  # "second" counts once, although two lists contain it
            not any(start < match.end() and match.start() < end for start, end in places)
            for match in collective(value, self.language).finditer(self.text)
        )
        return roman + spoken + named + others

    def says_month(self, value: int) -> bool:
        """Return True if the text names the month with this number."""
        names = months(self.language) if self.language is not None and value <= 12 else {}
        words = re.findall(r"[^\W_]+", self.text)
        return any(
            names.get(word.casefold()) == value and (word, self.language) not in _VERBS
            for word in words
        )

    @property
    def has_clock_words(self) -> bool:
        """True if the text has words for minutes, such as "a quarter past"."""
        return clock_words(self.language or "").search(self.text) is not None

    @property
    def has_times_in_words(self) -> bool:
        """True if clock words occur outside of durations: "half past", "halb drei"."""
        places = [(each.start, each.end) for each in self.spoken]
        return any(
            not any(start <= match.start() < end for start, end in places)
            for match in clock_words(self.language or "").finditer(self.text)
        )

    @property
    def may_mean_two(self) -> bool:
        """True if a word may mean two: "either of us"."""
        return words_for_two(self.language or "").search(self.text) is not None

    def _tells_time(self, number: Number) -> bool:
        """Return True for 12:45 if the text contains "a quarter to one"."""
        return self.has_clock_words and any(
            len(reading) == 2
            and reading[1] in (15, 30, 45)
            and isinstance(reading[0], int)
            and any(self.has_value(hour % 12 or 12) for hour in (reading[0], reading[0] + 1))
            for reading in number.readings
        )

    @functools.cached_property
    def _roman_values(self) -> list[int]:
        return [_roman(match[1]) for match in _ROMAN.finditer(self.text)]

    @property
    def roman(self) -> list[Number]:
        """Return unambiguous Roman numerals, II to XXXIX."""
        return [
            Number(*match.span(1), match[1], frozenset({(_roman(match[1]),)}))
            for match in _ROMAN.finditer(self.text)
            if re.fullmatch(r"(?=..)X{0,3}(?:IX|IV|V?I{0,3})", match[1])
        ]

    def _scaled(self, number: Number) -> Number:
        """Return a number that is also read with its scale word: 3,000,000 for "3 million"."""
        after = re.match(r"[ \u00a0]?([^\W\d_]+)", self.text[number.end :])
        if self.language is None or after is None:
            return number
        word = after[1].casefold()
        zeros = next((n for b, n in scales(self.language).items() if word.startswith(b)), 0)
        if not zeros:
            return number
        self._scale_words.append((number.end + after.start(1), number.end + after.end(1)))
        more: set[tuple[int | str, ...]] = set()
        for reading in number.readings:
            whole, decimals = reading[0], reading[1] if len(reading) == 2 else ""
            if isinstance(whole, int) and isinstance(decimals, str) and len(decimals) <= zeros:
                more.add((int(f"{whole}{decimals}{'0' * (zeros - len(decimals))}"),))
        return Number(number.start, number.end, number.text, number.readings | more, number.parts)


def _bases(text: str) -> int:
    return len(_BASE.findall(text))


def has_value(numbers: Iterable[Number], value: int) -> bool:
    """Return True if any number equals a whole number, or has it as a part such as hours."""
    return any(
        value in reading
        for number in numbers
        for reading in number.readings
        # not as thousands: 3 is not a part of 3,000
        if all(isinstance(part, int) for part in reading)
    )


def _roman(numeral: str) -> int:
    values = [_ROMAN_VALUES[letter] for letter in numeral]
    return sum(
        -value if value < following else value
        for value, following in zip(values, [*values[1:], 0], strict=True)
    )
