"""The check of numbers: source and translation have the same numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from heedful.apps.quality.kept_parts import stays_in
from heedful.apps.quality.measures import find_quantities, same_quantity
from heedful.apps.quality.number_forms import Number, pair_numbers
from heedful.apps.quality.number_side import NumberSide, has_value
from heedful.apps.quality.reports import CheckResult, Evidence, Languages, Side, counted


def check_numbers(
    source: str,
    target: str,
    languages: Languages = (None, None),
    code: tuple[str, str] = ("", ""),
) -> CheckResult:
    """Compare the numbers of a text and its translation.

    Numbers agree in any notation: 1,000.5 and 1.000,5; 9:15, 9.15 Uhr and 9 h 15; dates in any
    order; if the languages are known, also digits and words, months and their numbers, and Roman
    numerals; equal quantities in different units. A 1 needs no counterpart. Among number words,
    only unambiguous ones from three on need a counterpart.

    Args:
        source: source text with spaces in place of protected parts.
        target: translation with spaces in place of protected parts.
        languages: codes of source and target language.
        code: both texts with spaces in place of all but the parts protected in one text only.
    """
    left = NumberSide(source, "source", languages[0], code[0])
    right = NumberSide(target, "target", languages[1], code[1])
    found = compare_numbers(left, right)
    paired = {id(number) for pair in found.pairs for number in pair}
    evidence = [_at(number, "source", "missing") for number in found.missing]
    evidence += [_at(number, "target", "added") for number in found.added]
    evidence += [_at(number, "source", "missing") for number in _half_told(left, right, paired)]
    evidence += [_at(number, "target", "added") for number in _half_told(right, left, paired)]
    evidence += _lone_units(left, right) + _lone_units(right, left)
    return counted("numbers", evidence + _different_words(left, right, paired))


_UNIT = re.compile(
    r"(?<=[^\s'\"‘’“”«])\s{0,2}(%)(?![\w(%-])"
    r"|(?<=[^\W\d])[ \u00a0\u202f](k?g|[km]m|cm)(?![\w'’.+-])"
    r"|\b((?:um|bis|ab|gegen|von) Uhr)\b"
)
"""Signs and units that need a preceding number, and "Uhr" after a preposition without a number."""

_LONE = "without a number"
_SIGN_ALONE = re.compile(r"(?<![\d \u00a0\u202f])[ \u00a0\u202f]?%|^\s*%")


def _lone_units(own: NumberSide, other: NumberSide) -> list[Evidence]:
    """Return units without a number, as in "( %)" and "um Uhr", if only one text has any."""
    if own.language is None:
        return []
    units = list(_UNIT.finditer(own.text))
    if not units or _SIGN_ALONE.search(other.text):
        return []
    ends = {each.end for each in (*own.numbers, *own.spoken)}
    return [
        Evidence(own.side, *match.span(match.lastindex or 0), match[match.lastindex or 0], _LONE)
        for match in units
        if match.start() not in ends and not own.text[match.start() - 1].isdigit()
    ]


class NumberComparison(NamedTuple):
    """The digits of a text compared with those of its translation.

    Args:
        pairs: pairs of numbers that agree.
        told: numbers of the text that the translation has in another form, such as words.
        missing: numbers of the text without a counterpart.
        added: numbers of the translation without a counterpart.
    """

    pairs: Sequence[tuple[Number, Number]]
    told: Sequence[Number]
    missing: Sequence[Number]
    added: Sequence[Number]


def compare_numbers(left: NumberSide, right: NumberSide) -> NumberComparison:
    """Compare the numbers in digits of a text and its translation."""
    if not left.numbers and not right.numbers:  # a shortcut for most texts
        return NumberComparison((), (), (), ())
    pairs, mine, others = pair_numbers(left.numbers, right.numbers)
    mine, others = _without_parts(mine, others, right)
    others, mine = _without_parts(others, mine, left)
    told, missing = _told(mine, left, right)
    _, added = _told(others, right, left)
    if missing or added:
        converted = _converted(left, right)
        told += [number for number in missing if id(number) in converted]
        missing, added = (
            [number for number in each if id(number) not in converted] for each in (missing, added)
        )
    return NumberComparison(pairs, told, missing, added)


def _told(
    numbers: Sequence[Number], own: NumberSide, other: NumberSide
) -> tuple[list[Number], list[Number]]:
    """Return the numbers of one text that have another form in the other text, and the rest."""
    told: list[Number] = []
    rest: list[Number] = []
    for number in numbers:
        before = sum(bool(number.readings & each.readings) for each in told)
        (told if other.tells(number, own, before) else rest).append(number)
    return told, rest


def _converted(left: NumberSide, right: NumberSide) -> set[int]:
    """Return the identities of the numbers in quantities that both texts have, in any unit."""
    if left.language is None or right.language is None:
        return set()
    mine, others = (
        find_quantities(side.text, (*side.numbers, *side.spoken), side.language or "")
        for side in (left, right)
    )
    sides = tuple(mine), tuple(others)
    # In "a metre is 100 centimetres", the metre agrees with the other text's metre, not with 100.
    for one in sides[0]:
        same = next((o for o in others if o.units == one.units and o.amounts & one.amounts), None)
        if same is not None:
            mine.remove(one)
            others.remove(same)
    found: set[int] = set()
    for one in mine:
        other = next((each for each in others if same_quantity(one, each)), None)
        if other is not None:
            others.remove(other)
            found.update(id(number) for number in (*one.numbers, *other.numbers))
    # Of "161 feet (49 metres)", a translation may keep only the metres.
    for own, opposite in (sides, sides[::-1]):
        kept = {size for each in opposite for size in each.units}
        for one in own:
            if not one.units & kept and any(same_quantity(one, each) for each in own):
                found.update(id(number) for number in one.numbers)
    return found


def _without_parts(
    numbers: Sequence[Number], others: Sequence[Number], opposite: NumberSide
) -> tuple[list[Number], list[Number]]:
    """Return numbers, except dates and times whose parts the other text has separately.

    Args:
        numbers: unmatched numbers of one text.
        others: unmatched numbers of the other text.
        opposite: numbers of the other text.
    """
    alone, rest = [], list(others)
    for number in numbers:
        used: list[Number] = []
        for part in number.parts:
            match = next((e for e in rest if e not in used and _has_part(e, part)), None)
            if match is not None:
                used.append(match)
            elif not (opposite.occurrences(part) or opposite.says_month(part)):
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


def _half_told(own: NumberSide, other: NumberSide, paired: set[int]) -> list[Number]:
    """Return missing numbers of code, if the other text has some numbers of the code."""
    free = [number for number in other.numbers if id(number) not in paired]
    missing = [
        number for number in own.code if not any(number.readings & each.readings for each in free)
    ]
    if len(missing) == len(own.code):  # the check of placeholders reports it
        return []
    return [number for number in missing if not other.tells(number, own)]


def _different_words(left: NumberSide, right: NumberSide, paired: set[int]) -> list[Evidence]:
    """Return number words without a counterpart in the other text.

    Args:
        left: text with the words.
        right: other text.
        paired: identities of numbers in digits that are matched already, and cannot match words.
    """
    if left.language is None or right.language is None:
        return []
    alone = [
        (side, number)
        for side, other in ((left, right), (right, left))
        for number in (*(each for each in side.spoken if each.is_certain), *side.roman)
        if not _is_told(number, other, paired) and not other.tells_otherwise(number, side.text)
        if not _is_repeated(number, side)
        # "Five Eyes" is a name that stays.
        and not stays_in(number.text, other.text)
    ]
    if left.has_times_in_words or right.has_times_in_words:
        # "Half past two" agrees with 2:30 and "halb drei".
        alone = [
            (side, number)
            for side, number in alone
            if not number.readings & {(value,) for value in _OF_CLOCKS}
        ]
    if not alone:
        return []
    converted = _converted(left, right)
    return [
        _at(number, side.side, "missing" if side is left else "added")
        for side, number in alone
        if id(number) not in converted
    ]


_OF_CLOCKS = (*range(25), 30, 45)


def _is_repeated(number: Number, side: NumberSide) -> bool:
    """Return True if digits in brackets repeat the number: "thirty (30) days"."""
    return any(
        number.readings & each.readings
        and re.fullmatch(r"\s?(?:[^\W\d]+\s)?\(", side.text[number.end : each.start])
        for each in side.numbers
    )


def _is_told(number: Number, other: NumberSide, paired: set[int]) -> bool:
    """Return True if the other text has the number that these words name."""
    if (2,) in number.readings and other.may_mean_two:
        return True
    free = [each for each in (*other.numbers, *other.code) if id(each) not in paired]
    if any(number.readings & each.readings for each in (*free, *other.spoken)):
        return True
    values = [r[0] for r in number.readings if len(r) == 1 and isinstance(r[0], int)]
    return any(
        other.says(value)
        or has_value(free, value)
        # "in the nineties" agrees with "1990s".
        or (value % 10 == 0 and any((value % 100,) in each.readings for each in free))
        for value in values
    )


def _at(number: Number, side: Side, note: str) -> Evidence:
    return Evidence(side, number.start, number.end, number.text, note)
