"""Paragraphs lose no sentence where a model has learned single ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import heedful
from heedful.cli.main import main
from heedful.pipelines.numpy_translation import MOST_LINES
from heedful.text.sentences import count_sentences

SENTENCES = [
    "Tom lives in Boston.",
    "You should go home.",
    "He does not like coffee.",
    "It is raining.",
    "Where is the station?",
    "I have two cats!",
    "She reads a book.",
    "We are tired.",
]


@pytest.fixture(scope="module")
def translator():
    return heedful.load("en-de", device="cpu")


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_a_paragraph_is_its_sentences(translator, count: int) -> None:
    draw = random.Random(count)
    paragraphs = [draw.sample(SENTENCES * 2, count) for _ in range(5)]
    alone = dict(zip(SENTENCES, translator.translate(SENTENCES), strict=True))
    found = translator.translate([" ".join(each) for each in paragraphs])
    assert found == [" ".join(alone[one] for one in each) for each in paragraphs]
    assert [count_sentences(text, "de") for text in found] == [count] * 5


def test_gaps_and_lines_stay(translator) -> None:
    text = "Tom lives in Boston.  It is raining.\n\n You should go home.\u3000It is raining. "
    first, empty, last = str(translator.translate([text])[0]).split("\n")
    assert "Boston.  " in first
    assert empty == ""
    assert count_sentences(last, "de") == 2
    assert "\u3000" not in last


def test_a_text_can_be_read_as_a_whole() -> None:
    text = "Tom lives in Boston. You should go home.\nHe does not like coffee."
    whole = heedful.load("en-de", device="cpu", split="none")
    assert whole.tokenizers.reading.split == "none"
    found = whole.translate([text])[0]
    assert "\n" not in found
    assert found.segment_lengths == (len(found.tokens),)
    lines = heedful.load("en-de", device="cpu", split="lines").translate([text])[0]
    assert found.segment_lengths != lines.segment_lengths
    assert len(lines.segment_lengths) == 2


@pytest.mark.parametrize("lines", [1, MOST_LINES + 1])
def test_by_command_with_and_without_pytorch(
    lines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(f"{' '.join(SENTENCES[:4])}\n" * lines)
    assert main(["translate", "en-de", "-i", str(file), "--device", "cpu"]) == 0
    written = capsys.readouterr().out.splitlines()
    assert [count_sentences(line, "de") for line in written] == [4] * lines
    words = ["translate", "en-de", "-i", str(file), "--device", "cpu", "--split", "lines", "--json"]
    assert main(words) == 0
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()[:lines]]
    assert all(count_sentences(text, "de") < 4 for text in texts)


def test_what_a_model_learns_is_measured_and_kept(tmp_path: Path) -> None:
    for ending, marks in (("de", "Das ist gut. Er geht. Sie kommt."), ("en", "a b c")):
        (tmp_path / f"train.{ending}").write_text(f"{marks}\n" * 4)
    words = ["train", "run", "--preset", "tiny", "--max-steps", "1", "--compile", "off"]
    words += ["--train", str(tmp_path / "train.de"), str(tmp_path / "train.en")]
    words += ["--tokenizer.vocabulary-size", "40", "--out", str(tmp_path / "run")]
    assert main([word if word != "run" else str(tmp_path / "run") for word in words[:-2]]) == 0
    stored = json.loads((tmp_path / "run/model/reading.json").read_text())
    measured = {"sentences": 3.0, "letterless": 0.0}
    assert stored == {"schema_version": 1, "split": "lines", "language": "de", **measured}
    assert heedful.load(tmp_path / "run", device="cpu").tokenizers.reading.split == "lines"
