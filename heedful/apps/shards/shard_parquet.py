"""Shards in Parquet: tables that keep columns and row groups, and get a translation column."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from heedful.apps.shards.shard_text import CHUNK, TableColumns, Translate
from heedful.errors import DataError, UserError


def check_parquet() -> None:
    """Check that pyarrow is installed, which reads Parquet.

    Raises:
        UserError: when the package is missing.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(
            "Shards in Parquet need the package pyarrow",
            remedy="Install it with: pip install 'heedful[ray]'",
        )


def translate_parquet(
    path: Path, output: BinaryIO, translate: Translate, columns: TableColumns
) -> Iterator[int]:
    """Translate a shard in Parquet, a row group at a time.

    Args:
        path: path of the shard.
        output: file for the table with its translations.
        translate: function that translates texts.
        columns: columns of texts and translations.

    Yields:
        The number of rows translated since the last one.

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
    """Return the compression of a file's first column, in the writer's names."""
    if file.num_row_groups == 0 or file.metadata.num_columns == 0:
        return "snappy"
    name = file.metadata.row_group(0).column(0).compression.lower()
    return "none" if name == "uncompressed" else name
