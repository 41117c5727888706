"""Examples from memory, written as a file of JSON lines, which a run reads and resumes from.

Whatever yields examples will do: a list, a generator, a `datasets.Dataset`, a data frame. The file
has the digest of what was trained on, so that a resumed run makes the same updates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.data.record_fields import LABEL_FIELDS, PAIR_FIELDS, RecordFields
from heedful.durable import whole
from heedful.errors import DataError

_FORMS = {
    1: "a text, or a table with the name {}",
    2: "two texts, or a table with the names {} (or with two names in all)",
}


_RULES: dict[tuple[str, ...], RecordFields] = {
    rule.nouns: rule for rule in (PAIR_FIELDS, LABEL_FIELDS)
}


def file_spec(data: Any) -> dict[str, str] | None:
    """Return the files that stand in the place of examples as a corpus; None for examples.

    Args:
        data: a path as text or `Path`, two `Path`s of aligned files, or a corpus by name, such as
            `{"source": "train.en", "target": "train.de"}`.
    """
    if isinstance(data, str | Path):
        return {"file": str(data)}
    if isinstance(data, Mapping):
        return {name: str(value) for name, value in data.items()}
    # Two strings are a pair of texts as well as two files, so files are `Path`s here.
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(p, Path) for p in data):
        return {"source": str(data[0]), "target": str(data[1])}
    return None


def write_examples(data: Iterable[Any], names: Sequence[str], path: Path) -> int:
    """Write examples as JSON lines.

    Args:
        data: examples: tuples of texts, or tables; a data frame is read row by row.
        names: names of an example's texts: `source` and `target`, `text` and `label`, or `text`.
        path: file to write, with its folder.

    Returns:
        The number of examples.

    Raises:
        DataError: when an example has not these texts, with its number, or there is none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with whole(path) as out:
        for count, row in enumerate(_rows(data), start=1):
            record = dict(zip(names, _texts(row, names, count), strict=True))
            out.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
        if not count:
            raise DataError("There are no examples", remedy="Give at least one")
    return count


def write_records(data: Iterable[Any], path: Path) -> None:
    """Write records of token sequences as JSON lines.

    Args:
        data: tables of fields, or lists of a single field's values; arrays are written as lists.
        path: file to write, with its folder.

    Raises:
        DataError: when an example is no record, with its number, or there is none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with whole(path) as out:
        for count, row in enumerate(_rows(data), start=1):
            out.write((_record_line(row, count) + "\n").encode())
        if not count:
            raise DataError("There are no records", remedy="Give at least one")


def _record_line(row: Any, number: int) -> str:
    wrong = DataError(
        f"The example is no record, but an object of the type {type(row).__name__!r}",
        where=f"example {number}",
        remedy='Each must be a table of fields, such as {"pixels": [0, 3, 1]}, or a list',
    )
    if not isinstance(row, Mapping | list | tuple) and not hasattr(row, "tolist"):
        raise wrong
    try:
        # Numbers and arrays of NumPy, torch and others.
        return json.dumps(row, ensure_ascii=False, default=lambda value: value.tolist())
    except (AttributeError, TypeError):
        raise wrong from None


def examples(data: Any, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the texts of examples.

    Args:
        data, names: arguments of `write_examples`.

    Raises:
        DataError: when an example has not these texts, with its number.
    """
    for number, row in enumerate(_rows(data), start=1):
        yield _texts(row, names, number)


def _rows(data: Any) -> Iterable[Any]:
    """Return the examples of a data frame, of pandas or polars, or of any iterable."""
    if hasattr(data, "iter_rows"):  # polars
        return data.iter_rows(named=True)  # type: ignore[no-any-return]
    if hasattr(data, "itertuples"):  # pandas
        columns = list(map(str, data.columns))
        return (dict(zip(columns, row, strict=True)) for row in data.itertuples(index=False))
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise DataError(
            f"Examples cannot be read from an object of the type {type(data).__name__!r}",
            remedy="Give a list or another iterable of examples, a data frame, or files",
        )
    return data


def _of_table(row: Mapping[str, Any], names: Sequence[str]) -> Sequence[Any]:
    """Return the values of an example by the names that files have, or else all in their order."""
    found: Sequence[Any] | None = None
    if rule := _RULES.get(tuple(names)):
        found = rule.find(row)
    elif all(name in row for name in names):
        found = [row[name] for name in names]
    if found is not None:
        return found
    # Two languages, which `datasets` puts into one field.
    inner = row.get("translation")
    return [*(inner if isinstance(inner, Mapping) else row).values()]


def _texts(row: Any, names: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the texts of one example in the order of `names`."""
    values: Sequence[Any] = ()
    if isinstance(row, Mapping):
        values = _of_table(row, names)
    elif isinstance(row, str):
        values = [row]
    elif isinstance(row, Sequence):
        values = row
    # Labels are often numbers, which files have as text.
    if len(values) == len(names) > 1 and isinstance(values[1], int) and names[1] == "label":
        values = [values[0], str(values[1])]
    if len(values) != len(names) or not all(isinstance(value, str) for value in values):
        found = (
            f"a table with the names {', '.join(map(str, row))}"
            if isinstance(row, Mapping)
            else (f"an object of the type {type(row).__name__!r}")
        )
        form = _FORMS[len(names)].format(" and ".join(map(repr, names)))
        raise DataError(
            f"The example is no {' and '.join(names)}, but {found}",
            where=f"example {number}",
            remedy=f"Each must be {form}",
        )
    return tuple(values)
