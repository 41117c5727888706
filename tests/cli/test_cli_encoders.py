"""`heedful fill`, `classify`, `tag` and `answer` through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heedful
from heedful.pipelines.predictions import Candidate
from heedful.pipelines.text_encoding import EncoderPipeline

VERBS = ["fill", "classify", "tag", "answer"]
LINES = {
    "fill": ["the [MASK] sat", "", "[MASK] cat [MASK]", "  "],
    "classify": ["the cat sat", "", "who ran?\tthe dog.", "  "],
    "tag": ["the cat  sat on", "", "dogs \u0301 ran", "  "],
    "answer": ["who?\tthe cat\tsat", "", "the \\?\t\\ \\", "  "],
}


def given(verb: str) -> bytes:
    return "".join(f"{line}\n" for line in LINES[verb]).encode()


@pytest.fixture(scope="module")
def python(encoder_directory: Path):
    """What the library says of the same lines."""
    pipeline = heedful.load(encoder_directory)
    pairs = [("who?", "the cat\tsat"), ("", ""), ("the \\?", "\\ \\"), ("", "  ")]
    return {
        "fill": pipeline.fill(LINES["fill"]),
        "classify": pipeline.classify(
            [tuple(text.split("\t")) if "\t" in text else text for text in LINES["classify"]]
        ),
        "tag": pipeline.tag(LINES["tag"]),
        "answer": pipeline.answer(pairs),
    }


def test_filled(run, encoder_directory, python) -> None:
    expected = python["fill"]
    plain = run("fill", encoder_directory, stdin=given("fill")).lines
    assert plain == [
        "\t|\t".join("\t".join(f"{c.token} {c.probability:.4f}" for c in mask) for mask in masks)
        for masks in expected
    ]
    assert plain[2].count("\t") == 10
    items = [
        json.loads(line)
        for line in run("fill", encoder_directory, "--json", stdin=given("fill")).lines
    ]
    assert items == [
        {"candidates": [{"mask": n, **vars(c)} for n, mask in enumerate(masks, 1) for c in mask]}
        for masks in expected
    ]
    assert [one["mask"] for one in items[2]["candidates"]] == [1] * 5 + [2] * 5
    fewer = run("fill", encoder_directory, "the [MASK] sat", "--top", 2).lines
    assert fewer == ["\t".join(plain[0].split("\t")[:2])]


def test_the_mark_of_a_blank_is_not_printed(run, encoder_directory, monkeypatch) -> None:
    found = [[[Candidate("▁money", 0.5), Candidate("▁", 0.25), Candidate("##s", 0.125)]]]
    monkeypatch.setattr(EncoderPipeline, "fill", lambda *_, **__: found)
    assert run("fill", encoder_directory, "[MASK]").lines == ["money 0.5000\t▁ 0.2500\t##s 0.1250"]
    (line,) = run("fill", encoder_directory, "[MASK]", "--json").lines
    assert json.loads(line)["candidates"][0] == {"mask": 1, "token": "▁money", "probability": 0.5}


def test_classified(run, encoder_directory, python) -> None:
    expected = python["classify"]
    assert run("classify", encoder_directory, stdin=given("classify")).lines == [
        f"{labels[0].label}\t{labels[0].probability:.4f}" if labels else "" for labels in expected
    ]
    asked = run("classify", encoder_directory, "--json", stdin=given("classify")).lines
    assert [json.loads(line) for line in asked] == [
        {"labels": [vars(label) for label in labels]} for labels in expected
    ]


def test_tagged(run, encoder_directory, python) -> None:
    expected = python["tag"]
    plain = run("tag", encoder_directory, stdin=given("tag")).lines
    assert plain == [" ".join(f"{w.token}/{w.label or ''}" for w in words) for words in expected]
    assert plain[2].split(" ")[1] == "\u0301/"
    asked = run("tag", encoder_directory, "--json", stdin=given("tag")).lines
    assert [json.loads(line) for line in asked] == [
        {"labels": [vars(word) for word in words]} for words in expected
    ]


def test_answered(run, encoder_directory, python) -> None:
    expected = python["answer"]
    plain = run("answer", encoder_directory, stdin=given("answer")).lines
    assert plain == [
        answer.text.replace("\\", "\\\\").replace("\t", "\\t") + f"\t{answer.probability:.4f}"
        for answer in expected
    ]
    assert "\\\\" in plain[2]
    asked = run("answer", encoder_directory, "--json", stdin=given("answer")).lines
    assert [json.loads(line) for line in asked] == [vars(answer) for answer in expected]
    contexts = b"the cat\tsat\n"
    one = run("answer", encoder_directory, "--question", "who?", stdin=contexts)
    assert one.lines == plain[:1]
    shorter = run(
        "answer", encoder_directory, "the cat sat", "--question", "who?", "--max-answer", 1
    )
    assert len(shorter.lines[0].split("\t")[0].split()) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_files_report_and_batches(run, encoder_directory, tmp_path: Path, verb: str) -> None:
    source, out, report = (tmp_path / name for name in ("in", "out", "report"))
    source.write_bytes(given(verb))
    words = ("-i", source, "-o", out, "--report", report, "--batch-size", 1)
    done = run(verb, encoder_directory, *words)
    assert (done.status, done.out) == (0, "")
    assert out.read_text() == run(verb, encoder_directory, stdin=given(verb)).out
    told = json.loads(report.read_text())
    assert (told["command"], told["items"]) == (verb, 4)
    assert told["settings"]["model"] == str(encoder_directory)
    assert run(verb, encoder_directory).lines == []
    assert len(run(verb, encoder_directory, "").lines) == 1


@pytest.mark.parametrize(
    ("verb", "words", "stdin", "told"),
    [
        ("fill", (), b"[MASK]\n\nthe cat\n", "line 3"),
        ("fill", ("--top", 0), b"[MASK]\n", "top = 0"),
        ("fill", ("[MASK]", "-i", "x"), b"", "not both"),
        ("classify", (), b"a\nb\tc\td\n", "line 2: 2 tabs"),
        ("classify", ("--batch-size", 0), b"a\n", "batch_size = 0"),
        ("answer", ("--max-answer", 0), b"a\tb\n", "max_answer = 0"),
        ("answer", (), b"\n" + b"who " * 30 + b"\tthe cat\n", "line 2: 33 tokens"),
        ("tag", ("-i", "nowhere"), b"", "nowhere"),
        ("answer", (), b"who?\n", "line 1: There is no tab"),
        ("answer", ("--question", " "), b"\nthe cat\n", "line 2: There is no question"),
    ],
)
def test_mistakes_are_told(run, encoder_directory, verb, words, stdin, told) -> None:
    done = run(verb, encoder_directory, *words, stdin=stdin)
    assert (done.status, done.out) == (2, "")
    assert told in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("verb", VERBS)
def test_another_model_is_refused(run, model, make_encoder, tmp_path: Path, verb: str) -> None:
    wrong = run(verb, model, "a")
    assert (wrong.status, "no encoder of text" in wrong.err) == (2, True)
    other = "sequence" if verb == "tag" else "token"
    lacking = run(verb, make_encoder(tmp_path / "lacking", other), "a")
    assert (lacking.status, f"it has: {other}" in lacking.err) == (2, True)


def test_line_numbers_go_on_from_chunk_to_chunk(run, encoder_directory) -> None:
    done = run("fill", encoder_directory, stdin=b"\n" * 1024 + b"the cat\n")
    assert "line 1025" in done.err
    assert len(done.lines) == 1024
