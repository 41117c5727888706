"""Tables as lines of JSON: Parquet, Arrow, CSV, TSV with a header, arrays of JSON, and tar files.

Every format yields the rows of a file as mappings from names to values. `TableFile` gives them out
as the lines of a .jsonl file, so that all that reads lines of JSON reads tables, too.
"""

from __future__ import annotations

import csv
import itertools
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from heedful.data.record_fields import RecordFields
from heedful.data.text_file import (
    BinaryFile,
    FileFacts,
    TextFile,
    file_form,
    parse_json,
    require_pyarrow,
)
from heedful.errors import DataError

Rows = Iterator[dict[str, Any]]

_ROWS_AT_ONCE = 1024
_DELIMITERS = ",;\t|"  # spreadsheets write semicolons where the comma is a decimal sign
_MEMBER_BYTES = 1 << 26  # a text of 64 MB is no sentence; more would fill the memory


class TableFile(TextFile):
    """The rows of a table, or of a folder of tables, as lines of JSON; `lines` counts rows.

    Args:
        path: file, or folder of files of one form.
        fields: rule of the wanted fields, which tells a header from a first row.

    Raises:
        DataError: when the file is missing, or the folder holds tables of several forms.
        ConfigError: when pyarrow is needed and not installed.
    """

    def __init__(self, path: Path, fields: RecordFields) -> None:
        self.parts = table_parts(path)
        self.form = file_form(self.parts[0])
        self.fields = fields
        self._part = self._opened(self.parts[0])
        self.bytes_total = sum(part.stat().st_size for part in self.parts)
        self._bytes_before = 0  # those of the parts that are read
        self.path = path
        self.lines = 0
        self.facts = FileFacts()

    @property
    def bytes_done(self) -> int:
        # Positions in Parquet jump to the end of the file and back.
        return min(self.bytes_total, self._bytes_before + self._part.bytes_done)

    def raw_lines(self) -> Iterator[bytes]:
        """Yield the rows as lines of JSON.

        Raises:
            DataError: when the file is damaged or of another form than its name says.
        """
        kind = FORMATS[self.form]
        errors: tuple[type[Exception], ...] = (csv.Error, tarfile.TarError, OSError, EOFError)
        if kind.is_arrow:
            # Values that Python has no room for, such as dates after 9999, are `ValueError`s.
            arrow = require_pyarrow(str(self.path))
            errors = (*errors, arrow.ArrowException, ValueError, OverflowError)
        self._bytes_before = 0
        for path in self.parts:
            self._part = self._opened(path)
            self.facts = self._part.facts
            self.facts.table = kind.name
            try:
                for row in kind.rows(self._part, self.fields):
                    self.lines += 1
                    # Values that JSON has no form for, such as dates and bytes, are nobody's text.
                    text = json.dumps(row, ensure_ascii=False, default=lambda value: None)
                    yield text.encode("utf-8", "surrogatepass") + b"\n"
            except errors as error:
                raise DataError(
                    f"Cannot be read as {kind.name} past row {self.lines}: {error}",
                    where=str(path),
                    remedy="The file is damaged, or its name has a wrong ending; fetch it again",
                ) from None
            self._bytes_before += self._part.bytes_total

    @property
    def is_json(self) -> bool:
        return True

    def decode(self, line: bytes) -> str:
        """Decode a line, in which the JSON made here has no mark or line end of a file."""
        return line.decode("utf-8", "surrogatepass").removesuffix("\n")

    def _opened(self, path: Path) -> TextFile:
        kind = FORMATS[self.form]
        if kind.is_arrow:
            require_pyarrow(str(path))
        return (BinaryFile if kind.is_binary else TextFile)(path)


def open_lines(path: Path, fields: RecordFields, forms: Iterable[str] | None = None) -> TextFile:
    """Open a file as lines: those of a table are JSON, others are as they stand.

    Args:
        path: file or folder.
        fields: rule of the wanted fields.
        forms: suffixes of the tables that are read as such; all if None. A single file of JSON
            lines is one as it stands.

    Raises:
        DataError: when it is missing or unreadable.
        ConfigError: when pyarrow is needed and not installed.
    """
    form = file_form(path)
    if path.is_dir() and table_parts(path) != [path]:
        return TableFile(path, fields)
    if form == ".jsonl" or form not in (FORMATS if forms is None else forms):
        return TextFile(path)
    if form == ".tsv" and not (fields.columns or _names_columns(path, fields)):
        return TextFile(path)
    return TableFile(path, fields)


def table_parts(path: Path) -> list[Path]:
    """Return the files of a table: the path itself, or those of a folder that hold rows.

    Raises:
        DataError: when a folder has files of several forms, or several splits of a dataset.
    """
    if not path.is_dir():
        return [path]
    splits = path / "dataset_dict.json"
    if splits.is_file():
        names = parse_json(splits.read_text(encoding="utf-8"), str(splits), "")["splits"]
        raise DataError(
            f"The folder holds the splits {', '.join(names)} of a dataset",
            where=str(path),
            remedy=f"Name one of them, such as: {path / names[0]}",
        )
    state = path / "state.json"
    if state.is_file():  # written by `save_to_disk` of the library `datasets`
        content = parse_json(state.read_text(encoding="utf-8"), str(state), "")
        return [path / Path(file["filename"]).name for file in content["_data_files"]]
    parts = sorted(each for each in path.iterdir() if file_form(each) in FORMATS and each.is_file())
    forms = sorted({file_form(part) for part in parts})
    if len(forms) > 1:
        raise DataError(
            f"The folder has files of several forms: {', '.join(forms)}",
            where=str(path),
            remedy="Keep those of one form in it, or name a file",
        )
    return parts or [path]


def _names_columns(path: Path, fields: RecordFields) -> bool:
    """Return True if the first line of a file with tabs is a header."""
    try:
        return fields.header(next(iter(TextFile(path)), "").split("\t"))
    except DataError:  # no UTF-8: reported with its line by whoever reads it
        return False


def _delimited_rows(part: TextFile, fields: RecordFields) -> Rows:
    lines = iter(part)
    first = next(lines, "")
    is_tsv = file_form(part.path) == ".tsv"
    reader = csv.reader(
        # Line ends, as a quoted cell may go on in the next line.
        (f"{line}\n" for line in itertools.chain([first], lines)),
        delimiter="\t" if is_tsv else max(_DELIMITERS, key=first.count),
        # Files with tabs hold quotation marks as text.
        quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL,
        strict=True,
    )
    names: list[str] = []
    for cells in reader:
        if not cells:  # an empty line
            continue
        if not names:
            names, part.facts.header = _column_names(cells, fields, part)
            if part.facts.header:
                continue
        if len(cells) != len(names):
            raise DataError(
                f"The line has {len(cells)} columns, the first of the file has {len(names)}",
                where=f"{part.path}:{part.lines}",
                remedy="Put a delimiter between columns and nowhere else, or quote the cell",
            )
        yield dict(zip(names, cells, strict=True))


def _column_names(cells: list[str], fields: RecordFields, part: TextFile) -> tuple[list[str], bool]:
    """Return the names of columns, and True if the first line gave them."""
    names = [cell.strip() for cell in cells]
    if fields.columns is not None:
        return [str(number) for number in range(1, len(cells) + 1)], False
    if fields.header(names):
        # "English", "German": the order of the columns says which is the source.
        named = fields.find({name: name for name in names}) is not None or any(fields.keys)
        return (names if named else list(fields.nouns)), True
    if file_form(part.path) == ".tsv" and len(cells) == 2:
        return list(fields.nouns), False
    raise DataError(
        f"The first line does not name the columns {' and '.join(fields.nouns)}; it has: "
        + ", ".join(map(repr, names)),
        where=f"{part.path}:1",
        remedy="Name them by --data.source-key and --data.target-key; in a file without a header "
        "by their numbers, such as --data.source-key 1 --data.target-key 2",
    )


def _json_rows(part: TextFile, fields: RecordFields) -> Rows:
    lines = iter(part)
    first = next(lines, "")
    if first.lstrip().startswith("["):  # one array, which only fits into memory as a whole
        rows = parse_json("\n".join([first, *lines]), str(part.path), "", "The file")
        yield from rows
        return
    for line in itertools.chain([first], lines):
        if line.strip():
            yield parse_json(line, f"{part.path}:{part.lines}", "Write an object a line")


def _parquet_rows(part: TextFile, fields: RecordFields) -> Rows:
    from pyarrow import parquet

    with part.opened() as content:
        table = parquet.ParquetFile(content)
        names = [each.name for each in table.schema_arrow if _has_text(each.type)]
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=names):
            yield from _batch_rows(batch)


def _arrow_rows(part: TextFile, fields: RecordFields) -> Rows:
    from pyarrow import ipc

    with part.opened() as content:
        magic = content.read(6)
        content.seek(0)
        if magic == b"ARROW1":  # the file format, also called Feather
            reader = ipc.open_file(content)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:  # the stream format, which `datasets` writes
            batches = iter(ipc.open_stream(content))
        for batch in batches:
            names = [each.name for each in batch.schema if _has_text(each.type)]
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield from _batch_rows(batch.select(names).slice(start, _ROWS_AT_ONCE))


def _batch_rows(batch: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    # `datasets` stores labels as numbers, and their names in the metadata of the schema.
    metadata = json.loads((batch.schema.metadata or {}).get(b"huggingface", b"{}"))
    for column, feature in metadata.get("info", {}).get("features", {}).items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        names = inner.get("names") if isinstance(inner, dict) else None
        for row in rows:
            if names and column in row:
                row[column] = _label_names(row[column], names)
    return rows


def _label_names(value: Any, names: list[str]) -> Any:
    """Return the name of a label, or those of a list of labels; None for a missing label."""
    if isinstance(value, list):
        return [_label_names(each, names) for each in value]
    if type(value) is not int:
        return value
    return names[value] if value in range(len(names)) else None  # -1 where there is no label


def _has_text(kind: Any) -> bool:
    """Return True for columns of texts and whole numbers, also nested; others are not read."""
    from pyarrow import types

    if types.is_nested(kind):
        return any(_has_text(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_dictionary(kind):
        return _has_text(kind.value_type)
    is_string = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(is_string or types.is_integer(kind))


def _tar_rows(part: TextFile, fields: RecordFields) -> Rows:
    """Yield the samples of WebDataset: files that follow each other and differ in their ending."""
    with part.opened() as content, tarfile.open(fileobj=content, mode="r|") as archive:
        sample = ""
        row: dict[str, Any] = {}
        for member in archive:
            folder, slash, name = member.name.rpartition("/")
            stem, _, ending = name.partition(".")
            if not member.isfile() or not ending:
                continue
            if row and f"{folder}{slash}{stem}" != sample:
                yield row
                row = {}
            sample = f"{folder}{slash}{stem}"
            row |= _member_values(archive, member, ending.lower(), part)
        if row:
            yield row


def _member_values(
    archive: tarfile.TarFile, member: tarfile.TarInfo, ending: str, part: TextFile
) -> dict[str, Any]:
    content = archive.extractfile(member)
    if content is None or member.size > _MEMBER_BYTES:
        return {}
    try:
        text = content.read().decode("utf-8-sig")
    except UnicodeDecodeError:  # an image or another part of the sample that is no text
        return {}
    if ending == "json":
        values = parse_json(text, f"{part.path}, {member.name}", "Write an object of texts")
        return values if isinstance(values, dict) else {}
    # The line end that editors put after a text is no part of it.
    return {ending.removesuffix(".txt"): text.removesuffix("\n").removesuffix("\r")}


class TableFormat(NamedTuple):
    """A format of tables.

    Args:
        name: name for people.
        rows: function that yields the rows of an open file.
        is_binary: true if the file is no text.
        is_arrow: true if pyarrow reads it.
    """

    name: str
    rows: Callable[[TextFile, RecordFields], Rows]
    is_binary: bool = False
    is_arrow: bool = False


FORMATS = {
    ".arrow": TableFormat("Arrow", _arrow_rows, True, True),
    ".csv": TableFormat("CSV", _delimited_rows),
    ".feather": TableFormat("Arrow", _arrow_rows, True, True),
    ".json": TableFormat("JSON", _json_rows),
    ".jsonl": TableFormat("JSON lines", _json_rows),
    ".ndjson": TableFormat("JSON lines", _json_rows),
    ".parquet": TableFormat("Parquet", _parquet_rows, True, True),
    ".tar": TableFormat("tar", _tar_rows, True),
    ".tsv": TableFormat("TSV", _delimited_rows),
}
"""Formats of tables by the suffix of their files; `.jsonl` alone is read without conversion."""
