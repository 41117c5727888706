"""Shards of text: plain lines, tab-separated tables or JSON Lines, plain or gzip."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from heedful.data.text_file import TextFile, parse_json
from heedful.errors import DataError

CHUNK = 4096
"""Texts that are translated at a time, as many as `heedful translate` reads at a time."""

Progress = Callable[[int], None]


class Translate(Protocol):
    """Function that translates texts into lines without line breaks."""

    def __call__(self, texts: list[str], first_line: int, /) -> list[str]:
        """Return a line for each text; warnings count lines from `first_line`."""


@dataclass(frozen=True)
class TableColumns:
    """Names of the columns of a table.

    Args:
        text: column of the texts; a number, from 1, in a .tsv file without a header.
        translation: column for the translations, which no shard may have yet.
    """

    text: str = "text"
    translation: str = "translation"

    def missing(self, where: str, known: list[str]) -> DataError:
        """Return the error for a shard without the column of texts."""
        return DataError(
            f"There is no column {self.text!r}",
            where=where,
            remedy=f"Name one with --column; there are: {', '.join(known)}",
        )

    def taken(self, where: str) -> DataError:
        """Return the error for a shard that has a column of translations already."""
        return DataError(
            f"There is a column {self.translation!r} already",
            where=where,
            remedy="Choose another name with --translation-column",
        )


@dataclass(frozen=True)
class _Row:
    """A line of a shard that is written with its translation.

    Args:
        text: text to translate; None for a line without one, which stays as it is.
        before: characters before the translation.
        after: characters after the translation.
        is_json: true if the translation is written as JSON.
    """

    text: str | None
    before: str = ""
    after: str = ""
    is_json: bool = False

    def line(self, translation: str) -> str:
        if self.text is None:
            return self.before
        if self.is_json:
            translation = json.dumps(translation, ensure_ascii=False)
        return f"{self.before}{translation}{self.after}"


def translate_text(
    path: Path, form: str, output: BinaryIO, translate: Translate, columns: TableColumns
) -> Iterator[int]:
    """Translate a shard of text.

    Args:
        path: path of the shard.
        form: suffix of its form, `.txt`, `.tsv` or `.jsonl`.
        output: file for the translated shard, compressed if the shard is.
        translate: function that translates texts.
        columns: columns of tables.

    Yields:
        The number of texts translated since the last one.

    Raises:
        DataError: naming the line that cannot be read.
    """
    file = TextFile(path)
    rows = _READERS[form](file, columns)
    # Without file name and time, equal texts give equal bytes.
    packed = gzip.GzipFile("", "wb", fileobj=output, mtime=0) if file.facts.compressed else None
    stream = packed or output
    first = 1
    while chunk := list(islice(rows, CHUNK)):
        # A row without text counts as an empty text, so that warnings name the right line.
        lines = translate([row.text or "" for row in chunk], first)
        for row, line in zip(chunk, lines, strict=True):
            stream.write(row.line(line).encode() + b"\n")
        first += len(chunk)
        yield len(chunk)
    if packed is not None:
        packed.close()


def _plain_rows(file: TextFile, columns: TableColumns) -> Iterator[_Row]:
    for line in file:
        yield _Row(line)


def _table_rows(file: TextFile, columns: TableColumns) -> Iterator[_Row]:
    lines = iter(file)
    number, width = 0, 0
    if columns.text.isdecimal():
        number = int(columns.text)
    else:
        names = next(lines, "").split("\t")
        if columns.text not in names:
            raise columns.missing(f"{file.path}:1", names)
        if columns.translation in names:
            raise columns.taken(f"{file.path}:1")
        number, width = names.index(columns.text) + 1, len(names)
        yield _Row(None, "\t".join([*names, columns.translation]))
    for line in lines:
        cells = line.split("\t")
        width = width or len(cells)
        if len(cells) != width or not 1 <= number <= width:
            raise DataError(
                f"The line has {len(cells)} columns"
                + (f", and not {width}" if len(cells) != width else f", and no column {number}"),
                where=f"{file.path}:{file.lines}",
                remedy="Put a tab between columns and nowhere else; --column takes a name of the "
                "first line, or a number where that is a row like the others",
            )
        yield _Row(cells[number - 1], f"{line}\t")


def _json_rows(file: TextFile, columns: TableColumns) -> Iterator[_Row]:
    for line in file:
        where = f"{file.path}:{file.lines}"
        if not line.strip():
            yield _Row(None, line)
            continue
        form = f'Put one object on each line, such as {{"{columns.text}": "A cat."}}'
        item = parse_json(line, where, form)
        if not isinstance(item, dict):
            raise DataError("The line is no JSON object", where=where, remedy=form)
        if columns.text not in item:
            raise columns.missing(where, list(item))
        if columns.translation in item:
            raise columns.taken(where)
        # The translation is inserted into the line, so that other values keep their spelling.
        start = line.rstrip().removesuffix("}")
        before = f"{start}, {json.dumps(columns.translation, ensure_ascii=False)}: "
        if (text := _text_of(item[columns.text], where, columns.text)) is None:
            yield _Row(None, f"{before}null}}")
        else:
            yield _Row(text, before, "}", is_json=True)


def _text_of(value: Any, where: str, name: str) -> str | None:
    """Return a JSON value, which must be a text or null."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise DataError(f"The value of {name!r} is no text", where=where, remedy="Name another")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"The value of {name!r} holds a lone surrogate, which is not a character",
            where=where,
            remedy="Repair the text where it was made",
        ) from None
    return value


_READERS: dict[str, Callable[[TextFile, TableColumns], Iterator[_Row]]] = {
    ".txt": _plain_rows,
    ".tsv": _table_rows,
    ".jsonl": _json_rows,
}
