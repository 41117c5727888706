"""Sentence pairs from files: two aligned files, or one with both sides (TSV, JSONL, a table)."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from heedful.data.corpus_spec import PAIR_FORMS, CorpusSpec
from heedful.data.record_fields import PAIR_FIELDS, RecordFields
from heedful.data.table_file import open_lines, table_parts
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

# JSON may hold half a surrogate pair, "\ud800", which is no UTF-8.
_NOT_IN_A_LINE = re.compile("[\n\x00\ud800-\udfff]")


class Pair(NamedTuple):
    """One pair and the number of the line it came from, counted from 1."""

    line: int
    source: str
    target: str


class CorpusReader:
    """The pairs of one corpus, read lazily; can be iterated once.

    Args:
        spec: files of the corpus.

    Attributes:
        files: files being read, for their facts and progress.

    Raises:
        DataError: when a file is missing or unreadable.
    """

    def __init__(self, spec: CorpusSpec) -> None:
        self.spec = spec
        self.files = pair_files(spec)

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs, one for each line.

        Raises:
            DataError: when a line is not a pair, with file and line, or when there is none.
        """
        yield from self._read()
        if self.files[0].lines == 0:  # known only after the last line, as files are streamed
            raise no_pairs(self.files[0])

    @property
    def progress(self) -> tuple[int, int]:
        return sum(f.bytes_done for f in self.files), sum(f.bytes_total for f in self.files)

    @property
    def facts(self) -> list[FileFacts]:
        """Facts about the encoding of each file; complete after the last pair."""
        return [file.facts for file in self.files]

    def _read(self) -> Iterator[Pair]:
        prefix = self.spec.task_prefix
        # An empty source stays empty, so that its pair is still left out of training.
        # Generator expressions are avoided: an error would keep their iterators, and so the files,
        # open.
        for pair in self._plain():
            is_changed = prefix and pair.source.strip()
            yield pair._replace(source=prefix + pair.source) if is_changed else pair

    def _plain(self) -> Iterator[Pair]:
        if len(self.files) == 2:
            yield from _aligned(*self.files)
            return
        (file,) = self.files
        parse = pair_parser(self.spec, file)
        for line in file:
            yield parse(line, file)


def pair_files(spec: CorpusSpec) -> list[TextFile]:
    """Open the files of a corpus: source and target, or the one file of pairs.

    Raises:
        DataError: when a file is missing or unreadable, or holds no pairs by its name.
    """
    paths = corpus_paths(spec)
    if len(paths) == 2:
        return [TextFile(path) for path in paths]
    if not paths[0].is_dir():
        pair_form(paths[0])  # refuses other suffixes
    return [open_lines(paths[0], PAIR_FIELDS.of(spec))]


def pair_parser(spec: CorpusSpec, file: TextFile) -> Callable[[str, TextFile], Pair]:
    """Return the function that parses a line of a file of pairs, given the file.

    Args:
        spec: settings of the corpus.
        file: file, as `pair_files` opens it.
    """
    return partial(jsonl_pair, PAIR_FIELDS.of(spec)) if file.is_json else tsv_pair


def corpus_paths(spec: CorpusSpec) -> list[Path]:
    """Return the files of a corpus: source and target, or the one file of pairs.

    Raises:
        DataError: when the corpus is a folder of shards, which only training reads.
    """
    if spec.shards is not None:
        raise shards_not_read(spec.shards)
    if spec.file is not None:
        return [Path(spec.file)]
    assert spec.source is not None
    assert spec.target is not None
    return [Path(spec.source), Path(spec.target)]


def line_name(spec: CorpusSpec, line: int) -> str:
    """Return the location of a pair as "file:line"; for aligned files, in the source file."""
    return f"{corpus_paths(spec)[0]}:{line}"


def content_hash(spec: CorpusSpec) -> str:
    """Return the SHA-256, in hexadecimal, of the bytes of a corpus's files and of their form.

    Raises:
        DataError: when a file is missing or unreadable.
    """
    total = hashlib.sha256()
    for path in itertools.chain.from_iterable(map(table_parts, corpus_paths(spec))):
        total.update(content_digest(path))
    # The form counts: the same bytes named .tsv and .jsonl are different pairs. So do keys, and the
    # prefix of the sources.
    form = "aligned" if spec.file is None else pair_form(table_parts(Path(spec.file))[0])
    reading = PAIR_FIELDS.of(spec).reading + spec.task_prefix
    return hashlib.sha256(total.digest() + (form + reading).encode()).hexdigest()


@dataclass(frozen=True)
class CorpusTexts:
    """The texts of one side of several corpora, read anew in every iteration.

    Args:
        specs: files of the corpora.
        side: wanted side.
        long_words: filter that removes words on which no tokenizer can be trained.
    """

    specs: Sequence[CorpusSpec]
    side: Side
    long_words: LongWords

    def __iter__(self) -> Iterator[str]:
        for spec in self.specs:
            for pair in CorpusReader(spec):
                text = pair.source if self.side == "source" else pair.target
                # A word of a million characters would end the trainer of the tokenizer.
                yield self.long_words.without(text, line_name(spec, pair.line))


def pair_form(path: Path) -> str:
    """Return the suffix of a file of pairs, one of `PAIR_FORMS`.

    Raises:
        DataError: when the file has another suffix.
    """
    form = file_form(path)
    if form not in PAIR_FORMS:
        raise DataError(
            f"Pairs in one file are read from {', '.join(PAIR_FORMS)} (or .gz or .zst of them), "
            f"not {path.name!r}",
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
            # Both are read to their ends, so that the error can give both numbers of lines.
            deque(itertools.chain(sources, targets), maxlen=0)
            raise not_aligned(source, target)
        yield Pair(source.lines, left, right)


def no_pairs(file: TextFile) -> DataError:
    """Return the error for an empty corpus."""
    return DataError(
        "The corpus holds no pairs",
        where=str(file.path),
        remedy="Check that this is the right file",
    )


def not_aligned(source: TextFile, target: TextFile) -> DataError:
    """Return the error for two files, already read, with different numbers of lines."""
    return DataError(
        f"The source has {source.lines:,} lines and its target has {target.lines:,}",
        where=f"{source.path} and {target.path}",
        remedy="Line n of one must be the translation of line n of the other; make both "
        "anew from the same pairs, with empty lines kept",
    )


def tsv_pair(line: str, file: TextFile) -> Pair:
    """Parse a line of source, tab, target.

    Args:
        line: the line that was read last.
        file: file of the line.

    Raises:
        DataError: when the line does not have two fields, with its location.
    """
    # No quoting as in CSV: quotation marks are text, and a text cannot hold a tab.
    fields = line.split("\t")
    if len(fields) != 2:
        raise DataError(
            f"There are {len(fields)} fields instead of source, tab, target",
            where=f"{file.path}:{file.lines}",
            remedy="Give each line exactly one tab, or name two of the columns by "
            "--data.source-key and --data.target-key",
        )
    return Pair(file.lines, *fields)


def jsonl_pair(fields: RecordFields, line: str, file: TextFile) -> Pair:
    """Parse the line of a file that was read last, a JSON object, as `json_pair` does."""
    return Pair(file.lines, *json_pair(line, f"{file.path}:{file.lines}", fields))


def json_pair(line: str, where: str, fields: RecordFields = PAIR_FIELDS) -> tuple[str, str]:
    """Parse source and target of a line that is a JSON object with both.

    Args:
        line: content of the line without its line end.
        where: file and line, for the error message.
        fields: rule by which both are found.

    Raises:
        DataError: when the line is no such object, with its location.
    """
    pair = fields.texts(parse_json(line, where, fields.remedy), where)
    for noun, text in zip(SIDES, pair, strict=True):
        # Translations are written one a line, so a line break would put files out of step.
        if _NOT_IN_A_LINE.search(text):
            raise DataError(
                f"{noun!r} holds a line break, a NUL or half a surrogate pair",
                where=where,
                remedy="A pair is one line of text on each side; replace the character, or leave "
                "such pairs out: heedful data clean",
            )
    return pair
