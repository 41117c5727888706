"""Pairs with their original bytes; lines that are not a pair are marked, not refused."""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self, cast

from heedful.apps.cleaning.cleaning_settings import is_memory
from heedful.apps.cleaning.translation_memory import MemoryFile
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.pair_corpus import (
    corpus_paths,
    no_pairs,
    not_aligned,
    pair_files,
    pair_parser,
)
from heedful.data.text_file import FileFacts, TextFile, plain_name
from heedful.errors import DataError


class RawPair(NamedTuple):
    """One line of a corpus.

    Args:
        line: line number, from 1.
        source, target: texts, with U+FFFD for bytes that are not UTF-8.
        raw: bytes of the line in each file, without the line end.
        fault: None, `undecodable` (bytes that are not UTF-8, or NUL) or `no_pair`.
        why: sentence about the fault; empty if there is none.
    """

    line: int
    source: str
    target: str
    raw: tuple[bytes, ...]
    fault: str | None = None
    why: str = ""


class RawCorpus:
    """The pairs of a corpus; can be iterated repeatedly.

    Args:
        spec: files of the corpus.
        languages: codes of source and target, needed for a translation memory of several languages.

    Attributes:
        paths: paths of the files.
        pairs: number of lines, counted beforehand.
        form: suffix of the one file that the pairs are written to; None for aligned files.
        facts: facts about the encoding of each file, complete after the last pair.

    Raises:
        DataError: when a file is missing, unreadable or empty, or two differ in length.
    """

    def __init__(self, spec: CorpusSpec, languages: Sequence[str] | None = None) -> None:
        if languages is not None and len(languages) == 2 and spec.languages is None:
            spec = spec.model_copy(update={"languages": tuple(languages)})
        self.spec = spec
        self.languages = languages
        self.paths = corpus_paths(spec)
        # Lines are counted first: progress needs a total, and files of unequal length cannot be
        # paired.
        files = self._open()
        for file in files:
            _count_lines(file)
        if len({file.lines for file in files}) > 1:
            raise not_aligned(*files)
        self.pairs = files[0].lines
        self.form = _written_form(files)
        self.facts: list[FileFacts] = []
        if self.pairs == 0:
            raise no_pairs(files[0])

    def __iter__(self) -> Iterator[RawPair]:
        """Yield the pairs, one for each line.

        Raises:
            DataError: when gzip is damaged, or a file is UTF-16.
        """
        files = self._open()
        self.facts = [file.facts for file in files]
        return self._aligned(*files) if len(files) == 2 else self._single(*files)

    def _open(self) -> list[TextFile]:
        if is_memory(self.paths[0]):
            return [MemoryFile(self.paths[0], self.languages)]
        return pair_files(self.spec)

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
        parse = pair_parser(self.spec, file)
        for line in file.raw_lines():
            text, why = _decode(file, line)
            raw = (_stripped(line, file.lines),)
            if why:
                # Replacement characters suffice here: the line is reported, not used.
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
    """A writer of pairs in the file format of their corpus; made by `open`.

    Args:
        streams: file of each side, or the one file of pairs.
    """

    streams: tuple[BinaryIO, ...]

    @classmethod
    def open(cls, folder: Path, names: tuple[str, ...], stack: ExitStack) -> Self:
        """Open files for writing; a name that ends in .gz is compressed.

        Args:
            folder: folder of the files.
            names: name of each file.
            stack: stack that closes the files.
        """
        streams = []
        for name in names:
            stream: BinaryIO = stack.enter_context((folder / name).open("wb"))
            if name.endswith(".gz"):  # no time stamp, so that the same pairs give the same bytes
                packed = gzip.GzipFile(fileobj=stream, mode="wb", mtime=0, filename="")
                stream = cast(BinaryIO, stack.enter_context(packed))
            streams.append(stream)
        return cls(tuple(streams))

    def write(self, pair: RawPair) -> None:
        """Write one pair with its original bytes.

        Raises:
            OSError: when the file cannot be written.
        """
        for stream, line in zip(self.streams, pair.raw, strict=True):
            stream.write(line + b"\n")


def file_names(corpus: RawCorpus, stem: str | None = None) -> tuple[str, ...]:
    """Return names for files that hold pairs of a corpus.

    Args:
        corpus: corpus of the pairs.
        stem: stem of the names, such as `train`; None for the names of the corpus itself.
    """
    names = []
    for path in corpus.paths:
        name = plain_name(path)
        # Units of memories are written as lines with tabs, rows of tables as lines of JSON.
        if corpus.form is not None:
            name = Path(name).stem + corpus.form
        if stem is not None:
            name = stem + Path(name).suffix
        names.append(name + ".gz" * (path.suffix == ".gz"))
    if len(set(names)) < len(names):  # such as en/news.txt and de/news.txt
        names = [f"{side}-{name}" for side, name in zip(("source", "target"), names, strict=True)]
    return tuple(names)


def _written_form(files: Sequence[TextFile]) -> str | None:
    """Return the suffix of a corpus in one file when it is written; None for aligned files."""
    if len(files) > 1:
        return None
    return ".jsonl" if files[0].is_json else ".tsv"


def _count_lines(file: TextFile) -> None:
    for _ in file.raw_lines():
        pass


def _decode(file: TextFile, line: bytes) -> tuple[str, str]:
    """Return the text of a line and a sentence about a fault of its bytes, "" without a fault."""
    try:
        return file.decode(line), ""
    except DataError as error:
        # In UTF-16 every line would be faulty, and one error about the file is clearer.
        if file.lines == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise
        return line.rstrip(b"\n").decode("utf-8", "replace"), error.what


def _stripped(line: bytes, number: int) -> bytes:
    """Return a line without its line end and without a byte order mark in line 1.

    The line may stand at another place in a written file, where such a mark would be wrong.
    """
    line = line.removesuffix(b"\n")
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
