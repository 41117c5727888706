"""The generated corpus: what it promises about held-out values, and what CLDR writes where."""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import babel.dates
import pytest

from heedful.apps.demo_corpus import (
    DemoCorpus,
    find_locale,
    generate_demo,
    join_date_time,
    write_date,
    write_demo,
    write_list,
    write_measure,
    write_named_price,
    write_price,
    write_time,
)
from heedful.errors import DataError, RunError

NO_BREAK, NARROW_NO_BREAK = "\u00a0", "\u202f"


@pytest.fixture(scope="module")
def corpus() -> DemoCorpus:
    return generate_demo("en", "fr", pairs=4000, held_out=300, seed=5)


def test_sizes_and_kinds(corpus: DemoCorpus) -> None:
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (4000, 300, 300)
    expected = {"date", "time", "date and time", "price", "measure", "duration"}
    assert set(corpus.kinds()) == expected
    assert sum(corpus.kinds().values()) == 4000
    assert {item.kind for item in corpus.test} == expected


def test_parts_share_no_value(corpus: DemoCorpus) -> None:
    said = [
        {value for item in part for value in item.values}
        for part in (corpus.train, corpus.valid, corpus.test)
    ]
    assert not said[0] & said[1]
    assert not said[0] & said[2]
    assert not said[1] & said[2]


def test_values_are_what_the_text_says(corpus: DemoCorpus) -> None:
    """The split above is worth something only if values name what is written."""
    for item in corpus.test:
        for value in item.values:
            kind, _, rest = value.partition(" ")
            if kind == "amount":
                number = f"{Decimal(rest):,f}"
                assert number.rstrip("0").rstrip(".") in item.source.replace("−", "-")
            if kind == "date":
                date = datetime.date.fromisoformat(rest)
                assert str(date.day) in item.source
                assert f"{date.year % 100:02d}" in item.source
            if kind == "time":
                assert rest in item.target


def test_translation_is_a_function_of_the_source(corpus: DemoCorpus) -> None:
    sources = [item.source for part in (corpus.train, corpus.valid, corpus.test) for item in part]
    assert len(set(sources)) == len(sources)


@pytest.mark.parametrize("pair", [("en", "de"), ("ja", "en"), ("zh", "fr")])
def test_styles_written_alike_have_one_translation(pair: tuple[str, str]) -> None:
    """A Japanese 2026/11/21 says nothing of whether it was meant as medium or short."""
    merged = 0
    for item in generate_demo(*pair, pairs=600, held_out=10).train:
        if item.kind == "date":
            date = datetime.date.fromisoformat(item.values[0].removeprefix("date "))
            sources, targets = ([*_all_forms(date, locale)] for locale in pair)
            merged += len(set(sources)) < 5
            assert item.target == targets[sources.index(item.source)]
    assert merged > 0


def _all_forms(date: datetime.date, locale: str) -> Iterator[str]:
    for length in ("full", "long", "medium", "short"):
        yield babel.dates.format_date(date, length, locale=locale)
    yield babel.dates.format_skeleton("yMMMEd", date, locale=locale)


def test_same_seed_same_corpus(corpus: DemoCorpus) -> None:
    assert generate_demo("en", "fr", pairs=200, held_out=300, seed=5).test == corpus.test
    assert generate_demo("en", "fr", pairs=200, held_out=300, seed=6).test != corpus.test


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("en", "fr"),
        ("fr", "en"),
        ("en", "de"),
        ("de", "tr"),
        ("ar", "en"),
        ("en", "he"),
        ("en", "ja"),
        ("zh", "en"),
        ("ko", "ar"),
        ("hi", "en"),
        ("en-US", "en_GB"),
        ("pt_BR", "fa"),
        ("nl", "ru"),
        ("zh_Hant", "th"),
    ],
)
def test_any_pair_of_locales(source: str, target: str) -> None:
    corpus = generate_demo(source, target, pairs=400, held_out=40)
    assert len(corpus.kinds()) == 6
    for item in (*corpus.train, *corpus.test):
        for text in (item.source, item.target):
            assert text == text.strip()
            assert text.isprintable() or {
                unicodedata.category(c) for c in text if not c.isprintable()
            } <= {"Zs", "Cf"}, f"{text!r}"
            assert len(text.splitlines()) == 1
            assert not {"{", "}", "'"} & set(text), text
            assert "-kilo" not in text.lower(), "an identifier instead of a unit"


def test_english_and_french_by_heart() -> None:
    en, fr = find_locale("en"), find_locale("fr")
    day, time = datetime.date(2026, 11, 21), datetime.time(15, 5, 9)
    assert write_date(day, "full", en) == "Saturday, November 21, 2026"
    assert write_date(day, "full", fr) == "samedi 21 novembre 2026"
    assert write_price(Decimal("1234.50"), "USD", en) == "$1,234.50"
    assert write_price(Decimal("1234.50"), "USD", fr) == f"1{NARROW_NO_BREAK}234,50{NO_BREAK}$US"
    assert write_named_price(Decimal("0.54"), "EUR", fr) == "0,54 euro"
    assert write_measure(Decimal("1.5"), "length-kilometer", "long", en) == "1.5 kilometers"
    assert write_time(time, en) == f"3:05{NARROW_NO_BREAK}PM"
    assert join_date_time("DATE", "TIME", "full", en) == "DATE, TIME"
    hours = [
        write_measure(Decimal(n), f"duration-{u}", "long", en)
        for n, u in ((3, "hour"), (20, "minute"))
    ]
    assert write_list([text or "" for text in hours], "standard", en) == "3 hours and 20 minutes"


def test_forms_that_a_locale_lacks() -> None:
    zh = find_locale("zh")
    assert write_measure(Decimal("1.5"), "duration-hour", "long", zh) == "1.5小时"
    assert write_measure(Decimal(1), "no-such-unit", "long", zh) is None
    assert write_list(["a", "b", "c"], "unit", find_locale("de")) is None
    assert write_named_price(Decimal(2), "USD", find_locale("tn")) is None


def test_words_of_a_date_time_pattern_are_unquoted() -> None:
    assert join_date_time("DATE", "TIME", "full", find_locale("oc")) == "DATE a TIME"


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("xx", "fr", "There is no locale 'xx'"),
        ("french", "en", "Did you mean 'fr'"),
        ("en", "zh_Hent", "Did you mean 'zh_Hant'"),
        ("", "fr", "There is no locale ''"),
        ("en", "../fr", "There is no locale"),
        ("en", "fr;rm", "There is no locale"),
        ("en", "en", "the same locale, en"),
        ("pt-BR", "pt_BR", "the same locale, pt_BR"),
        ("en", "wa", "'wa' has no names of months"),
        ("en", "en_US", "write everything alike"),
        ("root", "en", "'root' has no names of months"),
    ],
)
def test_impossible_pairs_are_refused(source: str, target: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        generate_demo(source, target, pairs=20, held_out=10)


def test_files_hold_the_pairs_line_by_line(corpus: DemoCorpus, tmp_path: Path) -> None:
    paths = write_demo(corpus, tmp_path / "new" / "data")
    assert [path.name for path in paths["test"]] == ["test.en", "test.fr"]
    for part, items in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.test)):
        sources, targets = (path.read_bytes().decode() for path in paths[part])
        assert sources.split("\n") == [item.source for item in items] + [""]
        assert targets.split("\n") == [item.target for item in items] + [""]


def test_unwritable_folder(corpus: DemoCorpus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="cannot be written"):
        write_demo(corpus, tmp_path / "file")


def test_progress_reaches_the_end() -> None:
    calls: list[tuple[int, int]] = []
    generate_demo(pairs=900, held_out=50, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(500, 1000), (1000, 1000), (1000, 1000)]
