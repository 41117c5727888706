"""Questions about texts that hold the answers: SQuAD's JSON (Rajpurkar 2016, 2018), or JSONL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from heedful.data.corpus_spec import CorpusSpec
from heedful.data.text_file import CorpusFile, TextFile, parse_json, single_file
from heedful.errors import DataError

_JSONL_REMEDY = (
    'Each line must be an object like {"question": "…", "context": "…", "answers": [{"text": "…", '
    '"start": 0}]}; answers is empty where the context holds none'
)
_SQUAD_REMEDY = "Give a file in the form of SQuAD 1.1 or 2.0, or one called .jsonl"


class GivenAnswer(NamedTuple):
    """A part of a context, and the index of its first character there."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, a context, and the answers that people found in it.

    Args:
        question: what is asked.
        context: where the answer stands.
        answers: none where the context does not answer.
        where: file and line, or file and the question's id.
    """

    question: str
    context: str
    answers: tuple[GivenAnswer, ...]
    where: str


@dataclass(frozen=True)
class QuestionReader(CorpusFile):
    """The questions of one file.

    Args:
        path: plain or gzip; `.jsonl` holds a question a line, any other file is SQuAD's JSON.
    """

    def __iter__(self) -> Iterator[Question]:
        """The questions.

        Raises:
            DataError: naming file and line or question, for what cannot be used; or when there is
                none.
        """
        questions = self._lines() if self.is_jsonl else self._articles()
        return self.at_least_one(questions, "question")

    def _lines(self) -> Iterator[Question]:
        for where, line in self.filled_lines():
            item = parse_json(line, where, _JSONL_REMEDY)
            context = _field(item, "context", str, where, _JSONL_REMEDY)
            yield _question(item, context, "start", where, _JSONL_REMEDY)

    def _articles(self) -> Iterator[Question]:
        path = str(self.path)
        text = "\n".join(TextFile(self.path))
        whole = parse_json(text, path, _SQUAD_REMEDY, "The file")
        for article in _field(whole, "data", list, path, _SQUAD_REMEDY):
            for paragraph in _field(article, "paragraphs", list, path, _SQUAD_REMEDY):
                context = _field(paragraph, "context", str, path, _SQUAD_REMEDY)
                for item in _field(paragraph, "qas", list, path, _SQUAD_REMEDY):
                    where = f"{path}, question {_field(item, 'id', str, path, _SQUAD_REMEDY)}"
                    if item.get("is_impossible") is True:
                        item = {**item, "answers": []}
                    yield _question(item, context, "answer_start", where, _SQUAD_REMEDY)


def question_reader(spec: CorpusSpec) -> QuestionReader:
    """The reader of a corpus of questions.

    Raises:
        DataError: when the corpus is one of sentence pairs.
    """
    message = "Question answering is trained on single files, not on pairs"
    return QuestionReader(single_file(spec, message))


def _field(item: Any, name: str, kind: type, where: str, remedy: str) -> Any:
    value = item.get(name) if isinstance(item, dict) else None
    if type(value) is not kind:
        raise DataError(f"There is no {_KINDS[kind]} under {name!r}", where=where, remedy=remedy)
    return value


_KINDS = {str: "text", list: "list", int: "number"}


def _question(item: Any, context: str, start_name: str, where: str, remedy: str) -> Question:
    asked = _field(item, "question", str, where, remedy)
    for name, text in (("question", asked), ("context", context)):
        if not text.strip():
            raise DataError(f"The {name} is empty", where=where, remedy=remedy)
    answers = []
    for answer in _field(item, "answers", list, where, remedy):
        text = _field(answer, "text", str, where, remedy)
        start = _field(answer, start_name, int, where, remedy)
        answers.append(_checked(GivenAnswer(text, start), context, where))
    return Question(asked, context, tuple(answers), where)


def _checked(answer: GivenAnswer, context: str, where: str) -> GivenAnswer:
    there = context[max(answer.start, 0) :][: len(answer.text)]
    if not answer.text.strip():
        raise DataError(
            "An answer is empty",
            where=where,
            remedy="Leave the list of answers empty where the context holds none",
        )
    if answer.start < 0 or there != answer.text:
        found = context.find(answer.text)
        raise DataError(
            f"The answer {answer.text!r} does not stand at character {answer.start} of its "
            f"context, where there is {there!r}",
            where=where,
            remedy="Count characters from 0, not bytes"
            + (f"; it first stands at {found}" if found >= 0 else ""),
        )
    return answer
