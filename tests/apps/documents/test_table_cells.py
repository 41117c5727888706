"""CSV and TSV: the wanted columns change. The reference is Python's csv module."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.formats import translate_document
from heedful.errors import ConfigError, DataError

from .translators import Dictionary, echoed, sentences, shout, shouted

CELLS = st.text(st.sampled_from("abZ ,;\"'\n\té1"), max_size=8)
TABLES = st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5)


def written(table: list[tuple[str, str, str]], quoting: int, line_break: str, comma: str) -> str:
    stream = io.StringIO()
    kind = csv.writer(stream, quoting=quoting, lineterminator=line_break, delimiter=comma)
    kind.writerow(["id", "first", "last"])
    kind.writerows(table)
    return stream.getvalue()


def parsed(text: str, comma: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=comma))


FORMS = st.tuples(
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([",", ";", "\t"]),
)


@given(TABLES, FORMS)
def test_an_echo_changes_no_byte(
    table: list[tuple[str, str, str]], form: tuple[int, str, str]
) -> None:
    data = written(table, *form).encode()
    assert echoed(data, "csv", columns=["first", "last"]) == data


@pytest.mark.parametrize("quote", ["", '"'])
def test_tags_and_placeholders_in_cells_stay(quote: str) -> None:
    page = f"id,text\n1,{quote}a <b>dog</b> of %s<br>runs{quote}\n"
    assert sentences(page, "csv", columns=["text"]) == ["a dog of %s", "runs"]
    found = shouted(page, "csv", columns=["text"])
    assert found == f"id,text\n1,{quote}A <b>DOG</b> OF %s<br>RUNS{quote}\n"


@given(TABLES, FORMS)
def test_the_wanted_column_changes(
    table: list[tuple[str, str, str]], form: tuple[int, str, str]
) -> None:
    text = written(table, *form)
    found = parsed(shouted(text, "csv", columns=["last"]), form[2])
    assert found[0] == ["id", "first", "last"]
    for before, after in zip(table, found[1:], strict=True):
        assert (after[0], after[1]) == (before[0], before[1])
        assert after[2].split() == shout(before[2]).split()


def test_a_cell_gets_quotes_where_it_needs_them_now() -> None:
    known = {"yes": ('"ja", sagt er', (0, 0, 0)), "no": ("nein", (0,))}
    found = translate_document(
        b"a,b\nyes ,1\nno,2\n",
        Dictionary(known),
        format="csv",
        settings=DocumentSettings(columns=("a",)),
    )
    assert found == b'a,b\n"""ja"", sagt er ",1\nnein,2\n'


def test_columns_may_be_numbers_and_the_header_may_be_missing() -> None:
    text = "one\ttwo\nthree\tfour\n"
    assert sentences(text, "tsv", columns=["2"]) == ["four"]
    assert sentences(text, "tsv", columns=["2"], header=False) == ["two", "four"]


def test_quotes_mean_nothing_between_tabs() -> None:
    assert shouted('a\tb\n"x\ty\n', "tsv", columns=["a"]) == 'a\tb\n"X\ty\n'


@pytest.mark.parametrize(
    ("text", "columns", "error", "words"),
    [
        ("a,b\n1,2\n", [], ConfigError, "There are: a, b"),
        ("title,b\n1,2\n", ["titel"], ConfigError, "Did you mean 'title'"),
        ("a,b\n1,2\n", ["3"], ConfigError, "no column '3'"),
        ('a,b\n"x\n\ny",2\n1,"2\n', ["a"], DataError, "Line 5 begins a quoted cell"),
        ('a,b\n"x"y,2\n', ["a"], DataError, "Line 2 has 'y' after"),
        ("a,b\n1,2\n3\n", ["b"], DataError, "Line 3 has 1 cells"),
    ],
)
def test_damage_and_wrong_columns_are_named(
    text: str, columns: list[str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        echoed(text.encode(), "csv", columns=columns)
