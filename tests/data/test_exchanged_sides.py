"""Corpora whose sides are in the wrong order are named before hours are spent on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.cli.main import main

ENGLISH = [
    "the weather is nice today",
    "we should go home with them",
    "she reads a book in the garden",
    "where is the next station",
    "they have three children and a dog",
]
GERMAN = [
    "das Wetter ist heute schön",
    "wir sollten mit ihnen nach Hause gehen",
    "sie liest im Garten ein Buch",
    "wo ist der nächste Bahnhof",
    "sie haben drei Kinder und einen Hund",
]
OPTIONS = ["--preset", "tiny", "--max-steps", "1", "--compile", "off", "--precision", "fp32"]
OPTIONS += ["--tokenizer.vocabulary-size", "90"]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Call `heedful train` with sides of the corpora in this order; return its status."""
    monkeypatch.chdir(tmp_path)
    for ending, lines in (("en", ENGLISH), ("de", GERMAN), ("a", list("abcde")), ("b", "abcde")):
        Path(f"train.{ending}").write_text("\n".join(lines) + "\n")
        Path(f"more.{ending}").write_text("\n".join(sorted(lines, reverse=True)) + "\n")

    def call(*corpora: str, joint: bool = True) -> int:
        joined = "true" if joint else "false"
        return main(["train", "run", *corpora, *OPTIONS, "--tokenizer.joint", joined])

    return call


@pytest.mark.parametrize("joint", [True, False])
def test_an_exchanged_validation_corpus_is_refused(train, capsys, joint: bool) -> None:
    words = ["--train", "train.en", "train.de", "--valid", "more.de", "more.en"]
    assert train(*words, joint=joint) == 2
    said = capsys.readouterr().err
    assert "more.de, more.en" in said
    assert "exchanged" in said
    assert "--valid SOURCE TARGET" in said


@pytest.mark.parametrize(
    "valid", [["more.en", "more.de"], ["train.a", "train.b"]], ids=["same", "another task"]
)
def test_other_orders_are_taken(train, capsys, valid: list[str]) -> None:
    assert train("--train", "train.en", "train.de", "--valid", *valid) == 0
    assert "exchanged" not in capsys.readouterr().err


def test_a_toy_language_may_be_in_any_order(train, capsys) -> None:
    assert train("--train", "train.a", "train.b", "--valid", "more.b", "more.a") == 0
    assert "exchanged" not in capsys.readouterr().err
