"""Input and output of text lines, and the reports of verbs: `--json`, `--report` and tables.

Input is read as it arrives, and output files appear only when they are complete. Standard output
is for text and JSON; tables and messages go to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import selectors
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TextIO

from cyclopts import Parameter

import heedful
from heedful.cli.parser import flag_group
from heedful.durable import decode_line, whole
from heedful.errors import DataError, ModelError, UserError

if TYPE_CHECKING:
    from heedful.events import Events

# A single hyphen, which looks like a flag, means standard input or output.
# A word that begins with a hyphen is a flag, perhaps a mistyped one, which must not become a text.
OneText = Annotated[
    str | None,
    Parameter(
        help="Text to process, instead of the lines of --input; after -- if it "
        "begins with a hyphen."
    ),
]
InputFile = Annotated[Path | None, Parameter(name=("--input", "-i"), allow_leading_hyphen=True)]
OutputFile = Annotated[Path | None, Parameter(name=("--output", "-o"), allow_leading_hyphen=True)]

STANDARD_INPUT = "standard input"

_READ = 1 << 16


def is_standard(path: Path | None) -> bool:
    """Return True for standard input or output: no path, or `-`."""
    return path is None or str(path) == "-"


def refuse_text(text: str | None, path: Path | None, verb: str) -> None:
    """Refuse a text that is given beside a file of texts, or that is a file's name.

    Args:
        text: single text from the command line; None if there is none.
        path: value of --input.
        verb: name of the verb, for the error.
    """
    if text is None:
        return
    where = f"heedful {verb}"
    if path is not None:
        raise UserError("Give a text or --input, not both", where=where)
    # Longer words are texts; asking the system for them may fail.
    if len(text) < 256 and Path(text).is_file():
        raise UserError(
            f"{text!r} is a file, and a text is expected here",
            where=where,
            remedy=f"Read its lines with --input {text}",
        )


def chunks(path: Path | None, size: int, text: str | None = None) -> Iterator[list[str]]:
    """Yield the lines of a file or of standard input, in lists of at most `size`.

    Args:
        path: plain or gzip file, or pipe of plain text; standard input if None or `-`.
        size: maximum number of lines in a list.
        text: single text from the command line, instead of a file.

    Raises:
        DataError: when there is no such file, or a line is not text.
    """
    if text is not None:
        yield [text]
        return
    if path is None or is_standard(path):
        yield from stream_chunks(sys.stdin.buffer, STANDARD_INPUT, size)
        return
    if path.is_fifo():  # such as <(command) of a shell
        with path.open("rb") as stream:
            yield from stream_chunks(stream, str(path), size)
        return
    from heedful.data.text_file import TextFile

    lines = iter(TextFile(path))
    while chunk := list(islice(lines, size)):
        yield chunk


def read_lines(path: Path) -> list[str]:
    """Return all lines of a file, plain or gzip.

    Raises:
        DataError: when there is no such file, or a line is not text.
    """
    if path.is_fifo():
        return [line for chunk in chunks(path, _READ) for line in chunk]
    from heedful.data.text_file import TextFile

    return list(TextFile(path))


def read_aligned(path: Path, lines: int) -> list[str]:
    """Return all lines of a file, which correspond to those of a reference.

    Raises:
        DataError: when the number of lines is not `lines`, and as for `read_lines`.
    """
    texts = read_lines(path)
    if len(texts) != lines:
        raise DataError(
            f"There are {len(texts):,} lines here and {lines:,} in the reference",
            where=str(path),
            remedy="Give files that correspond line by line",
        )
    return texts


def read_parallel(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Return all lines of two files that correspond line by line.

    Raises:
        DataError: when the numbers of lines differ, and as for `read_lines`.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources):,} lines and {target} has {len(targets):,}",
            remedy="Give files that correspond line by line",
        )
    return sources, targets


def stream_chunks(stream: BinaryIO, name: str, size: int) -> Iterator[list[str]]:
    """Yield the lines of a stream in lists of at most `size`, without waiting for a full list.

    A typed line is yielded at once, and the lines of a file come in full lists.

    Args:
        stream: binary file, pipe or terminal.
        name: name of the stream in messages.
        size: maximum number of lines in a list.

    Raises:
        DataError: for a line that is not text.
    """
    ready: list[str] = []
    number = 0
    for line in _raw_lines(stream):
        if line is not None:
            number += 1
            ready.append(decode_line(line, number, name))
        if ready and (line is None or len(ready) == size):
            yield ready
            ready = []
    if ready:
        yield ready


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Open a text file that appears only when all of it is written.

    Raises:
        OSError: when the file cannot be written.
    """
    with whole(path) as file:
        stream = TextIOWrapper(file, encoding="utf-8", newline="\n")
        try:
            yield stream
            stream.flush()
        finally:
            stream.detach()


@contextmanager
def output_to(path: Path | None) -> Iterator[TextIO]:
    """Open a file for writing, or standard output."""
    if path is None or is_standard(path):
        yield sys.stdout
    else:
        with writing(path) as stream:
            yield stream


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a whole text file."""
    with writing(path) as stream:
        stream.writelines(f"{line}\n" for line in lines)


def _raw_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines without their newline, and None before a read that would wait."""
    rest, read1 = bytearray(), getattr(stream, "read1", None)
    while True:
        if not _has_more(stream):
            yield None
        # Read the bytes that have arrived, at least one byte; no bytes mean the end.
        block = read1(_READ) if read1 else stream.read(_READ)
        if not block:
            break
        start = len(rest)
        rest += block
        newline = rest.rfind(b"\n", start)
        if newline >= 0:
            yield from bytes(rest[:newline]).split(b"\n")
            del rest[: newline + 1]
    if rest:
        yield bytes(rest)


def _has_more(stream: BinaryIO) -> bool:
    """Return True if a read would return at once, or if this cannot be known."""
    try:
        with selectors.DefaultSelector() as waiting:  # select() takes no descriptor above 1023
            waiting.register(stream, selectors.EVENT_READ)
            return bool(waiting.select(0))
    except (OSError, ValueError, TypeError):  # a regular file, or no descriptor to wait for
        return True


def refuse_missing_folder(path: Path | None) -> None:
    """Check that a file can be written to this path, before long work.

    Args:
        path: path of the file; standard output if None or `-`.

    Raises:
        UserError: when its folder is missing, or the path is a folder.
    """
    if path is None or is_standard(path):
        return
    if path.is_dir():
        raise UserError("This is a directory", where=str(path), remedy="Name a file")
    folder = (Path(os.path.realpath(path)) if path.is_symlink() else path).parent
    if not folder.is_dir():
        raise UserError(
            "No such directory", where=str(folder), remedy="Make it, or choose another place"
        )
    if not os.access(folder, os.W_OK) and (path.is_file() or not path.exists()):  # not a pipe
        raise UserError(
            "This directory cannot be written to",
            where=str(folder),
            remedy="Choose another directory, or change its permissions",
        )


def refuse_chart(path: Path | None) -> None:
    """Check that a chart can be written to this path, before long work.

    Raises:
        UserError: when a library or the folder is missing, or the kind of file is unknown.
    """
    if path is not None:
        from heedful.apps import charts

        charts.kind_of(path)
        refuse_missing_folder(path)


def refuse_existing(out: Path) -> None:
    """Check that a directory can be created without replacing another one.

    Raises:
        ModelError: when the path exists, or its parent does not.
    """
    if out.exists():
        raise ModelError(
            "This path exists already",
            where=str(out),
            remedy="Name a directory that does not exist yet",
        )
    if not out.absolute().parent.is_dir():
        raise ModelError(
            "No such directory",
            where=str(out.absolute().parent),
            remedy="Make it, or choose another place",
        )


@flag_group("Output", 90)
class Output:
    """The flags of every verb.

    Args:
        json: Print JSON to standard output, one object a line.
        report: File for a JSON report of settings, results, time and memory.
    """

    json: bool = False
    report: Path | None = None


class Report:
    """The JSON record of one run of a verb: settings, results, time and memory.

    Args:
        verb: name of the verb.
        output: flags of every verb.
        groups: groups of flags of this verb, or settings as plain data.
        flags: further flags of this verb, by name.
    """

    def __init__(self, verb: str, output: Output, /, *groups: Any, **flags: Any) -> None:
        self.verb = verb
        self.version = heedful.__version__
        self.output = output
        self.settings: dict[str, Any] = plain(flags)
        for group in groups:
            self.settings |= plain(group)
        self.started = time.perf_counter()
        refuse_missing_folder(output.report)

    @property
    def seconds(self) -> float:
        """Seconds since the verb began."""
        return time.perf_counter() - self.started

    def finish(self, facts: Mapping[str, Any], *, summary: bool = True) -> None:
        """Write the report; with `--json`, print it too.

        Args:
            facts: counts, rates and scores, as plain data.
            summary: True to print the record with `--json`; False for verbs that print an object
                per item.
        """
        if self.output.report is None and not (summary and self.output.json):
            return
        from heedful.memory import peak_memory_bytes
        from heedful.pretrained.hub import commits_used

        words = (
            word
            for value in self.settings.values()
            for word in (value if isinstance(value, list) else [value])
        )
        commits = commits_used(words)
        record = {
            "command": self.verb,
            "version": self.version,
            "settings": self.settings,
            **({"commits": commits} if commits else {}),
            **facts,
            "seconds": round(self.seconds, 3),
            "peak_memory_bytes": peak_memory_bytes(),
            "machine": {"system": platform.platform(), "python": platform.python_version()},
        }
        if self.output.report is not None:
            with writing(self.output.report) as stream:
                stream.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        if summary and self.output.json:
            print_json(record)


def plain(value: Any) -> Any:
    """Return a flag or a group of flags as JSON data."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def print_json(item: Mapping[str, Any]) -> None:
    """Print an object on one line of standard output."""
    print(json.dumps(item, ensure_ascii=False))


def one_line(text: str) -> str:
    """Escape backslashes, tabs and line breaks of a text as in C."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return escaped.replace("\t", "\\t")


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: int = 0,
    faint: Collection[int] = (),
) -> None:
    """Print a table to standard error.

    Args:
        title: text above the table.
        columns: headings of the columns.
        rows: cells of each row.
        numbers: number of right-aligned columns, counted from the last one.
        faint: indices of greyed rows.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for position, column in enumerate(columns):
        right = position >= len(columns) - numbers
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for number, row in enumerate(rows):
        style = "dim" if number in faint else None
        table.add_row(*(Text(cell) for cell in row), style=style)
    # A file or a pipe has no width, and 80 columns would wrap signatures and paths.
    console = Console(file=sys.stderr, width=None if sys.stderr.isatty() else 200)
    console.print(table)


def show_values(
    title: str, columns: Sequence[str], values: Mapping[str, Any], text: Callable[[Any], str]
) -> None:
    """Print a table of named values to standard error.

    Args:
        title: text above the table.
        columns: headings of the names and of the values.
        values: values by name, with underscores for spaces.
        text: function that formats a value.
    """
    rows = [(name.replace("_", " "), text(value)) for name, value in values.items()]
    show_table(title, columns, rows, numbers=1)


def say(text: str = "") -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr)


@contextmanager
def terminal() -> Iterator[Events]:
    """A context with events that print progress and warnings to standard error."""
    from heedful.events import Events, Terminal  # takes 6 ms, which help pages do not need

    with closing(Events([Terminal()])) as events:
        yield events


def engineering(count: float, unit: str = "") -> str:
    """Return a number with a unit prefix, such as 2.6 M."""
    size, prefixes = float(count), ["", "k", "M", "G", "T", "P"]
    while abs(size) >= 999.5 and len(prefixes) > 1:
        size /= 1000
        del prefixes[0]
    digits = 0 if not prefixes[0] or abs(size) >= 99.95 else 1
    return f"{size:.{digits}f} {prefixes[0]}{unit}".rstrip()


class Prefixes:
    """The forced prefixes of translations, which are read line by line with the input."""

    def __init__(self, text: str | None, file: Path | None) -> None:
        if text is not None and file is not None:
            raise UserError("Give --prefix or --prefix-file, not both", where="heedful translate")
        self.text = text
        self.file = file
        self.lines: Iterator[str] | None = iter(read_lines(file)) if file is not None else None

    def take(self, count: int) -> list[str] | None:
        """Return the prefixes of the next lines."""
        if self.lines is None:
            return None if self.text is None else [self.text] * count
        taken = list(islice(self.lines, count))
        if len(taken) < count:
            raise self._out_of_step("has fewer lines than the text")
        return taken

    def finish(self) -> None:
        """Raise an error if prefixes are left over."""
        if self.lines is not None and next(self.lines, None) is not None:
            raise self._out_of_step("has more lines than the text")

    def _out_of_step(self, what: str) -> DataError:
        return DataError(
            f"The file of prefixes {what}",
            where=str(self.file),
            remedy="Give one prefix for each line; an empty line stands for no prefix",
        )
