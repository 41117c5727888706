"""`heedful evaluate --data`: classifiers, taggers and readers against right answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heedful

TAGGED = "the NOUN\ncat VERB\n\nsat X\n"
LABELLED = "the cat sat\tgood\nthe dog\tbad\na cat\tunheard of\n"
QUESTIONS = [
    {"question": "who?", "context": "the cat sat", "answers": [{"text": "cat", "start": 4}]},
    {"question": "who ran?", "context": "a dog " * 20, "answers": []},
]


def test_a_tagger(run, make_encoder, tmp_path: Path) -> None:
    model = make_encoder(tmp_path / "model", "token")
    data = tmp_path / "test.conll"
    data.write_text(TAGGED)
    (told,) = (json.loads(line) for line in run("evaluate", model, "--data", data, "--json").lines)
    first, second = heedful.load(model).tag(["the cat", "sat"])
    right = [first[0].label == "NOUN", first[1].label == "VERB", second[0].label == "X"]
    assert told["scores"] == {"accuracy": {"name": "accuracy", "score": sum(right) / 3}}
    assert (told["command"], told["sentences"]) == ("evaluate", 2)
    shown = run("evaluate", model, "--data", data)
    assert (shown.status, shown.out) == (0, "")
    assert f"{sum(right) / 3:.4f}" in shown.err
    columns = ("--word-column", 2, "--tag-column", 1)
    (other,) = run("evaluate", model, "--data", data, *columns, "--json").lines
    assert json.loads(other)["scores"]["accuracy"]["score"] == 0


def test_a_classifier(run, make_encoder, tmp_path: Path) -> None:
    model = make_encoder(tmp_path / "model", "sequence")
    data = tmp_path / "test.tsv"
    data.write_text(LABELLED)
    (line,) = run("evaluate", model, "--data", data, "--json").lines
    found = heedful.load(model).classify(["the cat sat", "the dog", "a cat"])
    right = [labels[0].label for labels in found]
    expected = sum(a == b for a, b in zip(right, ["good", "bad", "unheard of"], strict=True)) / 3
    told = json.loads(line)
    assert told["texts"] == 3
    assert told["scores"]["accuracy"]["score"] == expected
    assert 0 <= told["scores"]["macro_f1"]["score"] <= 1


def test_a_reader(run, make_encoder, tmp_path: Path) -> None:
    model = make_encoder(tmp_path / "model", "span")
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps(item) + "\n" for item in QUESTIONS))
    (line,) = run("evaluate", model, "--data", data, "--json").lines
    pairs = [(str(item["question"]), str(item["context"])) for item in QUESTIONS]
    first, second = heedful.load(model).answer(pairs)
    told = json.loads(line)
    assert told["questions"] == 2
    assert second.text  # the model was not trained to refuse
    assert told["scores"]["exact_match"]["score"] == (first.text == "cat") / 2


@pytest.mark.parametrize(
    ("heads", "content", "told"),
    [
        (("token",), "the\n", "test.conll:1: The line has 1 column"),
        (("token",), "", "test.conll: The file holds no sentence"),
        (("token", "span"), TAGGED, "the model has 2 and needs one"),
        (("masked_lm",), TAGGED, "the model has 0 and needs one"),
        (("sequence",), TAGGED, "test.conll: A classifier is trained on single files"),
        (("span",), TAGGED, "test.conll: The file is not JSON"),
    ],
)
def test_mistakes_are_told(run, make_encoder, tmp_path: Path, heads, content, told) -> None:
    data = tmp_path / "test.conll"
    data.write_text(content)
    done = run("evaluate", make_encoder(tmp_path / "model", *heads), "--data", data)
    assert (done.status, done.out) == (2, "")
    assert told in done.err
    assert "Traceback" not in done.err


def test_nothing_to_compare_with(run, encoder_directory) -> None:
    done = run("evaluate", encoder_directory)
    assert done.status == 2
    assert "--data FILE" in done.err
