"""Corpora of single files: texts, labelled texts, tagged sentences (CoNLL), questions (SQuAD)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from heedful.data.corpus_file import CorpusFile, check_filled, single_file
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.record_fields import LABEL_FIELDS, RecordFields
from heedful.data.table_file import FORMATS, open_lines
from heedful.data.text_file import TextFile, parse_json
from heedful.errors import DataError

Unit = Literal["file", "paragraph", "line"]

_TEXT_REMEDY = 'Each line must be an object like {"text": "…"}'
_COLUMNS_REMEDY = (
    "Each line must be a text, a tab and its label; of more columns name two by --data.source-key "
    "and --data.target-key, or by their numbers"
)


class CorpusDocument(NamedTuple):
    """One text and the number of its first line, from 1."""

    line: int
    text: str


def numbered(records: Iterable[tuple[str, Any]]) -> Iterator[CorpusDocument]:
    """Yield records with their places as lines of JSON, counted from 1 where no file has lines."""
    for number, (_, record) in enumerate(records, start=1):
        yield CorpusDocument(number, json.dumps(record))


class LabelledText(NamedTuple):
    """One text, its label, and the number of its line, from 1."""

    line: int
    text: str
    label: str


@dataclass(frozen=True)
class DocumentReader(CorpusFile):
    """The texts of one file; empty ones are left out.

    Args:
        path: file, plain or gzip; `.jsonl` holds one text a line.
        unit: unit of one text in any other file; line ends within a text are kept.
    """

    unit: Unit

    def __iter__(self) -> Iterator[CorpusDocument]:
        """Yield the texts.

        Raises:
            DataError: when a line is not UTF-8, with file and line, or when there is no text.
        """
        # In a file of one text a line, a blank line is no text.
        texts = (document for document in self._read() if document.text.strip())
        return self.at_least_one(texts, "text")

    def content_hash(self) -> str:
        """Return the SHA-256, in hexadecimal, of the file and of the way it is read."""
        # The unit is part of the hash: a file read by lines and the same file read by paragraphs
        # are different corpora.
        return self.hash_with("jsonl" if self.is_jsonl else self.unit)

    def _read(self) -> Iterator[CorpusDocument]:
        file = self.opened()
        if file.is_json:
            for line in file:
                yield CorpusDocument(file.lines, json_text(line, f"{self.path}:{file.lines}"))
        elif self.unit == "line":
            for line in file:
                yield CorpusDocument(file.lines, line)
        else:
            yield from _gathered(file, at_empty=self.unit == "paragraph")


@dataclass(frozen=True)
class LabelledReader(CorpusFile):
    """The labelled texts of one file; empty lines are left out.

    Args:
        path: `.tsv` or `.jsonl` file, or a table with names of columns.
        fields: rule by which text and label are found.
    """

    fields: RecordFields = LABEL_FIELDS

    def opened(self) -> TextFile:
        """Open the file as lines; those of tables are JSON."""
        return open_lines(self.path, self.fields)

    @property
    def has_header(self) -> bool:
        """True for a file with tabs whose first line names the columns."""
        return self.form == ".tsv" and self.is_jsonl and self.fields.columns is None

    def examples(self) -> Iterator[LabelledText]:
        """Yield the texts with their labels.

        Raises:
            DataError: when a line is not a text and a label, with file and line.
        """
        is_json = self.is_jsonl
        for number, where, line in self.filled_lines():
            item = parse_json(line, where, self.fields.remedy) if is_json else None
            pair = self.fields.texts(item, where) if is_json else _split(line, where)
            check_filled(where, self.fields.remedy, text=pair[0], label=pair[1])
            yield LabelledText(number, pair[0], pair[1].strip())

    def __iter__(self) -> Iterator[CorpusDocument]:
        """Yield the texts without labels, for training a tokenizer.

        Raises:
            DataError: as for `examples`, or when there is no text.
        """
        texts = (CorpusDocument(line, text) for line, text, _ in self.examples())
        return self.at_least_one(texts, "text")

    def content_hash(self) -> str:
        """Return the SHA-256, in hexadecimal, of the file and of the way it is read."""
        # The way of reading is part of the hash: as plain documents, the same lines would keep
        # their labels.
        return self.hash_with(f"labelled {self.form}{self.fields.reading}")


TextReader = DocumentReader | LabelledReader
"""The texts of one file, read anew in every iteration."""


def document_reader(spec: CorpusSpec, unit: Unit) -> DocumentReader:
    """Make the reader of a corpus of texts.

    Raises:
        DataError: when the corpus is one of sentence pairs.
    """
    message = "A language model is trained on single files of text, not on pairs"
    return DocumentReader(single_file(spec, message), unit)


def labelled_reader(spec: CorpusSpec) -> LabelledReader:
    """Make the reader of a corpus of labelled texts.

    Raises:
        DataError: when the corpus is one of sentence pairs, or of another kind of file.
    """
    message = "A classifier is trained on single files of texts with labels"
    reader = LabelledReader(single_file(spec, message), LABEL_FIELDS.of(spec))
    if reader.form not in FORMATS:
        raise DataError(
            message,
            where=spec.file,
            remedy='Give .tsv files of "text<TAB>label", .jsonl files with text and label, or '
            f"tables with such columns ({', '.join(FORMATS)})",
        )
    return reader


def _gathered(file: TextFile, *, at_empty: bool) -> Iterator[CorpusDocument]:
    """Yield texts of several lines; a text ends at an empty line or at the end of the file.

    Args:
        file: file to read.
        at_empty: flag that texts end at empty lines, too.
    """
    lines: list[str] = []
    first = 1
    for line in file:
        if at_empty and not line.strip():
            if lines:
                yield CorpusDocument(first, "\n".join(lines))
            lines = []
            continue
        if not lines:
            first = file.lines
        lines.append(line)
    if lines:
        # `join` leaves out the line feed of a file's last line.
        yield CorpusDocument(first, "\n".join(lines) + ("" if at_empty else "\n"))


def json_text(line: str, where: str) -> str:
    """Parse the text of a line that is a JSON object with a text.

    Args:
        line: content of the line without its line end.
        where: file and line, for the error message.

    Raises:
        DataError: when the line is no such object, with its location.
    """
    item = parse_json(line, where, _TEXT_REMEDY)
    text = item.get("text") if isinstance(item, dict) else None
    if not isinstance(text, str):
        raise DataError("There is no text under the key 'text'", where=where, remedy=_TEXT_REMEDY)
    return text


def _split(line: str, where: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:  # a text with a tab would silently lose its label
        raise DataError(
            f"The line has {len(columns) - 1} tabs instead of 1",
            where=where,
            remedy=_COLUMNS_REMEDY,
        )
    return columns[0], columns[1]


_TAGS_REMEDY = (
    "Each line must be a word and its tag, with a tab or a space between them; an empty line ends "
    "a sentence"
)
_TAGS_JSONL_REMEDY = (
    'Each line must be an object like {"tokens": ["…"], "tags": ["…"]}; name other keys by '
    "--data.source-key and --data.target-key"
)


class TaggedSentence(NamedTuple):
    """Words, their tags, and the number of each word's line, from 1."""

    words: Sequence[str]
    tags: Sequence[str]
    lines: Sequence[int]

    @property
    def line(self) -> int:
        return self.lines[0]

    @property
    def text(self) -> str:
        """The words with a space between each two."""
        return " ".join(self.words)


@dataclass(frozen=True)
class TaggedReader(CorpusFile):
    """The sentences of one file.

    Args:
        path: file, plain or gzip; `.jsonl` holds a sentence a line, any other file a word a line.
        word_column: column of the words, from 1.
        tag_column: column of the tags, from 1; the last one if None.
        keys: names of words and tags in lines of JSON and in tables.
    """

    word_column: int = 1
    tag_column: int | None = None
    keys: tuple[str, str] = ("tokens", "tags")

    def __iter__(self) -> Iterator[TaggedSentence]:
        """Yield the sentences.

        Raises:
            DataError: when a line is not words with tags, with its location, or when there is no
                sentence.
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
            # CoNLL-U has comment lines before a sentence; elsewhere "#" is a word.
            if line.startswith("#") and not rows and "\t" not in line:
                continue
            # Tabs win: a word of a tab-separated file may hold a space.
            columns = line.split("\t") if "\t" in line else [c for c in line.split(" ") if c]
            width = len(columns) if width is None else width  # as in the first line
            rows.append(self._checked(columns, width, f"{self.path}:{file.lines}"))
        if rows:  # no empty line after the last sentence
            yield self._sentence(rows, file.lines + 1)

    def _sentence(self, rows: list[list[str]], after: int) -> TaggedSentence:
        words, tags = zip(*rows, strict=True)
        return TaggedSentence(words, tags, range(after - len(rows), after))

    def _checked(self, columns: list[str], width: int, where: str) -> list[str]:
        if len(columns) != width:
            raise DataError(
                f"The line has {len(columns)} columns, the first of the file has {width}",
                where=where,
                remedy=_TAGS_REMEDY,
            )
        # A file of one column would give each word as its own tag.
        wanted = (self.word_column, self.tag_column or len(columns))
        if max(wanted) > len(columns) or wanted[0] == wanted[1]:
            raise DataError(
                f"The line has {len(columns)} column{'s' * (len(columns) != 1)}; words should be "
                f"in column {wanted[0]} and tags in column {wanted[1]}",
                where=where,
                remedy=f"{_TAGS_REMEDY}, or set data.word_column and data.tag_column",
            )
        word, tag = (columns[number - 1].strip() for number in wanted)
        check_filled(where, _TAGS_REMEDY, word=word, tag=tag)
        return [word, tag]

    def _from_json(self) -> Iterator[TaggedSentence]:
        for number, where, line in self.filled_lines():
            words, tags = _words_and_tags(line, where, self.keys)
            # All words of a JSON line stand on that line.
            yield TaggedSentence(words, tags, [number] * len(words))


def tagged_reader(spec: CorpusSpec, data: DataSpec) -> TaggedReader:
    """Make the reader of a corpus of tagged sentences.

    Raises:
        DataError: when the corpus is one of sentence pairs.
    """
    path = single_file(spec, "A tagger is trained on single files, not on pairs")
    keys = (spec.source_key or "tokens", spec.target_key or "tags")
    return TaggedReader(path, data.word_column, data.tag_column, keys)


def _words_and_tags(line: str, where: str, keys: tuple[str, str]) -> tuple[list[str], list[str]]:
    item = parse_json(line, where, _TAGS_JSONL_REMEDY)
    words, tags = (
        _texts(item, name, where, kinds) for name, kinds in zip(keys, (_WORDS, _TAGS), strict=True)
    )
    if not words or len(words) != len(tags):
        raise DataError(
            f"There are {len(words)} tokens and {len(tags)} tags",
            where=where,
            remedy=_TAGS_JSONL_REMEDY,
        )
    if not all(value.strip() for value in (*words, *tags)):
        raise DataError("A token or a tag is empty", where=where, remedy=_TAGS_JSONL_REMEDY)
    return words, tags


_WORDS: tuple[type, ...] = (str,)
_TAGS = (str, int)  # but not True or False


def _texts(item: Any, name: str, where: str, kinds: tuple[type, ...]) -> list[str]:
    """Return a list of texts under a key."""
    values = item.get(name) if isinstance(item, dict) else None
    if not isinstance(values, list) or any(type(value) not in kinds for value in values):
        raise DataError(
            f"There is no list of texts under {name!r}", where=where, remedy=_TAGS_JSONL_REMEDY
        )
    return [str(value) for value in values]


_QUESTIONS_REMEDY = (
    'Each line must be an object like {"question": "…", "context": "…", "answers": [{"text": "…", '
    '"start": 0}]}; answers is empty where the context holds none'
)
_SQUAD_REMEDY = "Give a file in the form of SQuAD 1.1 or 2.0, or one called .jsonl"


class GivenAnswer(NamedTuple):
    """A span of a context as text, with the index of its first character."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, a context, and the annotated answers.

    Args:
        question: text of the question.
        context: text that holds the answers.
        answers: spans of the context; empty if the context does not answer the question.
        where: file and line, or file and id of the question.
    """

    question: str
    context: str
    answers: tuple[GivenAnswer, ...]
    where: str


@dataclass(frozen=True)
class QuestionReader(CorpusFile):
    """The questions of one file.

    Args:
        path: file, plain or gzip; `.jsonl` holds a question a line, any other file SQuAD's JSON.
    """

    def __iter__(self) -> Iterator[Question]:
        """Yield the questions.

        Raises:
            DataError: when a question cannot be used, with its location, or when there is none.
        """
        questions = self._lines() if self.is_jsonl else self._articles()
        return self.at_least_one(questions, "question")

    def _lines(self) -> Iterator[Question]:
        for _, where, line in self.filled_lines():
            item = parse_json(line, where, _QUESTIONS_REMEDY)
            context = _field(item, "context", str, where, _QUESTIONS_REMEDY)
            answers = item["answers"] if isinstance(item.get("answers"), dict) else None
            if answers is not None:  # lists side by side, as in `datasets`
                texts = _field(answers, "text", list, where, _QUESTIONS_REMEDY)
                starts = _field(answers, "answer_start", list, where, _QUESTIONS_REMEDY)
                pairs = zip(texts, starts, strict=False)
                item = {**item, "answers": [{"text": t, "start": start} for t, start in pairs]}
            yield _question(item, context, "start", where, _QUESTIONS_REMEDY)

    def _articles(self) -> Iterator[Question]:
        path = str(self.path)
        # Read by `TextFile`, which checks encoding and gzip.
        text = "\n".join(TextFile(self.path))
        whole = parse_json(text, path, _SQUAD_REMEDY, "The file")
        for article in _field(whole, "data", list, path, _SQUAD_REMEDY):
            for paragraph in _field(article, "paragraphs", list, path, _SQUAD_REMEDY):
                context = _field(paragraph, "context", str, path, _SQUAD_REMEDY)
                for item in _field(paragraph, "qas", list, path, _SQUAD_REMEDY):
                    where = f"{path}, question {_field(item, 'id', str, path, _SQUAD_REMEDY)}"
                    # SQuAD 2.0 lists "plausible" answers to some unanswerable questions.
                    if item.get("is_impossible") is True:
                        item = {**item, "answers": []}
                    yield _question(item, context, "answer_start", where, _SQUAD_REMEDY)


def question_reader(spec: CorpusSpec) -> QuestionReader:
    """Make the reader of a corpus of questions.

    Raises:
        DataError: when the corpus is one of sentence pairs.
    """
    message = "Question answering is trained on single files, not on pairs"
    return QuestionReader(single_file(spec, message))


def _field(item: Any, name: str, kind: type, where: str, remedy: str) -> Any:
    value = item.get(name) if isinstance(item, dict) else None
    if type(value) is not kind:  # `isinstance` would take True for a number
        raise DataError(f"There is no {_KINDS[kind]} under {name!r}", where=where, remedy=remedy)
    return value


_KINDS = {str: "text", list: "list", int: "number"}


def _question(item: Any, context: str, start_name: str, where: str, remedy: str) -> Question:
    question = _field(item, "question", str, where, remedy)
    check_filled(where, remedy, question=question, context=context)
    answers = []
    for answer in _field(item, "answers", list, where, remedy):
        text = _field(answer, "text", str, where, remedy)
        start = _field(answer, start_name, int, where, remedy)
        answers.append(_checked_answer(GivenAnswer(text, start), context, where))
    return Question(question, context, tuple(answers), where)


def _checked_answer(answer: GivenAnswer, context: str, where: str) -> GivenAnswer:
    # A negative start would count from the end of the context.
    there = context[max(answer.start, 0) :][: len(answer.text)]
    if not answer.text.strip():
        raise DataError(
            "An answer is empty",
            where=where,
            remedy="Leave the list of answers empty where the context holds none",
        )
    if answer.start < 0 or there != answer.text:
        # Offsets are often in bytes or UTF-16 units: the true place helps to see which.
        result = context.find(answer.text)
        raise DataError(
            f"The answer {answer.text!r} does not stand at character {answer.start} of its "
            f"context, where there is {there!r}",
            where=where,
            remedy="Count characters from 0, not bytes"
            + (f"; it first stands at {result}" if result >= 0 else ""),
        )
    return answer
