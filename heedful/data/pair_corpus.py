"""Sentence pairs out of files: two aligned files, one TSV file, or one JSONL file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heedful.data.corpus_spec import CorpusSpec
from heedful.data.text_file import (
    FileFacts,
    LongWords,
    TextFile,
    content_digest,
    file_form,
    parse_json,
    shards_not_read,
)
from heedful.errors import DataError

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")

_JSONL_REMEDY = 'Each line must be an object like {"source": "…", "target": "…"}'


class Pair(NamedTuple):
    """One pair and the number of the line it came from, counted from 1."""

    line: int
    source: str
    target: str


class CorpusReader:
    """The pairs of one corpus, read as they are asked for; go through it once.

    Args:
        spec: which files.

    Attributes:
        files: the files being read, for their facts and progress.

    Raises:
        DataError: when a file is missing or unreadable.
    """

    def __init__(self, spec: CorpusSpec) -> None:
        self.spec = spec
        self.files = [TextFile(path) for path in corpus_paths(spec)]

    def __iter__(self) -> Iterator[Pair]:
        """The pairs, one a line.

        Raises:
            DataError: naming file and line, for anything that is not a pair, or when there is none.
        """
        yield from self._read()
        if self.files[0].lines == 0:
            raise no_pairs(self.files[0])

    @property
    def progress(self) -> tuple[int, int]:
        return sum(f.bytes_done for f in self.files), sum(f.bytes_total for f in self.files)

    @property
    def facts(self) -> list[FileFacts]:
        """Facts about the encoding of the files; complete after the last pair."""
        return [file.facts for file in self.files]

    def _read(self) -> Iterator[Pair]:
        if len(self.files) == 2:
            return _aligned(*self.files)
        (file,) = self.files
        return _jsonl(file) if pair_form(file.path) == ".jsonl" else _tsv(file)


def corpus_paths(spec: CorpusSpec) -> list[Path]:
    """The files of a corpus: source and target, or the one file of pairs.

    Raises:
        DataError: for shards, which are read in training only.
    """
    if spec.shards is not None:
        raise shards_not_read(spec.shards)
    if spec.file is not None:
        return [Path(spec.file)]
    assert spec.source is not None
    assert spec.target is not None
    return [Path(spec.source), Path(spec.target)]


def line_name(spec: CorpusSpec, line: int) -> str:
    """The place of a pair, as "file:line"; for aligned files, the source's."""
    return f"{corpus_paths(spec)[0]}:{line}"


def content_hash(spec: CorpusSpec) -> str:
    """SHA-256, in hexadecimal, of the bytes of a corpus's files and of how they are read.

    Raises:
        DataError: when a file is missing or unreadable.
    """
    total = hashlib.sha256()
    for path in corpus_paths(spec):
        total.update(content_digest(path))
    form = "aligned" if spec.file is None else pair_form(Path(spec.file))
    return hashlib.sha256(total.digest() + form.encode()).hexdigest()


@dataclass(frozen=True)
class CorpusTexts:
    """One side of several corpora, one after the other; reads the files anew each time.

    Args:
        specs: the corpora.
        side: which side.
        long_words: takes out words that a tokenizer cannot be trained on.
    """

    specs: Sequence[CorpusSpec]
    side: Side
    long_words: LongWords

    def __iter__(self) -> Iterator[str]:
        for spec in self.specs:
            for pair in CorpusReader(spec):
                text = pair.source if self.side == "source" else pair.target
                yield self.long_words.without(text, line_name(spec, pair.line))


def pair_form(path: Path) -> str:
    """The end of the name of one file of pairs: `.tsv` or `.jsonl`.

    Raises:
        DataError: for any other.
    """
    form = file_form(path)
    if form not in (".tsv", ".jsonl"):
        raise DataError(
            f"Pairs in one file are read from .tsv or .jsonl (or .gz of them), not {path.name!r}",
            where=str(path),
            remedy="Rename the file, or give aligned files as source and target",
        )
    return form


def _aligned(source: TextFile, target: TextFile) -> Iterator[Pair]:
    sources, targets = iter(source), iter(target)
    while True:
        left, right = next(sources, None), next(targets, None)
        if left is None and right is None:
            return
        if left is None or right is None:
            _exhaust(sources)
            _exhaust(targets)
            raise not_aligned(source, target)
        yield Pair(source.lines, left, right)


def no_pairs(file: TextFile) -> DataError:
    """The error that a corpus is empty."""
    return DataError(
        "The corpus holds no pairs",
        where=str(file.path),
        remedy="Check that this is the right file",
    )


def not_aligned(source: TextFile, target: TextFile) -> DataError:
    """The error that two files, read to their ends, have different numbers of lines."""
    return DataError(
        f"The source has {source.lines:,} lines and its target has {target.lines:,}",
        where=f"{source.path} and {target.path}",
        remedy="Line n of one must be the translation of line n of the other; make both "
        "anew from the same pairs, with empty lines kept",
    )


def _exhaust(lines: Iterable[str]) -> None:
    for _ in lines:
        pass


def _tsv(file: TextFile) -> Iterator[Pair]:
    for line in file:
        yield tsv_pair(line, file)


def _jsonl(file: TextFile) -> Iterator[Pair]:
    for line in file:
        yield jsonl_pair(line, file)


def tsv_pair(line: str, file: TextFile) -> Pair:
    """The pair of a line of source, tab, target.

    Args:
        line: the last one read.
        file: that it is from.

    Raises:
        DataError: naming the line, when it has other than two fields.
    """
    fields = line.split("\t")
    if len(fields) != 2:
        raise DataError(
            f"There are {len(fields)} fields instead of source, tab, target",
            where=f"{file.path}:{file.lines}",
            remedy="Give each line exactly one tab",
        )
    return Pair(file.lines, *fields)


def jsonl_pair(line: str, file: TextFile) -> Pair:
    """The pair of a line that is a JSON object with a source and a target.

    Args:
        line: the last one read.
        file: that it is from.

    Raises:
        DataError: naming the line, when it is not such an object.
    """
    return Pair(file.lines, *json_pair(line, f"{file.path}:{file.lines}"))


def json_pair(line: str, where: str) -> tuple[str, str]:
    """Source and target of a line that is a JSON object with both.

    Args:
        line: without its end.
        where: file and line, for the error message.

    Raises:
        DataError: naming the line, when it is not such an object.
    """
    item = parse_json(line, where, _JSONL_REMEDY)
    return _text_of(item, "source", where), _text_of(item, "target", where)


def _text_of(item: Any, key: Side, where: str) -> str:
    if not isinstance(item, dict):
        raise DataError(
            f"The line holds {type(item).__name__} instead of an object",
            where=where,
            remedy=_JSONL_REMEDY,
        )
    text = item.get(key)
    if not isinstance(text, str):
        result = ", ".join(repr(name) for name in item) or "none"
        problem = f"{key!r} is not text" if key in item else f"There is no {key!r}"
        raise DataError(f"{problem}; keys found: {result}", where=where, remedy=_JSONL_REMEDY)
    if "\n" in text or "\x00" in text or not _encodable(text):
        raise DataError(
            f"{key!r} holds a line break, a NUL or half a surrogate pair",
            where=where,
            remedy="A pair is one line of text on each side; replace the character",
        )
    return text


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
