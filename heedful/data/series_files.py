"""Time series as token sequences: a window is scaled by the mean of its context and cut into bins.

This is the way of Chronos (Ansari 2024). A window has a context, which is known, and the values of
a horizon after it. All of them are divided by the mean absolute value of the context, so that
series of any unit share one vocabulary, and each becomes the number of its bin.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.data.array_files import VALUES, load_arrays
from heedful.data.corpus_file import CorpusFile
from heedful.data.corpus_spec import RecordSpec
from heedful.data.text_corpus import CorpusDocument
from heedful.data.text_file import file_form, parse_json
from heedful.errors import DataError

Values = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

_REMEDY = "Give a column of numbers for each series (.csv), or a row (.npy, .jsonl)"


def scale_of(context: Values) -> float:
    """Return the scale of a window: the mean absolute value of its context, 1 for zeros."""
    return float(np.abs(context).mean()) or 1.0


def bins_of(values: Values, scale: float, spec: RecordSpec) -> Codes:
    """Return the bin of each value.

    Args:
        values: values in their own units.
        scale: scale of their window.
        spec: number of bins, and the multiple of the scale that they reach up and down. The first
            and the last bin are open: they hold what is beyond.
    """
    width = 2 * spec.bin_limit / spec.bins
    codes = np.floor((values / scale + spec.bin_limit) / width)
    return np.clip(codes, 0, spec.bins - 1).astype(np.int64)


def values_of(codes: Codes, scale: float, spec: RecordSpec) -> Values:
    """Return the middle of each bin, in the units of a window.

    Args:
        codes, scale, spec: result and arguments of `bins_of`.
    """
    width = 2 * spec.bin_limit / spec.bins
    middles = (codes + 0.5) * width - spec.bin_limit
    return np.asarray(middles * scale, np.float64)


def series_of(value: Any, where: str) -> Values:
    """Return a series as an array.

    Args:
        value: numbers in the order of time.
        where: place of the series, for the error message.

    Raises:
        DataError: when it is no series of finite numbers.
    """
    try:
        series = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        series = np.zeros((0, 0))
    if series.ndim != 1:
        raise DataError("This is no series of numbers", where=where, remedy=_REMEDY)
    if not np.isfinite(series).all():
        place = int(np.argmin(np.isfinite(series))) + 1
        raise DataError(
            f"The value {place} is missing or not finite",
            where=where,
            remedy="Fill gaps, or cut the series there",
        )
    return series


@dataclass(frozen=True)
class SeriesRecords(CorpusFile):
    """The windows of the series of a file, as records of the bins of their values.

    The windows of a series end at its last value, at the one a horizon before, and so on.

    Args:
        path: table of a series a column (.csv), array of a series a row (.npy), or lines of JSON
            with a list each.
        spec: bins, context and horizon.
    """

    spec: RecordSpec

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a window, as in settings; a bin may be empty in the training data."""
        return (f"{VALUES}:{self.spec.bins}:{self.spec.context + self.spec.horizon}",)

    def __iter__(self) -> Iterator[CorpusDocument]:
        """Yield the windows, with the numbers of their series.

        Raises:
            DataError: when the file cannot be read, or a series is too short or has a gap.
        """
        return self.at_least_one(self._documents(), "series")

    def records(self) -> Iterator[tuple[str, Any]]:
        """Yield the windows with the places of their series."""
        for where, series in self.series():
            yield from ((where, window) for window in self._windows(series, where))

    def series(self) -> Iterator[tuple[str, Values]]:
        """Yield the series of the file with their places."""
        for where, value in self._read():
            yield where, series_of(value, where)

    def content_hash(self) -> str:
        """Return the SHA-256 of the file and of the settings that change the windows."""
        spec = self.spec
        reading = (spec.bins, spec.bin_limit, spec.context, spec.horizon)
        return self.hash_with(f"series {reading}")

    def _documents(self) -> Iterator[CorpusDocument]:
        for number, (where, series) in enumerate(self.series(), start=1):
            for window in self._windows(series, where):
                yield CorpusDocument(number, json.dumps(window))

    def _windows(self, series: Values, where: str) -> Iterator[dict[str, list[int]]]:
        context, horizon = self.spec.context, self.spec.horizon
        last = len(series) - context - horizon
        if last < 0:
            raise DataError(
                f"The series has {len(series):,} values, fewer than a context of {context:,} and "
                f"a horizon of {horizon:,}",
                where=where,
                remedy="Leave it out, or lower tokens.context",
            )
        for start in range(last % horizon, last + 1, horizon):
            window = series[start : start + context + horizon]
            codes = bins_of(window, scale_of(window[:context]), self.spec)
            yield {VALUES: codes.tolist()}

    def _read(self) -> Iterator[tuple[str, Any]]:
        if file_form(self.path) == ".npy":
            rows = np.atleast_2d(load_arrays(self.path, "iuf", "numbers")[VALUES])
            yield from ((f"{self.path}, row {n}", row) for n, row in enumerate(rows, start=1))
        elif self.is_jsonl:
            for _, where, line in self.filled_lines():
                value = parse_json(line, where, _REMEDY)
                yield where, value.get(VALUES) if isinstance(value, dict) else value
        else:
            yield from self._columns()

    def _columns(self) -> Iterator[tuple[str, list[float]]]:
        """Yield the columns of a table with their names.

        The first column may hold times, and the first row names. Cells may be empty where a series
        begins later or ends earlier than others.
        """
        lines = list(self.opened())
        # Semicolons stand where the comma is a decimal sign, which is no number here.
        delimiter = max(",;\t", key=(lines or [""])[0].count)
        rows = list(csv.reader(lines, delimiter=delimiter))
        if not rows:
            return
        has_names = not any(map(_is_number, rows[0]))
        names = rows[0] if has_names else [str(n + 1) for n in range(len(rows[0]))]
        body = rows[has_names:]
        if (widest := max(map(len, rows))) > len(names):
            raise DataError(
                f"A row has {widest} cells, and the first one {len(names)}",
                where=str(self.path),
                remedy="Give a column for each series",
            )
        has_times = len(names) > 1 and not any(_is_number(row[0]) for row in body if row)
        for column in range(has_times, len(names)):
            where = f"{self.path}, column {names[column]}"
            cells = [row[column].strip() if column < len(row) else "" for row in body]
            yield where, _numbers(cells, where, first_line=1 + has_names)


def _numbers(cells: Sequence[str], where: str, first_line: int) -> list[float]:
    """Return the numbers of a column without the empty cells at its ends.

    Raises:
        DataError: for a cell between them that is no number, with its line.
    """
    filled = [number for number, cell in enumerate(cells) if cell]
    first, last = (filled[0], filled[-1]) if filled else (0, -1)
    for number in range(first, last + 1):
        if not _is_number(cells[number]):
            raise DataError(
                f"The cell is no number: {cells[number]!r}",
                where=f"{where}, line {number + first_line}",
                remedy="Fill gaps, and write numbers with a decimal point",
            )
    return [float(cell) for cell in cells[first : last + 1]]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
