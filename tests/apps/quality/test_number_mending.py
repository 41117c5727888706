"""Numbers of translations in the form that is wanted, and wrong ones put right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.quality.number_mending import Form, NumberForm, mend_numbers
from heedful.apps.quality.respelling import Respelling
from heedful.errors import ConfigError
from heedful.search.alignment import Alignment


def mended(source, target, form: Form = "keep", alignment=None):
    found = mend_numbers(source, target, NumberForm(form, ("en", "de")), alignment)
    return Respelling.of(target, found.edits).result


def one_to_one(source, target):
    words = source.split(), target.split()
    rows = tuple(tuple(float(i == j) for i in range(len(words[0]))) for j in range(len(words[1])))
    return Alignment(tuple(words[0]), tuple(words[1]), rows)


@pytest.mark.parametrize(
    ("source", "target", "kept", "localized"),
    [
        ("It costs 1,234.50.", "Es kostet 1.234,50.", "Es kostet 1,234.50.", None),
        ("It costs 1,234.50.", "Es kostet 1,234.50.", None, "Es kostet 1.234,50."),
        ("It costs 1,234.50.", "Es kostet 1234,50.", "Es kostet 1,234.50.", "Es kostet 1.234,50."),
        ("It costs 1,234.50.", "Es kostet 1230.", "Es kostet 1,234.50.", "Es kostet 1.234,50."),
        ("He ran 9 miles.", "Er lief 90 Meilen.", "Er lief 9 Meilen.", "Er lief 9 Meilen."),
        ("in 1905", "im Jahr 1905", None, None),
        ("I have 3 dogs.", "Ich habe drei Hunde.", "Ich habe 3 Hunde.", None),
        ("I have 1 dog.", "Ich habe einen Hund.", None, None),
        ("4 and 4", "vier und vier", None, None),  # which is which?
        ("at 3", "um halb drei Uhr", None, None),
        ("3 million", "3.000.000", None, None),
        ("It is 2:30.", "Es ist halb drei.", None, None),
        ("at 9:15 pm", "um 21.15 Uhr", None, None),
        ("on 5/6/2020", "am 7.8.2021", None, None),  # a date is no plain number
        ("v3.10 is out", "v3.10 ist da", None, None),
        ("12 men, 14 dogs", "13 Hunde, 15 Leute", None, None),  # in doubt without an alignment
        ("See http://a.org/12.", "Siehe http://a.org/13.", None, None),
        ("{0} of 5", "{0} von 6", "{0} von 5", "{0} von 5"),
        ("9 or 12", "9 oder 9 Uhr", "9 oder 12 Uhr", "9 oder 12 Uhr"),
        ("", "", None, None),
        ("none", "3", None, None),
        ("3", "none", None, None),
    ],
)  # fmt: skip
def test_forms(source, target, kept, localized):
    assert mended(source, target, "keep") == (kept or target)
    assert mended(source, target, "localize") == (localized or target)


def test_half_an_hour_is_no_word_for_30():
    form = NumberForm("keep", ("en", "fr"))
    found = mend_numbers("for 30 minutes", "pendant une demi-heure", form)
    assert (found.edits, found.wrong) == ([], 0)
    assert mend_numbers("for 30 days", "pendant trente jours", form).edits == [(8, 14, "30")]


def test_several_are_put_right_by_alignment_alone():
    source, target = "12 men and 14 dogs", "13 Leute und 15 Hunde"
    aligned = one_to_one(source, target)
    assert mended(source, target, alignment=aligned) == "12 Leute und 14 Hunde"
    both = Alignment(
        aligned.source_words,
        aligned.target_words,
        (aligned.matrix[0], aligned.matrix[1], aligned.matrix[2], aligned.matrix[0], ()),
    )
    assert mended(source, target, alignment=both) == target


def test_what_is_left_is_told():
    found = mend_numbers("12 men and 14 dogs", "13 Hunde", NumberForm("keep", ("en", "de")))
    assert [number.text for number in found.missing] == ["12", "14"]
    assert [number.text for number in found.added] == ["13"]
    assert found.wrong == 3


@pytest.mark.parametrize(
    ("figures", "languages", "expected"),
    [
        ("1,234.50", ("en", "de"), "1.234,50"),
        ("1,234.50", ("en", "fr"), "1\u202f234,50"),
        ("1.234,5", ("de", "en"), "1,234.5"),
        ("1\u202f234,5", ("fr", "en"), "1,234.5"),
        ("1 234,5", ("fr", "en"), "1,234.5"),
        ("1,234,567", ("en", "hi"), "12,34,567"),
        ("12,34,567", ("hi", "en"), "1,234,567"),
        ("1234.5", ("en", "pt-BR"), "1234,5"),
        ("0.005", ("en", "de"), "0,005"),
        ("0.005", ("de", "en"), "0.005"),
        ("2024", ("en", "de"), "2024"),
        ("1.2.3", ("en", "de"), "1.2.3"),
        ("1,23", ("en", "de"), "1,23"),
        ("1,000.00", ("en", "de"), "1.000,00"),
    ],
)
def test_signs_of_languages(figures, languages, expected):
    assert NumberForm("localize", languages).write(figures) == expected


@given(st.integers(0, 10**9), st.integers(0, 9999) | st.none())
def test_localized_numbers_come_back(whole, decimals):
    figures = f"{whole:,}" + (f".{decimals}" if decimals is not None else "")
    there = NumberForm("localize", ("en", "de")).write(figures)
    assert there == figures.translate(str.maketrans(",.", ".,"))
    assert NumberForm("localize", ("de", "en")).write(there) == figures


@given(st.lists(st.sampled_from(["12", "1,234", "3.5", "Hund", "drei", "9:15", "und"]), max_size=6))
def test_a_copy_is_never_changed_where_numbers_are_kept(words):
    text = " ".join(words)
    found = mend_numbers(text, text, NumberForm("keep", (None, None)), one_to_one(text, text))
    assert not found.edits
    assert not found.wrong


def test_languages_must_be_known():
    with pytest.raises(ConfigError, match="must be known"):
        NumberForm("localize", ("en", None))
    with pytest.raises(ConfigError, match="no language 'xx'"):
        NumberForm("localize", ("xx", "de"))
