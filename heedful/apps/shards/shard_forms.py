"""File formats of shards: plain lines, TSV and JSON Lines, all perhaps gzipped, and Parquet."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from heedful.data.text_file import TextFile, chunks, parse_json
from heedful.errors import DataError

CHUNK = 4096
"""Number of texts that are translated at a time, as in `heedful translate`."""

Translate = Callable[[list[str], int], list[str]]
"""Function that translates texts into lines; warnings count lines from its second argument."""


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
        text: text to translate; None for a line without text, which stays unchanged.
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
        form: suffix of the file format, `.txt`, `.tsv` or `.jsonl`.
        output: file for the translated shard, compressed if the shard is.
        translate: function that translates texts.
        columns: columns of tables.

    Yields:
        The number of texts translated since the last yield.

    Raises:
        DataError: naming the line that cannot be read.
    """
    file = TextFile(path)
    rows = _READERS[form](file, columns)
    # Without file name and time in the header, equal texts give equal bytes.
    packed = gzip.GzipFile("", "wb", fileobj=output, mtime=0) if file.facts.compressed else None
    stream = packed or output
    first = 1
    for chunk in chunks(rows, CHUNK):
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


def translate_parquet(
    path: Path, output: BinaryIO, translate: Translate, columns: TableColumns
) -> Iterator[int]:
    """Translate a shard in Parquet, a row group at a time; other columns stay as they are.

    Args:
        path: path of the shard.
        output: file for the table with its translations.
        translate: function that translates texts.
        columns: columns of texts and translations.

    Yields:
        The number of rows translated since the last yield.

    Raises:
        DataError: when the file is damaged, or lacks the column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = _with_translation(file.schema_arrow, columns, path)
            compression = _compression(file)
            with pq.ParquetWriter(output, schema, compression=compression) as writer:
                first = 1
                for number in range(file.num_row_groups):
                    table = file.read_row_group(number)
                    texts = table.column(columns.text).to_pylist()
                    found: list[str | None] = []
                    for start in range(0, len(texts), CHUNK):
                        chunk = texts[start : start + CHUNK]
                        lines = translate([text or "" for text in chunk], first + start)
                        found += [
                            None if text is None else line
                            for text, line in zip(chunk, lines, strict=True)
                        ]
                        yield len(chunk)
                    column = pa.array(found, pa.string())
                    # A table without rows may have an empty row group, which writers drop.
                    writer.write_table(
                        table.append_column(schema.field(columns.translation), column),
                        row_group_size=max(1, len(texts)),
                    )
                    first += len(texts)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # an error of the disk, not of the table
            raise
        raise DataError(
            f"Cannot be read as Parquet: {' '.join(str(error).split())[:200]}",
            where=str(path),
            remedy="The file is incomplete or damaged; fetch it again",
        ) from None


def _with_translation(schema: Any, columns: TableColumns, path: Path) -> Any:
    """Return the schema of a table with one more column, after checks of the others."""
    import pyarrow as pa

    if columns.text not in schema.names:
        raise columns.missing(str(path), schema.names)
    if columns.translation in schema.names:
        raise columns.taken(str(path))
    kind = schema.field(columns.text).type
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(values) or pa.types.is_large_string(values)):
        raise DataError(
            f"The column {columns.text!r} holds {kind}, and no texts",
            where=str(path),
            remedy="Name another column with --column",
        )
    return schema.append(pa.field(columns.translation, pa.string()))


def _compression(file: Any) -> str:
    """Return the compression of a file's first column, named as for the writer."""
    if file.num_row_groups == 0 or file.metadata.num_columns == 0:
        return "snappy"
    name = file.metadata.row_group(0).column(0).compression.lower()
    return "none" if name == "uncompressed" else name
