"""A generated corpus: dates, times, prices and measures in two locales, formatted by CLDR.

Training, validation and test pairs share no date, no minute of the day, no amount and no duration;
a source text occurs once in the whole corpus, so it has one translation.

An item is drawn once and written in two locales. Where two styles look the same in the source
("2026/11/21" is Japanese for both "Nov 21, 2026" and "11/21/26"), the target has the first of these
styles, so that the translation is a function of the source.
"""

from __future__ import annotations

import datetime
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal, TypeVar, get_args

import babel.dates
import babel.lists
import babel.localedata
import babel.numbers
import babel.units
from babel.core import Locale, UnknownLocaleError

from heedful.errors import DataError, RunError, suggest

Length = Literal["full", "long", "medium", "short"]
LENGTHS: tuple[Length, ...] = get_args(Length)
UnitLength = Literal["long", "short", "narrow"]
ITEM_LENGTHS: tuple[UnitLength, ...] = ("long", "short")
ListStyle = Literal["standard", "unit"]


def find_locale(name: str) -> Locale:
    """Return the locale called `name`: `fr`, `pt-BR`, `zh_Hant`.

    Raises:
        DataError: when CLDR has no such locale, or no names of months for it.
    """
    parts = name.replace("-", "_").split("_")
    try:
        locale = Locale.parse("_".join(parts))
        # `Locale.parse` drops subtags that it does not know instead of refusing them.
        known = {part.lower() for part in str(locale).split("_")}
        exists = known.issuperset(part.lower() for part in parts)
    except (UnknownLocaleError, ValueError, TypeError):
        exists = False
    if not exists:
        raise DataError(f"There is no locale {name!r}", where="CLDR", remedy=_suggest_locale(name))
    # Locales without their own names of months inherit M01 to M12 from CLDR's root, or numbers.
    november = locale.months["format"]["wide"][11]
    if locale.language == "root" or november in ("M11", "11"):
        raise DataError(
            f"The locale {name!r} has no names of months",
            where="CLDR",
            remedy="Choose another locale, such as en, fr, de, ar, hi, ja, tr or zh",
        )
    return locale


def _suggest_locale(name: str) -> str:
    """Return a locale with a similar name, or the locale of a language with this English name."""
    languages = {text.lower(): code for code, text in Locale("en").languages.items()}
    if name.lower() in languages:
        return f"Did you mean {languages[name.lower()]!r}?"
    near = suggest(name.replace("-", "_"), babel.localedata.locale_identifiers()) or ""
    if near.startswith("Did you mean"):
        return near
    return "Give a language code, such as en, fr, de, ar, hi, ja, tr or zh"


def write_date(date: datetime.date, length: Length, locale: Locale) -> str:
    """Format a date in one of CLDR's four lengths."""
    return babel.dates.format_date(date, length, locale=locale)


def write_short_weekday_date(date: datetime.date, locale: Locale) -> str | None:
    """Format a date with its weekday, with short names of month and weekday."""
    try:
        # Without `fuzzy=False` a missing skeleton would be replaced by one of another style.
        return babel.dates.format_skeleton("yMMMEd", date, locale=locale, fuzzy=False)
    except KeyError:
        return None


def write_time(time: datetime.time, locale: Locale) -> str:
    """Format a time of day in hours and minutes."""
    return babel.dates.format_time(time, "short", locale=locale)


def join_date_time(date: str, time: str, length: Length, locale: Locale) -> str:
    """Join a formatted date and time by CLDR's pattern for dates of this length."""
    # CLDR quotes literal words of a pattern, such as "{1} 'at' {0}".
    pattern = str(babel.dates.get_datetime_format(length, locale=locale))
    return pattern.replace("'", "").replace("{0}", time).replace("{1}", date)


def write_price(amount: Decimal, currency: str, locale: Locale) -> str:
    """Format an amount with the currency's symbol."""
    return babel.numbers.format_currency(amount, currency, locale=locale)


def write_named_price(amount: Decimal, currency: str, locale: Locale) -> str | None:
    """Format an amount with the currency's name in the right plural form."""
    # Babel writes the code, such as USD, if the locale has no name for the currency.
    text = babel.numbers.format_currency(amount, currency, locale=locale, format_type="name")
    return None if currency in text else text


def write_measure(amount: Decimal, unit: str, length: UnitLength, locale: Locale) -> str | None:
    """Format an amount with its unit; None where the locale has no form of this length."""
    # CLDR omits a long form that equals the short one.
    for each in (length, "short") if length == "long" else (length,):
        if _has_unit(unit, each, locale):
            return babel.units.format_unit(amount, unit, each, locale=locale)
    return None


def write_list(parts: Sequence[str], style: ListStyle, locale: Locale) -> str | None:
    """Format a list of formatted values; the style `standard` has an "and" before the last one."""
    try:
        return babel.lists.format_list(parts, style=style, locale=locale)
    except (ValueError, KeyError):  # the style is missing, or its pattern for this many parts
        return None


@lru_cache(maxsize=4096)
def _has_unit(unit: str, length: UnitLength, locale: Locale) -> bool:
    try:
        # Babel writes the identifier of the unit if it finds no pattern.
        return unit not in babel.units.format_unit(Decimal(3), unit, length, locale=locale)
    except babel.units.UnknownUnitError:
        return False


Progress = Callable[[int, int], None]
Part = Literal["train", "valid", "test"]
# In the order of generation: a source that is in the test part is never drawn again for training.
PARTS: tuple[Part, ...] = ("test", "valid", "train")
HELD_OUT_PERCENT = 5  # percent of all values for validation, and as many for testing

FIRST_DAY = datetime.date(1950, 1, 1)
DAYS = (datetime.date(2050, 1, 1) - FIRST_DAY).days  # a hundred years: two digits identify a year

CURRENCIES = {"USD": 2, "EUR": 2, "GBP": 2, "JPY": 0, "CHF": 2, "INR": 2}
UNITS = (
    "length-kilometer",
    "length-meter",
    "length-centimeter",
    "length-mile",
    "mass-kilogram",
    "mass-gram",
    "temperature-celsius",
    "volume-liter",
    "area-square-meter",
    "speed-kilometer-per-hour",
    "power-watt",
    "digital-megabyte",
)

Texts = tuple[str, str]
Writer = Callable[[Locale], str | None]
_Drawn = TypeVar("_Drawn")


@dataclass(frozen=True)
class DemoItem:
    """One pair of texts that write the same values.

    Attributes:
        kind: `date`, `time`, `date and time`, `price`, `measure` or `duration`.
        source, target: the texts.
        values: the values in a form that depends on no locale, such as `date 2026-11-21`.
    """

    kind: str
    source: str
    target: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class DemoCorpus:
    """Generated pairs of two locales (named as CLDR does: `en`, `pt_BR`)."""

    source: str
    target: str
    train: tuple[DemoItem, ...]
    valid: tuple[DemoItem, ...]
    test: tuple[DemoItem, ...]

    def kinds(self) -> dict[str, int]:
        """Return the number of training pairs of each kind, most frequent first."""
        return dict(Counter(item.kind for item in self.train).most_common())


def generate_demo(
    source: str = "en",
    target: str = "fr",
    *,
    pairs: int = 50_000,
    held_out: int = 1000,
    seed: int = 1,
    progress: Progress | None = None,
) -> DemoCorpus:
    """Write dates, times, prices, measures and durations in two locales.

    Args:
        source, target: names of locales.
        pairs: number of training pairs.
        held_out: number of pairs for validation, and as many again for testing.
        seed: seed of the draws; the same arguments give the same corpus.
        progress: function that is called at intervals with the pairs made and the pairs wanted.

    Raises:
        DataError: when a locale is unknown or lacks data, or both locales write all items the same.
    """
    locales = find_locale(source), find_locale(target)
    if locales[0] == locales[1]:
        raise DataError(
            f"Source and target are the same locale, {locales[0]}",
            remedy="Choose two different ones, such as --from en --to fr",
        )
    wanted: dict[Part, int] = {"test": held_out, "valid": held_out, "train": pairs}
    total = sum(wanted.values())
    seen: set[str] = set()
    parts: dict[Part, tuple[DemoItem, ...]] = {}
    for part in PARTS:
        items: list[DemoItem] = []
        for item in islice(_fresh(ItemMaker(*locales, part, seed), seen), wanted[part]):
            items.append(item)
            if progress is not None and len(seen) % 500 == 0:
                progress(len(seen), total)
        parts[part] = tuple(items)
        _check_differ(items, *locales)
    if progress is not None:
        progress(total, total)
    return DemoCorpus(str(locales[0]), str(locales[1]), **parts)


def write_demo(corpus: DemoCorpus, folder: Path) -> dict[Part, tuple[Path, Path]]:
    """Write aligned files `train.en`, `train.fr`, `valid.en` … into a folder.

    Returns:
        The paths of source and target for each part.

    Raises:
        RunError: when the files cannot be written.
    """
    paths: dict[Part, tuple[Path, Path]] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS[::-1]:
            pairs: tuple[DemoItem, ...] = getattr(corpus, part)
            paths[part] = folder / f"{part}.{corpus.source}", folder / f"{part}.{corpus.target}"
            _write_lines(paths[part][0], [item.source for item in pairs])
            _write_lines(paths[part][1], [item.target for item in pairs])
    except OSError as error:
        raise RunError(
            f"The generated pairs cannot be written: {error.strerror}",
            where=str(error.filename or folder),
            remedy="Choose another folder with --out, or make room",
        ) from None
    return paths


def _fresh(maker: ItemMaker, seen: set[str]) -> Iterator[DemoItem]:
    """Yield items whose source is not in `seen`, and add it there."""
    while True:
        item = maker.make()
        if item is not None and item.source not in seen:
            # `seen` is shared by all parts, so a source text has one translation in the whole
            # corpus.
            seen.add(item.source)
            yield item


def _check_differ(items: list[DemoItem], source: Locale, target: Locale) -> None:
    if items and all(item.source == item.target for item in items):
        raise DataError(
            f"The locales {source} and {target} write everything alike",
            remedy="Choose two that differ, such as --from en --to fr",
        )


def _write_lines(path: Path, lines: list[str]) -> None:
    # Line feeds on Windows too, so that the same arguments give the same bytes.
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


class ItemMaker:
    """A generator of items whose values all belong to one part of the corpus.

    A checksum of a value (a date, a minute of the day, an amount, a duration) and of the seed
    decides its part, so no two parts share a value.
    """

    def __init__(self, source: Locale, target: Locale, part: Part, seed: int) -> None:
        self.source = source
        self.target = target
        self.part = part
        self.seed = seed
        self.random = Random(f"{seed} {part}")  # a string is hashed by SHA-512

    def make(self) -> DemoItem | None:
        """Draw an item; None when a locale has no way to write it."""
        # Kinds are weighted by their number of values: a day has only 1,440 minutes.
        kinds = {
            self._date: 8,
            self._time: 1,
            self._date_and_time: 5,
            self._price: 6,
            self._measure: 6,
            self._duration: 2,
        }
        (draw,) = self.random.choices(list(kinds), weights=list(kinds.values()))
        return draw()

    def _date(self) -> DemoItem | None:
        date, value = self._draw(self._any_date)
        texts = self._write(_date_writers(date), self.random.randrange(5))
        return _item("date", texts, (value,))

    def _time(self) -> DemoItem | None:
        time, value = self._draw(self._any_time)
        return _item("time", self._write([partial(write_time, time)], 0), (value,))

    def _date_and_time(self) -> DemoItem | None:
        date, date_value = self._draw(self._any_date)
        time, time_value = self._draw(self._any_time)
        writers = _date_writers(date)[:4]  # the short weekday date has no pattern with a time
        style = self._first_alike(writers, self.random.randrange(4))
        dates = self._write(writers, style)
        if dates is None:
            return None
        source, target = (
            join_date_time(dates[i], write_time(time, locale), LENGTHS[style], locale)
            for i, locale in enumerate((self.source, self.target))
        )
        return DemoItem("date and time", source, target, (date_value, time_value))

    def _price(self) -> DemoItem | None:
        currency, decimals = self.random.choice(list(CURRENCIES.items()))
        amount, value = self._draw(self._any_amount, 6, decimals)
        writers = [partial(write, amount, currency) for write in (write_price, write_named_price)]
        return _item("price", self._write(writers, self.random.randrange(2)), (value,))

    def _measure(self) -> DemoItem | None:
        unit = self.random.choice(UNITS)
        amount, value = self._draw(self._any_amount, 5, self.random.choice((0, 1, 2)))
        writers = [partial(write_measure, amount, unit, length) for length in ITEM_LENGTHS]
        return _item("measure", self._write(writers, self.random.randrange(2)), (value,))

    def _duration(self) -> DemoItem | None:
        parts, value = self._draw(self._any_duration)
        writers = [partial(_write_duration, parts, length) for length in ITEM_LENGTHS]
        return _item("duration", self._write(writers, self.random.randrange(2)), (value,))

    def _write(self, writers: Sequence[Writer], style: int) -> Texts | None:
        writer = writers[self._first_alike(writers, style)]
        source, target = writer(self.source), writer(self.target)
        return None if source is None or target is None else (source, target)

    def _first_alike(self, writers: Sequence[Writer], style: int) -> int:
        """Return the first style that writes the same source as `style` and has a target."""
        source = writers[style](self.source)
        return next(
            number
            for number, writer in enumerate(writers)
            if number == style
            or (writer(self.source) == source and writer(self.target) is not None)
        )

    def _draw(
        self, drawn_by: Callable[..., tuple[_Drawn, str]], *options: int
    ) -> tuple[_Drawn, str]:
        """Draw until a value belongs to this part; the parts have 5, 5 and 90 % of all values."""
        while True:
            drawn, value = drawn_by(*options)
            # A checksum instead of `hash`, which differs between processes.
            slot = zlib.crc32(f"{self.seed} {value}".encode()) % 100
            if PARTS[min(slot // HELD_OUT_PERCENT, 2)] == self.part:
                return drawn, value

    def _any_date(self) -> tuple[datetime.date, str]:
        date = FIRST_DAY + datetime.timedelta(days=self.random.randrange(DAYS))
        return date, f"date {date.isoformat()}"

    def _any_time(self) -> tuple[datetime.time, str]:
        time = datetime.time(self.random.randrange(24), self.random.randrange(60))
        return time, f"time {time:%H:%M}"

    def _any_amount(self, digits: int, decimals: int) -> tuple[Decimal, str]:
        """Draw an amount of at most `digits` digits before the point, and its value.

        Every number of digits is equally likely, and amounts below 2, which are singular in French
        and not in English, are as likely.
        """
        whole = self.random.randrange(max(2, 10 ** self.random.randint(0, digits)))
        fraction = self.random.randrange(10**decimals)
        amount = Decimal(whole) + Decimal(fraction).scaleb(-decimals)
        # no trailing zeros, since 5 and 5.00 are one value
        return amount, f"amount {amount.normalize():f}"

    def _any_duration(self) -> tuple[dict[str, int], str]:
        units = self.random.choice((("day", "hour"), ("hour", "minute"), ("day", "hour", "minute")))
        limits = {"day": 31, "hour": 24, "minute": 60}
        parts = {unit: self.random.randrange(1, limits[unit]) for unit in units}
        return parts, "duration " + " ".join(f"{count} {unit}" for unit, count in parts.items())


def _date_writers(date: datetime.date) -> list[Writer]:
    lengths = [partial(write_date, date, length) for length in LENGTHS]
    return [*lengths, partial(write_short_weekday_date, date)]


def _write_duration(parts: dict[str, int], length: UnitLength, locale: Locale) -> str | None:
    texts = [
        write_measure(Decimal(count), f"duration-{unit}", length, locale)
        for unit, count in parts.items()
    ]
    written = [text for text in texts if text is not None]
    if len(written) < len(texts):
        return None
    return write_list(written, "standard" if length == "long" else "unit", locale)


def _item(kind: str, texts: Texts | None, values: tuple[str, ...]) -> DemoItem | None:
    return None if texts is None else DemoItem(kind, *texts, values)
