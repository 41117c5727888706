"""Sentences whose words have a tag each: CoNLL-style columns, or JSONL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.text_file import CorpusFile, TextFile, parse_json, single_file
from heedful.errors import DataError

_COLUMNS_REMEDY = (
    "Each line must be a word and its tag, with a tab or a space between them; an empty line ends "
    "a sentence"
)
_JSONL_REMEDY = 'Each line must be an object like {"tokens": ["…"], "tags": ["…"]}'


class TaggedSentence(NamedTuple):
    """Words, the tag of each, and the number of the line it stands on, counted from 1."""

    words: Sequence[str]
    tags: Sequence[str]
    lines: Sequence[int]

    @property
    def line(self) -> int:
        """The line at which the sentence begins."""
        return self.lines[0]

    @property
    def text(self) -> str:
        """The words with a space between each two."""
        return " ".join(self.words)


@dataclass(frozen=True)
class TaggedReader(CorpusFile):
    """The sentences of one file.

    Args:
        path: plain or gzip; `.jsonl` holds a sentence a line, any other file a word a line.
        word_column: of a line, counted from 1.
        tag_column: of a line, counted from 1; the last if None.
    """

    word_column: int = 1
    tag_column: int | None = None

    def __iter__(self) -> Iterator[TaggedSentence]:
        """The sentences.

        Raises:
            DataError: naming file and line, for what is not words with tags; or when there is none.
        """
        sentences = self._from_json() if self.is_jsonl else self._from_columns()
        return self.at_least_one(sentences, "sentence")

    def _from_columns(self) -> Iterator[TaggedSentence]:
        rows: list[list[str]] = []
        file = TextFile(self.path)
        width: int | None = None
        for line in file:
            if not line.strip():
                if rows:
                    yield self._sentence(rows, file.lines)
                rows = []
                continue
            # A comment stands before a sentence; "#" in it, or before a tab, is a word.
            if line.startswith("#") and not rows and "\t" not in line:
                continue
            columns = line.split("\t") if "\t" in line else [c for c in line.split(" ") if c]
            width = len(columns) if width is None else width
            rows.append(self._checked(columns, width, f"{self.path}:{file.lines}"))
        if rows:
            yield self._sentence(rows, file.lines + 1)

    def _sentence(self, rows: list[list[str]], after: int) -> TaggedSentence:
        words, tags = zip(*rows, strict=True)
        return TaggedSentence(words, tags, range(after - len(rows), after))

    def _checked(self, columns: list[str], width: int, where: str) -> list[str]:
        """The word and the tag of a line."""
        if len(columns) != width:
            raise DataError(
                f"The line has {len(columns)} columns, the first of the file has {width}",
                where=where,
                remedy=_COLUMNS_REMEDY,
            )
        wanted = (self.word_column, self.tag_column or len(columns))
        if max(wanted) > len(columns) or wanted[0] == wanted[1]:
            raise DataError(
                f"The line has {len(columns)} column{'s' * (len(columns) != 1)}; words should be "
                f"in column {wanted[0]} and tags in column {wanted[1]}",
                where=where,
                remedy=f"{_COLUMNS_REMEDY}, or set data.word_column and data.tag_column",
            )
        word, tag = (columns[number - 1].strip() for number in wanted)
        for name, content in (("word", word), ("tag", tag)):
            if not content:
                raise DataError(f"The {name} is empty", where=where, remedy=_COLUMNS_REMEDY)
        return [word, tag]

    def _from_json(self) -> Iterator[TaggedSentence]:
        file = TextFile(self.path)
        for line in file:
            if line.strip():
                words, tags = _from_object(line, f"{self.path}:{file.lines}")
                yield TaggedSentence(words, tags, [file.lines] * len(words))


def tagged_reader(spec: CorpusSpec, data: DataSpec) -> TaggedReader:
    """The reader of a corpus of tagged sentences.

    Raises:
        DataError: when the corpus is one of sentence pairs.
    """
    path = single_file(spec, "A tagger is trained on single files, not on pairs")
    return TaggedReader(path, data.word_column, data.tag_column)


def _from_object(line: str, where: str) -> tuple[list[str], list[str]]:
    item = parse_json(line, where, _JSONL_REMEDY)
    words, tags = (_texts(item, name, where) for name in ("tokens", "tags"))
    if not words or len(words) != len(tags):
        raise DataError(
            f"There are {len(words)} tokens and {len(tags)} tags", where=where, remedy=_JSONL_REMEDY
        )
    if not all(value.strip() for value in (*words, *tags)):
        raise DataError("A token or a tag is empty", where=where, remedy=_JSONL_REMEDY)
    return words, tags


def _texts(item: Any, name: str, where: str) -> list[str]:
    """A list of texts; tags are often written as numbers, of which True is none."""
    values = item.get(name) if isinstance(item, dict) else None
    kinds = (str, int) if name == "tags" else (str,)
    if not isinstance(values, list) or any(type(value) not in kinds for value in values):
        raise DataError(
            f"There is no list of texts under {name!r}", where=where, remedy=_JSONL_REMEDY
        )
    return [str(value) for value in values]
