"""Tagged words and questions out of files, and what is told of those that are wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.text_corpus import QuestionReader, TaggedReader, tagged_reader
from heedful.errors import DataError

CONLL = "# sent_id = 1\n# text = x\nThe\tDT\ncat\tNN\n\n\n#\tSYM\n# no word\nof\tIN\n"


def write(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.conll", "a.txt.gz"])
def test_columns(tmp_path, name):
    first, second = TaggedReader(write(tmp_path / name, CONLL.replace("# no word\n", "")))
    assert (list(first.words), list(first.tags)) == (["The", "cat"], ["DT", "NN"])
    assert (first.line, list(first.lines), first.text) == (3, [3, 4], "The cat")
    assert (list(second.words), list(second.lines)) == (["#", "of"], [7, 8])


def test_other_columns_and_spaces(tmp_path):
    lines = "# comment\nThe  _ DT x\n# _ SYM x\ncat _ NN x"  # no line feed at the end
    path = write(tmp_path / "a.conll", lines)
    (sentence,) = TaggedReader(path, word_column=1, tag_column=3)
    assert list(zip(sentence.words, sentence.tags, strict=True)) == [
        ("The", "DT"),
        ("#", "SYM"),  # within a sentence it is a word
        ("cat", "NN"),
    ]
    assert list(sentence.lines) == [2, 3, 4]
    (last,) = TaggedReader(path, word_column=3)
    assert list(last.tags) == ["x", "x", "x"]
    tabs = write(tmp_path / "tabs.conll", "New York\tB-LOC\n")
    assert [list(s.words) for s in TaggedReader(tabs)] == [["New York"]]


def test_sentences_a_line(tmp_path):
    content = '{"tokens": ["a", "b"], "tags": ["X", 0]}\n\n{"tokens": ["c"], "tags": ["Y"]}\n'
    found = list(TaggedReader(write(tmp_path / "a.jsonl.gz", content)))
    assert [(list(s.words), list(s.tags), list(s.lines)) for s in found] == [
        (["a", "b"], ["X", "0"], [1, 1]),
        (["c"], ["Y"], [3]),
    ]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.conll", "a X\n\nb X Y\n", r"a.conll:3: The line has 3 columns, .* has 2"),
        ("a.conll", "a\n", r"a.conll:1: The line has 1 column; .* data.tag_column"),
        ("a.conll", "a\t\n", r"a.conll:1: The tag is empty"),
        ("a.conll", "\tX\n", r"a.conll:1: The word is empty"),
        ("a.conll", "# only\n\n", "a.conll: The file holds no sentence"),
        ("a.conll", "", "a.conll: The file holds no sentence"),
        ("a.jsonl", '{"tokens": ["a"], "tags": []}', "jsonl:1: There are 1 tokens and 0 tags"),
        ("a.jsonl", '{"tokens": [], "tags": []}', "jsonl:1: There are 0 tokens"),
        ("a.jsonl", '\n{"tokens": "a", "tags": ["X"]}', "jsonl:2: .* no list of texts .*'tokens'"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [true]}', "jsonl:1: .* 'tags'"),
        ("a.jsonl", '{"tokens": [" "], "tags": ["X"]}', "jsonl:1: A token or a tag is empty"),
        ("a.jsonl", "[]", "jsonl:1: .* 'tokens'"),
        ("a.jsonl", "x", "jsonl:1: The line is not JSON"),
    ],
)
def test_what_is_no_tagged_sentence(tmp_path, name, content, told):
    with pytest.raises(DataError, match=told):
        list(TaggedReader(write(tmp_path / name, content)))


def test_columns_that_are_one(tmp_path):
    path = write(tmp_path / "a.conll", "a X\n")
    for columns in ((2, None), (1, 1), (1, 3)):
        with pytest.raises(DataError, match="words should be in column"):
            list(TaggedReader(path, *columns))


def test_pairs_are_refused():
    spec = CorpusSpec(source="a", target="b")
    with pytest.raises(DataError, match="not on pairs"):
        tagged_reader(spec, DataSpec(train=(spec,)))


SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Cats",
            "paragraphs": [
                {
                    "context": "A c\u00e4t sat.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "Who?",
                            "is_impossible": False,
                            "answers": [
                                {"text": "c\u00e4t", "answer_start": 2},
                                {"text": "A c\u00e4t", "answer_start": 0},
                            ],
                        },
                        {
                            "id": "q2",
                            "question": "Why?",
                            "is_impossible": True,
                            "answers": [],
                            "plausible_answers": [{"text": "sat", "answer_start": 6}],
                        },
                    ],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("indent", [None, 1])
def test_squad(tmp_path, name, indent):
    path = write(tmp_path / name, json.dumps(SQUAD, indent=indent))
    first, second = QuestionReader(path)
    assert (first.question, first.context) == ("Who?", "A c\u00e4t sat.")
    assert first.answers == (("c\u00e4t", 2), ("A c\u00e4t", 0))
    assert (second.answers, second.where) == ((), f"{path}, question q2")


def test_questions_a_line(tmp_path):
    item = {"question": "Who?", "context": "A cat.", "answers": [{"text": "cat", "start": 2}]}
    path = write(tmp_path / "a.jsonl", f"\n{json.dumps(item)}\n")
    (found,) = QuestionReader(path)
    assert (found.answers, found.where) == ((("cat", 2),), f"{path}:2")


def squad(**changes: object) -> str:
    qa = {
        "id": "q9",
        "question": "Who?",
        "answers": [{"text": "cat", "answer_start": 2}],
        **changes,
    }
    paragraph = {"context": "A cat and a cat.", "qas": [qa]}
    return json.dumps({"data": [{"paragraphs": [paragraph]}]})


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "a.json",
            squad(answers=[{"text": "cat", "answer_start": 3}]),
            r"a.json, question q9: The answer 'cat' does not stand at character 3 .* 'at '.*at 2",
        ),
        ("a.json", squad(answers=[{"text": "cat", "answer_start": -4}]), "character -4"),
        ("a.json", squad(answers=[{"text": "dog", "answer_start": 0}]), r"q9: .* 'dog'.*bytes\.$"),
        ("a.json", squad(answers=[{"text": "cat"}]), "q9: There is no number under 'answer_start'"),
        ("a.json", squad(answers=[{"text": " ", "answer_start": 1}]), "q9: An answer is empty"),
        ("a.json", squad(answers=None), "q9: There is no list under 'answers'"),
        ("a.json", squad(question=" "), "q9: The question is empty"),
        ("a.json", squad(id=3), "There is no text under 'id'"),
        ("a.json", "[]", "There is no list under 'data'"),
        ("a.json", "{", "a.json: The file is not JSON"),
        ("a.json", '{"data": []}', "a.json: The file holds no question"),
        ("a.jsonl", "", "a.jsonl: The file holds no question"),
        ("a.jsonl", "{}\n", r"a.jsonl:1: There is no text under 'context'"),
        (
            "a.jsonl",
            '{"question": "q", "context": "a b", "answers": [{"text": "b", "start": 1}]}',
            r"a.jsonl:1: The answer 'b' does not stand at character 1 .*first stands at 2",
        ),
        (
            "a.jsonl",
            '{"question": "q", "context": "a b", "answers": [{"text": "b", "start": true}]}',
            r"a.jsonl:1: There is no number under 'start'",
        ),
    ],
)
def test_what_is_no_question(tmp_path, name, content, told):
    with pytest.raises(DataError, match=told):
        list(QuestionReader(write(tmp_path / name, content)))
