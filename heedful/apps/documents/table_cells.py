"""Reader of table cells in CSV (RFC 4180, with any delimiter) and TSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.message_strings import copied_string, string_passages
from heedful.apps.documents.passage import (
    Passage,
    Surroundings,
    lines_of,
    plain,
    text_parts,
)
from heedful.errors import ConfigError, DataError, suggest

_DELIMITERS = ",;\t|"
_BREAK = re.compile(r"\r\n|\r|\n")
_QUOTES = re.compile('""')


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Args:
        start, end: range of its characters, without quotes around them.
        is_quoted: true if the cell is in quotes.
    """

    start: int
    end: int
    is_quoted: bool


@dataclass(frozen=True)
class TableRow:
    """A row of a table, with the number of its first line, from 1."""

    line: int
    cells: tuple[Cell, ...]


def read_csv(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of the wanted `columns`; see `Reader`.

    Raises:
        ConfigError: when no columns are named, or a named one is missing.
    """
    delimiter = settings.delimiter or delimiter_of(text)
    yield from _read(text, list(_quoted_rows(text, delimiter, name)), delimiter, settings, name)


def read_tsv(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of the wanted columns of tab-separated values, which have no quotes.

    See `read_csv`.
    """
    rows: list[TableRow] = []
    for number, (start, end) in enumerate(lines_of(text), start=1):
        if start == end:
            continue
        cells = []
        for cell in text[start:end].split("\t"):
            cells.append(Cell(start, start + len(cell), False))
            start += len(cell) + 1
        rows.append(TableRow(number, tuple(cells)))
    yield from _read(text, rows, "\t", settings, name, quotes=False)


def _read(
    text: str,
    rows: Sequence[TableRow],
    delimiter: str,
    settings: DocumentSettings,
    name: str,
    *,
    quotes: bool = True,
) -> Iterator[Passage]:
    if not rows:
        return
    columns = _columns(text, rows[0], settings, name)
    for row in rows[1:] if settings.header else rows:
        for column in columns:
            if column >= len(row.cells):
                raise DataError(
                    f"Line {row.line} has {len(row.cells)} cells, but no column {column + 1}",
                    where=name,
                    remedy="Correct the row, or name the delimiter: --delimiter",
                )
            yield from _cell(text, row.cells[column], delimiter, quotes=quotes)


def _columns(text: str, first: TableRow, settings: DocumentSettings, name: str) -> list[int]:
    """Return the indices of the wanted columns, from 0."""
    names = [
        text[cell.start : cell.end].replace('""', '"').strip()
        if cell.is_quoted
        else text[cell.start : cell.end].strip()
        for cell in first.cells
    ]
    if not settings.columns:
        known = ", ".join(names) if settings.header else f"1 to {len(names)}"
        example = names[-1] if settings.header else "1"
        raise ConfigError(
            "Which columns are text is not known",
            where=name,
            remedy=f"Name them, for example: --columns {example}. There are: {known}",
        )
    columns: list[int] = []
    for wanted in settings.columns:
        if settings.header and wanted in names:
            columns.append(names.index(wanted))
        elif wanted.isdecimal() and 1 <= int(wanted) <= len(names):
            columns.append(int(wanted) - 1)
        else:
            raise ConfigError(
                f"There is no column {wanted!r}",
                where=name,
                remedy=suggest(wanted, names) if settings.header else f"There are {len(names)}",
            )
    return list(dict.fromkeys(columns))


def delimiter_of(text: str) -> str:
    """Return the delimiter that is most frequent in the first row, outside of quotes."""
    row = re.match(r'(?:"(?:[^"]|"")*"|[^\r\n"])*', text)
    bare = re.sub(r'"(?:[^"]|"")*"', "", row[0] if row is not None else "")
    return max(_DELIMITERS, key=bare.count)


def _quoted_rows(text: str, delimiter: str, name: str) -> Iterator[TableRow]:
    bare = re.compile(rf"[^{re.escape(delimiter)}\r\n]*")
    quoted = re.compile(r'"((?:[^"]|"")*)"')
    place, line, cells, first = 0, 1, list[Cell](), 1
    while place < len(text):
        if text[place] == '"':
            match = quoted.match(text, place)
            if match is None:
                raise DataError(
                    f"Line {line} begins a quoted cell that never ends",
                    where=name,
                    remedy='Close it with ", or double each " inside it',
                )
            cells.append(Cell(match.start(1), match.end(1), True))
            line += len(_BREAK.findall(match[0]))
        else:
            match = bare.match(text, place)
            assert match is not None
            cells.append(Cell(match.start(), match.end(), False))
        place = match.end()
        if text.startswith(delimiter, place):
            place += 1
            if place == len(text) or text[place] in "\r\n":
                cells.append(Cell(place, place, False))
            else:
                continue
        end = _BREAK.match(text, place)
        if end is None and place < len(text):
            raise DataError(
                f"Line {line} has {text[place]!r} after the end of a quoted cell",
                where=name,
                remedy='Double each " inside a cell, or name the delimiter: --delimiter',
            )
        if len(cells) > 1 or cells[0].is_quoted or cells[0].start < cells[0].end:
            yield TableRow(first, tuple(cells))
        place = place if end is None else end.end()
        line += 1
        cells, first = [], line


def _cell(text: str, cell: Cell, delimiter: str, *, quotes: bool) -> Iterator[Passage]:
    """Yield the passages of a cell: shops and programs keep tags and placeholders in them."""
    place = cell.start, cell.end
    if cell.is_quoted:
        yield from string_passages(text_parts(text, *place, _QUOTES, lambda _: '"'), _doubled)
    elif not quotes:
        yield from string_passages(text_parts(text, *place), _without_tabs)
    elif found := tuple(string_passages(text_parts(text, *place), plain)):
        wrap = partial(_unquoted, text, cell, delimiter)
        yield copied_string(place, place, found, wrap=wrap)


def _unquoted(text: str, cell: Cell, delimiter: str, content: str) -> str:
    """Return the content of an unquoted cell, with quotes if the translation needs them."""
    if content != text[cell.start : cell.end] and (delimiter in content or '"' in content):
        return '"' + content.replace('"', '""') + '"'
    return content


def _doubled(text: str, place: Surroundings) -> str:
    return text.replace('"', '""')


def _without_tabs(text: str, place: Surroundings) -> str:
    return text.replace("\t", " ")
