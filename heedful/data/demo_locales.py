"""Locales of the demo: found by name, and how each writes a value, from CLDR through Babel.

The writers return None where CLDR says nothing about that form in that locale. Spaces that do not
break (U+00A0, U+202F) and direction marks are CLDR's and are kept.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Literal

import babel.dates
import babel.lists
import babel.localedata
import babel.numbers
import babel.units
from babel.core import Locale, UnknownLocaleError

from heedful.errors import DataError, suggest

Length = Literal["full", "long", "medium", "short"]
UnitLength = Literal["long", "short", "narrow"]
ListStyle = Literal["standard", "unit"]


def find_locale(name: str) -> Locale:
    """The locale called `name`: `fr`, `pt-BR`, `zh_Hant`.

    Raises:
        DataError: when CLDR has no such locale, or no names of months for it.
    """
    parts = name.replace("-", "_").split("_")
    try:
        locale = Locale.parse("_".join(parts))
        known = {
            part.lower() for part in str(locale).split("_")
        }  # Babel drops what it never heard of
        exists = known.issuperset(part.lower() for part in parts)
    except (UnknownLocaleError, ValueError, TypeError):
        exists = False
    if not exists:
        raise DataError(f"There is no locale {name!r}", where="CLDR", remedy=_suggest_locale(name))
    november = locale.months["format"]["wide"][11]
    if locale.language == "root" or november in ("M11", "11"):
        raise DataError(
            f"The locale {name!r} has no names of months",
            where="CLDR",
            remedy="Choose another locale, such as en, fr, de, ar, hi, ja, tr or zh",
        )
    return locale


def _suggest_locale(name: str) -> str:
    """A locale of nearly this name, or of the language with this English name."""
    languages = {text.lower(): code for code, text in Locale("en").languages.items()}
    if name.lower() in languages:
        return f"Did you mean {languages[name.lower()]!r}?"
    near = suggest(name.replace("-", "_"), babel.localedata.locale_identifiers()) or ""
    if near.startswith("Did you mean"):
        return near
    return "Give a language code, such as en, fr, de, ar, hi, ja, tr or zh"


def write_date(date: datetime.date, length: Length, locale: Locale) -> str:
    """A date in one of CLDR's four lengths."""
    return babel.dates.format_date(date, length, locale=locale)


def write_short_weekday_date(date: datetime.date, locale: Locale) -> str | None:
    """A date with its weekday, both names short."""
    try:
        return babel.dates.format_skeleton("yMMMEd", date, locale=locale, fuzzy=False)
    except KeyError:
        return None


def write_time(time: datetime.time, locale: Locale) -> str:
    """A time of day in hours and minutes."""
    return babel.dates.format_time(time, "short", locale=locale)


def join_date_time(date: str, time: str, length: Length, locale: Locale) -> str:
    """A written date and a written time as one, by the pattern for a date of that length."""
    pattern = str(babel.dates.get_datetime_format(length, locale=locale))
    return pattern.replace("'", "").replace("{0}", time).replace("{1}", date)


def write_price(amount: Decimal, currency: str, locale: Locale) -> str:
    """An amount with the currency's symbol."""
    return babel.numbers.format_currency(amount, currency, locale=locale)


def write_named_price(amount: Decimal, currency: str, locale: Locale) -> str | None:
    """An amount with the currency's name in the right plural."""
    text = babel.numbers.format_currency(amount, currency, locale=locale, format_type="name")
    return None if currency in text else text


def write_measure(amount: Decimal, unit: str, length: UnitLength, locale: Locale) -> str | None:
    """An amount with its unit. CLDR leaves a long form out where it equals the short one."""
    for each in (length, "short") if length == "long" else (length,):
        if _has_unit(unit, each, locale):
            return babel.units.format_unit(amount, unit, each, locale=locale)
    return None


def write_list(parts: Sequence[str], style: ListStyle, locale: Locale) -> str | None:
    """Written values one after the other: `standard` has an "and" before the last."""
    try:
        return babel.lists.format_list(parts, style=style, locale=locale)
    except (ValueError, KeyError):  # the style is missing, or its pattern for this many parts
        return None


@lru_cache(maxsize=4096)
def _has_unit(unit: str, length: UnitLength, locale: Locale) -> bool:
    try:
        # Babel writes the unit's identifier where it finds no pattern.
        return unit not in babel.units.format_unit(Decimal(3), unit, length, locale=locale)
    except babel.units.UnknownUnitError:
        return False
