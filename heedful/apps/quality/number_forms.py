"""Numbers in a text, each with its possible values.

"1,000" is a thousand in English and one in German; "9.15" is a decimal number or a time. So a
number has several readings, and two numbers agree if they share a reading. The language is not
considered, because people also write numbers in the forms of other languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Reading = tuple[int | str, ...]
"""One value: an integer, an integer and its decimals as text, hours and minutes, or a date."""


@dataclass(frozen=True)
class Number:
    """A number in a text.

    Args:
        start: index of its first character.
        end: index after its last character.
        text: spelling in the text.
        readings: possible values.
        parts: component numbers of a date or a time, which another text may have separately.
    """

    start: int
    end: int
    text: str
    readings: frozenset[Reading]
    parts: tuple[int, ...] = ()


# A space joins only groups of three digits, after a first group that is not a year.
_TOKEN = re.compile(
    r"(?<!\d)\d{1,3}(?:[ \u00a0\u202f\u2009]\d{3})+(?!\d)(?:[.,]\d+)?"
    r"|\d+(?:[.,:/'’٫٬-]\d+)*"
)
_SPACES = re.compile(r"[ \u00a0\u202f\u2009'’]")
_SEPARATORS = re.compile(r"[.,٫٬]")
HOURS = re.compile(
    r"\s?(?:(?:Uhr|heures?|uur|horas?)\b|h(?![^\W\d_]))(?:[ \u00a0]?(\d\d)(?!\d))?",
    re.IGNORECASE,
)
_DAYTIME = re.compile(r"\s?(?:a\.?m|p\.?m)\b", re.IGNORECASE)
_HALF = re.compile(r"\s?½|\s1/2(?![\d/])")  # 3½, 3 1/2
_ZONE = re.compile(r"\s?(?:GMT|UTC|hours|hrs)\b")
_DECADE = re.compile(r"['’]?s\b|er(?:n|s)?\b")
_HALF_DAY = 12
_LONGEST = 400
"""Maximum number of characters that are converted; Python refuses more than 4,300 digits."""
_SMALL_DIGITS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")  # as in CO₂, but not exponents such as ²


def find_numbers(text: str) -> list[Number]:
    """Return the numbers of a text, in their order."""
    # One character replaces one character, so indices stay the same.
    text = text.translate(_SMALL_DIGITS)
    numbers: list[Number] = []
    end = 0
    for match in _TOKEN.finditer(text):
        if match.start() < end:  # minutes of the preceding time
            continue
        if len(match[0]) > _LONGEST:
            numbers.append(Number(*match.span(), match[0], frozenset({("as it stands", match[0])})))
            continue
        for number in _numbers_at(text, match.start(), match.end()):
            numbers.append(number)
            end = number.end
    return numbers


def _numbers_at(text: str, start: int, end: int) -> Iterator[Number]:
    """Parse a token: one number, or several numbers joined by punctuation."""
    token = text[start:end]
    if re.fullmatch(r"\d{1,4}([/-])\d{1,2}\1\d{1,4}", token):
        yield _date_or_version(start, end, token, is_date=True)
    elif re.fullmatch(r"[12]\d{3}[/-]\d\d", token):  # 2017/18 is 2017/2018
        yield from _numbers_at(text, start, start + 4)
        readings = {(int(token[5:]),), (int(token[:2] + token[5:]),)}
        yield Number(start + 5, end, token[5:], frozenset(readings))
    elif re.search(r"[/-]", token):  # a range or a fraction: separate numbers
        for piece in re.finditer(r"[^/-]+", token):
            yield from _numbers_at(text, start + piece.start(), start + piece.end())
    elif ":" in token:
        yield _time_or_ratio(text, start, end)
    else:
        yield _decimal_or_whole(text, start, end)


def _date_or_version(start: int, end: int, token: str, *, is_date: bool) -> Number:
    """Parse a date in any order, with a year of two or four digits, or a version number."""
    parts = tuple(map(int, re.findall(r"\d+", token)))
    readings: set[Reading] = {parts}
    if is_date:
        readings.add(("date", *sorted(part % 100 for part in parts)))
    # Days and months are not 0, so 1.0.1 is a version, not three numbers.
    return Number(start, end, token, frozenset(readings), parts if is_date and all(parts) else ())


def _time_or_ratio(text: str, start: int, end: int) -> Number:
    token = text[start:end]
    parts = tuple(map(int, re.findall(r"\d+", token)))
    # A score such as 2:0, which may be written 2-0, is no hour.
    is_clock = re.fullmatch(r"\d{1,2}(?::[0-5]\d){1,2}", token) and parts[0] <= 24
    if not is_clock:
        return Number(start, end, token, frozenset({parts}), parts)
    after = HOURS.match(text, end) or _DAYTIME.match(text, end)
    readings = _clock(parts)
    return Number(start, after.end() if after else end, token, readings, parts)


def _clock(parts: tuple[int, ...]) -> frozenset[Reading]:
    """Return the readings of a time, also 12 hours later, and without minutes for full hours."""
    if parts[0] > 24:
        return frozenset({parts})
    hours = {parts[0], (parts[0] + _HALF_DAY) % 24, parts[0] or 24}
    readings: set[Reading] = {(hour, *parts[1:]) for hour in hours}
    if not any(parts[1:]):
        readings |= {(hour,) for hour in hours}
    return frozenset(readings)


def _decimal_or_whole(text: str, start: int, end: int) -> Number:
    token = text[start:end]
    hours = HOURS.match(text, end)
    if hours and re.fullmatch(r"\d{1,2}(?:\.\d\d)?", token):  # 14 Uhr, 9.15 Uhr, 6 h 30
        parts = tuple(map(int, token.split(".")))
        parts += (int(hours[1]),) if hours[1] and len(parts) == 1 else ()
        return Number(start, hours.end(), text[start : hours.end()], _clock(parts), parts)
    daytime = _DAYTIME.match(text, end)
    if daytime and re.fullmatch(r"\d{1,2}", token):
        return Number(start, daytime.end(), token, _clock((int(token), 0)), (int(token),))
    readings: set[Reading]
    digits = _SPACES.sub("", token)
    groups = _SEPARATORS.split(digits)
    marks = _SEPARATORS.findall(digits)
    if len(groups) == 1:
        readings = set(_whole(text, start, end, int(digits)))
        if re.search(r"(?:^|[\s(=])[.,]$", text[max(start - 2, 0) : start]):  # as in ".66"
            readings.add((0, digits.rstrip("0")))
        half = _HALF.match(text, end)
        if half is not None:
            return Number(
                start, half.end(), text[start : half.end()], frozenset({(int(digits), "5")})
            )
        return Number(start, end, token, frozenset(readings), _separate_numbers(token))
    if len(set(marks)) == 1 and len(marks) > 1:
        if re.fullmatch(r"\d+(?:\D\d{3})+|\d\d?(?:\D\d\d)+\D\d{3}", digits):  # 2,06,737
            value = int("".join(groups))
            return Number(start, end, token, frozenset({(value,)}))
        return _date_or_version(start, end, token, is_date=len(groups) == 3)
    readings = set()
    if len(marks) == 1 and len(groups[1]) == 3 and 1 <= len(groups[0]) <= 3 and groups[0] != "0":
        readings.add((int(groups[0] + groups[1]),))
    if len(marks) == 1 and len(groups[1]) == 2:  # 9.15 as a time
        readings.add((int(groups[0]), int(groups[1])))
    whole, decimals = int("".join(groups[:-1])), groups[-1]
    readings.add((whole, decimals.rstrip("0") if len(decimals) != 3 else decimals))
    if not decimals.strip("0") and len(decimals) != 3:
        readings.add((whole,))
    is_date = text[end : end + 1] == "."  # as in "27.2."
    is_apart = len(groups) == 2 and (len(decimals) not in (1, 3) or is_date)
    parts = tuple(map(int, groups)) if is_apart else ()
    return Number(start, end, token, frozenset(readings), parts)


def _whole(text: str, start: int, end: int, value: int) -> frozenset[Reading]:
    readings: set[Reading] = {(value,)}
    if _DECADE.match(text, end) and value % 10 == 0:  # the 1990s, die 90er
        readings.add((value % 100 or value // 100 + 1,))  # the 1700s are the 18th century
    if end - start == 4 and (text[start] == "0" or _ZONE.match(text, end)):  # 0200GMT
        readings.add((value // 100, value % 100))
    if end - start == 2 and text[start - 1 : start] in ("'", "’"):  # '98
        readings |= {(1900 + value,), (2000 + value,)}
    return frozenset(readings)


def _separate_numbers(token: str) -> tuple[int, ...]:
    """Return the numbers between spaces, in case they are not groups of digits."""
    pieces = re.split(r"[ \u00a0\u202f\u2009]", token)
    # A 1 needs no counterpart, so "1 100" as two numbers would agree with 100.
    if len(pieces) == 1 or pieces[0] == "1" or any(piece.startswith("0") for piece in pieces):
        return ()
    return tuple(map(int, pieces))


def pair_numbers(
    left: Sequence[Number], right: Sequence[Number]
) -> tuple[list[tuple[Number, Number]], list[Number], list[Number]]:
    """Return pairs of numbers that agree, and the remaining numbers of each side."""
    pairs: list[tuple[Number, Number]] = []
    waiting, rest = [], list(right)
    for number in left:  # equal spellings first: "1.0" pairs with "1.0" rather than with "1"
        same = next(
            (o for o in rest if o.text == number.text and o.readings & number.readings), None
        )
        if same is None:
            waiting.append(number)
            continue
        pairs.append((number, same))
        rest.remove(same)
    alone = []
    for number in waiting:
        fits = [other for other in rest if other.readings & number.readings]
        if not fits:
            alone.append(number)
            continue
        # The least ambiguous partner comes first, which leaves other partners to later numbers.
        best = min(fits, key=lambda other: len(other.readings))
        pairs.append((number, best))
        rest.remove(best)
    return sorted(pairs, key=lambda pair: pair[0].start), alone, rest
