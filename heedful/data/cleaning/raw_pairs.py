"""Pairs with the bytes they were read from; lines that are no pair are told, not refused."""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self, cast

from heedful.data.corpus_spec import CorpusSpec
from heedful.data.pair_corpus import (
    corpus_paths,
    jsonl_pair,
    no_pairs,
    not_aligned,
    pair_form,
    tsv_pair,
)
from heedful.data.text_file import FileFacts, TextFile, file_form
from heedful.errors import DataError


class RawPair(NamedTuple):
    """One place in a corpus.

    Args:
        line: its number, from 1.
        source, target: the texts; with U+FFFD for bytes that are not UTF-8.
        raw: the line of each file as it stands there, without its end.
        fault: None, `undecodable` (bytes that are not UTF-8, or NUL) or `no_pair`.
        why: a sentence about the fault, else empty.
    """

    line: int
    source: str
    target: str
    raw: tuple[bytes, ...]
    fault: str | None = None
    why: str = ""


class RawCorpus:
    """The pairs of a corpus; can be gone through several times.

    Args:
        spec: which files.

    Attributes:
        paths: of the files.
        pairs: number of lines, counted beforehand.
        facts: of each file; complete once all pairs were read.

    Raises:
        DataError: when a file is missing, unreadable or empty, or two are of different lengths.
    """

    def __init__(self, spec: CorpusSpec) -> None:
        self.spec = spec
        self.paths = corpus_paths(spec)
        self.is_jsonl = len(self.paths) == 1 and pair_form(self.paths[0]) == ".jsonl"
        files = [TextFile(path) for path in self.paths]
        for file in files:
            _count_lines(file)
        if len({file.lines for file in files}) > 1:
            raise not_aligned(*files)
        self.pairs = files[0].lines
        self.facts: list[FileFacts] = []
        if self.pairs == 0:
            raise no_pairs(files[0])

    def __iter__(self) -> Iterator[RawPair]:
        """The pairs, one for each line.

        Raises:
            DataError: for damaged gzip, and for UTF-16.
        """
        files = [TextFile(path) for path in self.paths]
        self.facts = [file.facts for file in files]
        return self._aligned(*files) if len(files) == 2 else self._single(*files)

    def _aligned(self, source: TextFile, target: TextFile) -> Iterator[RawPair]:
        lines = zip(source.raw_lines(), target.raw_lines(), strict=True)
        for left, right in lines:
            (a, why_a), (b, why_b) = _decode(source, left), _decode(target, right)
            raw = (_stripped(left, source.lines), _stripped(right, target.lines))
            if why_a or why_b:
                why = f"source: {why_a}" if why_a else f"target: {why_b}"
                yield RawPair(source.lines, a, b, raw, "undecodable", why)
            else:
                yield RawPair(source.lines, a, b, raw)

    def _single(self, file: TextFile) -> Iterator[RawPair]:
        parse = jsonl_pair if self.is_jsonl else tsv_pair
        for line in file.raw_lines():
            text, why = _decode(file, line)
            raw = (_stripped(line, file.lines),)
            if why:
                source, _, target = text.partition("\t")
                yield RawPair(file.lines, source, target, raw, "undecodable", why)
                continue
            try:
                _, source, target = parse(text, file)
            except DataError as error:
                yield RawPair(file.lines, text, "", raw, "no_pair", error.what)
                continue
            yield RawPair(file.lines, source, target, raw)


@dataclass(frozen=True)
class PairWriter:
    """Writes pairs in the form they were read in; to be made by `open`.

    Args:
        streams: a file for each side, or the one of pairs.
    """

    streams: tuple[BinaryIO, ...]

    @classmethod
    def open(cls, folder: Path, names: tuple[str, ...], stack: ExitStack) -> Self:
        """Open files to write; those whose names end in .gz are compressed.

        Args:
            folder: of the files.
            names: one for each file of the corpus.
            stack: closes them.
        """
        streams = []
        for name in names:
            stream: BinaryIO = stack.enter_context((folder / name).open("wb"))
            if name.endswith(".gz"):  # without a time, so that the same pairs give the same bytes
                packed = gzip.GzipFile(fileobj=stream, mode="wb", mtime=0, filename="")
                stream = cast(BinaryIO, stack.enter_context(packed))
            streams.append(stream)
        return cls(tuple(streams))

    def write(self, pair: RawPair) -> None:
        """Write one pair, byte for byte as it was.

        Raises:
            OSError: when it cannot be written.
        """
        for stream, line in zip(self.streams, pair.raw, strict=True):
            stream.write(line + b"\n")


def file_names(paths: list[Path], stem: str | None = None) -> tuple[str, ...]:
    """Names for files that hold pairs of a corpus.

    Args:
        paths: the files of the corpus.
        stem: of the names, such as `train`; those of the corpus itself if None.
    """
    if stem is None:
        names = [path.name for path in paths]
    else:
        names = [f"{stem}{file_form(p)}{'.gz' * (p.suffix == '.gz')}" for p in paths]
    if len(set(names)) < len(names):  # files of one name in two folders
        names = [f"{side}-{name}" for side, name in zip(("source", "target"), names, strict=True)]
    return tuple(names)


def _count_lines(file: TextFile) -> None:
    for _ in file.raw_lines():
        pass


def _decode(file: TextFile, line: bytes) -> tuple[str, str]:
    """The text of a line, and what is wrong with its bytes, if anything."""
    try:
        return file.decode(line), ""
    except DataError as error:
        if file.lines == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise
        return line.rstrip(b"\n").decode("utf-8", "replace"), error.what


def _stripped(line: bytes, number: int) -> bytes:
    """A line without its end; the first one without a byte order mark, as it may move."""
    line = line.removesuffix(b"\n")
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
