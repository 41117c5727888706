"""Quantities with units, which a translation may convert: 5 miles, 8 km.

The names of units in a language are those of CLDR.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from heedful.apps.quality.number_forms import Number
from heedful.apps.quality.number_words import scale_word

TOLERANCE = 0.1
"""Largest relative difference of quantities in different units: "10 feet" is "3 Meter"."""

_FAHRENHEIT = 5 / 9

# Sizes of units in the base unit of their dimension: metre, gram, litre, square metre, degree
# Celsius, second.
_UNITS: Mapping[str, Mapping[str, float]] = {
    "length": {
        "length-millimeter": 0.001,
        "length-centimeter": 0.01,
        "length-meter": 1,
        "length-kilometer": 1000,
        "length-inch": 0.0254,
        "length-foot": 0.3048,
        "length-yard": 0.9144,
        "length-mile": 1609.344,
    },
    "mass": {
        "mass-gram": 1,
        "mass-kilogram": 1000,
        "mass-tonne": 1e6,
        "mass-ounce": 28.35,
        "mass-pound": 453.6,
        "mass-stone": 6350,
    },
    "volume": {
        "volume-milliliter": 0.001,
        "volume-liter": 1,
        "volume-pint": 0.473,
        "volume-gallon": 3.785,
        "volume-barrel": 159,
    },
    "area": {
        "area-square-meter": 1,
        "area-hectare": 1e4,
        "area-square-kilometer": 1e6,
        "area-acre": 4046.9,
        "area-square-mile": 2.59e6,
        "area-square-foot": 0.0929,
    },
    "temperature": {
        "temperature-celsius": 1,
        "temperature-fahrenheit": _FAHRENHEIT,
        "angle-degree": 0,  # "90 degrees" may be either
    },
    "duration": {
        "duration-minute": 60,
        "duration-hour": 3600,
        "duration-day": 86_400,
        "duration-week": 604_800,
        "duration-month": 2_629_800,
        "duration-year": 31_557_600,
        "duration-decade": 315_576_000,
        "duration-century": 3_155_760_000,
    },
}
_COLLOQUIAL: Mapping[str, tuple[str, float]] = {
    "kilo": ("mass", 1000),
    "kilos": ("mass", 1000),
    "mph": ("length", 1609.344),
    "stundenkilometer": ("length", 1000),
    "°": ("temperature", 0),
    "f": ("temperature", _FAHRENHEIT),
    "c": ("temperature", 1),
    "fortnight": ("duration", 1_209_600),
    "fortnights": ("duration", 1_209_600),
}
_GAP = 5
"""Maximum number of characters between the parts of "five feet, two inches"."""

_BETWEEN = re.compile(r"[ \u00a0\u202f-]?(°[CF]?|[^\W\d_]+[²]?(?: [^\W\d_]+)?)")
_RANGE = re.compile(r"\s?[-–—]\s?|\s(?:to|or|and|bis|oder|und|à|ou|et)\s")
_WORD = re.compile(r"[^\W\d_]+")


class Amount(NamedTuple):
    """A number of units and its precision.

    Args:
        value: size in the base unit of the dimension.
        step: precision, the size of the last significant digit: 100 for "three hundred", 0.01 for
            "1.58"; 2.5 times as much for a last digit 5, which may come from rounding to fives.
    """

    value: float
    step: float

    def times(self, size: float) -> Amount:
        """Return the amount times the size of a unit."""
        return Amount(self.value * size, self.step * size)


class Quantity(NamedTuple):
    """A number and its unit.

    Args:
        dimension: name of the dimension, such as length.
        amounts: sizes in the base unit of the dimension, one for each reading of the number.
        numbers: numbers of the quantity in the text; none for a unit alone, as in "a pound".
        units: sizes of the units in the base unit.
    """

    dimension: str
    amounts: frozenset[Amount]
    numbers: tuple[Number, ...]
    units: frozenset[float]

    @property
    def is_metric(self) -> bool:
        """True if the units are metric, or of time, whose conversions need no rounding."""
        return self.dimension == "duration" or all(
            float(f"{size:.0e}") == size for size in self.units
        )


def find_quantities(text: str, numbers: Iterable[Number], language: str) -> list[Quantity]:
    """Return the quantities of a text; "five feet two inches" is one quantity.

    Args:
        text: text to search.
        numbers: numbers of the text, in digits and in words.
        language: code of its language.
    """
    units = unit_names(language)
    found: list[Quantity] = []
    taken: set[int] = set()
    end, last = -1, 0.0
    ordered = sorted(numbers, key=lambda number: number.start)
    for place, number in enumerate(ordered):
        following = ordered[place + 1] if place + 1 < len(ordered) else None
        last_of_range = place
        if following is not None and _RANGE.fullmatch(text, number.end, following.start):
            last_of_range += 1  # "5-10 acres": both numbers have the unit
        numbers_end = ordered[last_of_range].end
        scale = scale_word(language).match(text, numbers_end)
        match = _BETWEEN.match(text, numbers_end if scale is None else scale.end())
        named = _unit(match[1], units) if match is not None else None
        if match is None or named is None:
            continue
        dimension, size, length = named
        taken.add(match.start(1))
        if last_of_range > place or dimension == "temperature":
            found += _quantities(dimension, size, number)
            continue
        amounts = {amount.times(size) for amount in _amounts(number)}
        after = match.start(1) + length
        used: tuple[Number, ...] = (number,)
        sizes = frozenset({size})
        if size == 1 and following is not None and following.start - after <= 1:
            # "einen Meter achtzig", "2 mètres 10"
            amounts = _sums(amounts, (each.times(0.01) for each in _amounts(following)))
            used = (number, following)
        is_near = (
            bool(found) and 0 <= number.start - end <= _GAP and "(" not in text[end : number.start]
        )
        if is_near and found[-1].dimension == dimension and size < last:  # feet and inches
            before = found.pop()
            amounts = _sums(before.amounts, amounts)
            used = (*before.numbers, *used)
            sizes |= before.units
        found.append(Quantity(dimension, frozenset(amounts), used, sizes))
        end, last = after, size
    return found + _alone(text, taken, units, ordered)


def _quantities(dimension: str, size: float, number: Number) -> list[Quantity]:
    """Return the quantity of a number and its unit; two for degrees of an unknown scale."""
    sizes = (1, _FAHRENHEIT) if dimension == "temperature" and not size else (size,)
    return [
        Quantity(
            dimension,
            frozenset(_in_base(amount, each) for amount in _amounts(number)),
            (number,),
            frozenset({each}),
        )
        for each in sizes
    ]


def _in_base(amount: Amount, size: float) -> Amount:
    """Return an amount in the base unit; degrees Fahrenheit count from another zero."""
    amount = amount.times(size)
    return amount if size != _FAHRENHEIT else Amount(abs(amount.value - 32 * size), amount.step)


def same_quantity(source: Quantity, target: Quantity) -> bool:
    """Return True if two quantities agree, to the precision of the translation.

    "5 ft 2 in" agrees with "1.58 m", but not with "1.68 m"; "160 km" agrees with "about 100 miles".

    Args:
        source: quantity of a text.
        target: quantity of its translation.
    """
    if source.dimension != target.dimension or source.units == target.units:
        return False
    if source.is_metric == target.is_metric:  # conversions without rounding must be exact
        return any(
            abs(a.value - b.value) <= 1e-3 * b.value for a in source.amounts for b in target.amounts
        )
    return any(
        abs(a.value - b.value) <= min(b.step, TOLERANCE * max(a.value, b.value))
        for a in source.amounts
        for b in target.amounts
    )


def _alone(
    text: str,
    taken: set[int],
    units: Mapping[str, tuple[str, float]],
    numbers: Sequence[Number],
) -> list[Quantity]:
    """Return units without a number, as in "a pound" and "einen Meter achtzig"."""
    found = []
    for match in _WORD.finditer(text):
        if match.start() in taken or len(match[0]) < 3:
            continue
        known = units.get(match[0].casefold())
        if known is None:
            continue
        dimension, size = known
        if dimension == "temperature":  # "a degree in law"
            continue
        following = next((n for n in numbers if n.start == match.end() + 1), None)
        if size == 1 and following is not None:
            parts = (amount.times(0.01) for amount in _amounts(following))
            amounts = frozenset(_sums((Amount(1, 1),), parts))
            found.append(Quantity(dimension, amounts, (following,), frozenset({size})))
        else:
            one = frozenset({Amount(size, size)})
            found.append(Quantity(dimension, one, (), frozenset({size})))
    return found


def _sums(larger: Iterable[Amount], smaller: Iterable[Amount]) -> set[Amount]:
    """Return all sums of a larger and a smaller amount, with the precision of the latter."""
    parts = list(smaller)
    return {Amount(a.value + b.value, b.step) for a in larger for b in parts}


def _amounts(number: Number) -> list[Amount]:
    """Return the possible values of a number, with the precision of its last nonzero digit."""
    amounts = []
    for reading in number.readings:
        whole, decimals = str(reading[0]), ""
        if len(reading) == 2 and isinstance(reading[1], str):
            decimals = reading[1].rstrip("0")
        elif len(reading) != 1 or not isinstance(reading[0], int):
            continue
        digits = (whole + decimals).rstrip("0")
        step = 10.0 ** (len(whole) - len(digits)) if digits else 1.0
        amounts.append(
            Amount(float(f"{whole}.{decimals or 0}"), 2.5 * step if digits[-1:] == "5" else step)
        )
    return amounts


def _unit(text: str, units: Mapping[str, tuple[str, float]]) -> tuple[str, float, int] | None:
    """Return the unit at the start of a text: dimension, size, and length of its name."""
    words: Sequence[str] = text.split(" ")
    for count in range(len(words), 0, -1):
        name = " ".join(words[:count])
        for form in (name.casefold(), name.casefold().removesuffix("n")):  # "Kilometern"
            if form in units:
                return (*units[form], len(name))
    return None


@functools.cache
def unit_names(language: str) -> Mapping[str, tuple[str, float]]:
    """Return names and symbols of units, each with its dimension and size."""
    from babel import Locale, UnknownLocaleError
    from babel.units import UnknownUnitError, format_unit

    locales = (language, "en_GB") if language.startswith("en") else (language,)
    names: dict[str, tuple[str, float]] = {}
    for dimension, sizes in _UNITS.items():
        # Short names of times are words or other units: m, c, dec.
        lengths: tuple[Literal["long", "short"], ...] = ("long", "short")
        lengths = lengths[:1] if dimension == "duration" else lengths
        for unit, size in sizes.items():
            for code in locales:
                try:
                    locale = Locale.parse(code.replace("-", "_"))
                    forms = {
                        format_unit(number, unit, length=length, locale=locale)
                        for number in (1, 2)
                        for length in lengths
                    }
                except (UnknownLocaleError, UnknownUnitError, ValueError):
                    continue
                for form in forms:
                    name = re.sub(r"^[\d\s]+|[\d\s]+$", "", form).casefold()
                    if name not in _WORDS_TOO:
                        names.setdefault(name, (dimension, size))
    return {**_COLLOQUIAL, **names}


_WORDS_TOO = frozenset(("in", ""))
"""Symbols of units that are also words."""
