"""Sentences about models and machines: German forms by hand, and tests that were not trained on."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def field(pretrained):
    return pretrained("field_sentences")


@pytest.mark.parametrize(
    ("noun", "case", "before", "stems", "many", "expected"),
    [
        ("model", "nom", "the", ["klein"], False, "das kleine Modell"),
        ("model", "acc", "a", ["klein"], False, "ein kleines Modell"),
        ("model", "gen", "the", ["klein"], False, "des kleinen Modells"),
        ("layer", "dat", "my", ["tief"], False, "meiner tiefen Schicht"),
        ("layer", "nom", "", ["tief"], True, "tiefe Schichten"),
        ("layer", "acc", "six", ["tief"], True, "sechs tiefe Schichten"),
        ("computer", "acc", "every", ["neu"], False, "jeden neuen Computer"),
        ("computer", "nom", "no", ["neu"], False, "kein neuer Computer"),
        ("computer", "dat", "the", ["neu"], True, "den neuen Computern"),
        ("student", "acc", "this", [], False, "diesen Studenten"),
        ("student", "nom", "this", [], False, "dieser Student"),
        ("letter", "gen", "a", [], False, "eines Buchstabens"),
        ("neural network", "dat", "a", [], False, "einem neuronalen Netz"),
        ("neural network", "nom", "our", [], True, "unsere neuronalen Netze"),
        ("word", "gen", "the", [], True, "der Wörter"),
    ],
)
def test_german_phrases(field, noun, case, before, stems, many, expected) -> None:
    nouns = [each for kind in field.Field(1).nouns.values() for each in kind]
    (found,) = [each for each in nouns if each.english == noun]
    assert found.phrase(case, before, stems, plural=many) == expected


def test_verbs_stand_where_their_clause_asks(field) -> None:
    words = field.Field(1)
    (predict,) = [verb for verb in words.verbs if verb.english == "predict"]
    model = field.Phrase("the model", {"nom": "das Modell"}, "s")
    word = field.Phrase("the word", {"acc": "das Wort"}, "s")
    assert field._main(model, predict, "das Wort") == "das Modell sagt das Wort voraus"
    assert field._last(model, predict, word) == "das Modell das Wort voraussagt"
    assert predict.infinitive() == "voraussagen"
    assert predict.infinitive("zu") == "vorauszusagen"
    assert field._said(model, predict, word) == "the model predicts the word"


def test_no_test_sentence_is_trained_on(field) -> None:
    made = field.parts(5_000)
    trained = {line.split("\t")[0] for line in made["field-train"]}
    tests = [line.split("\t") for line in made["field"]]
    assert len(trained) > 3_500
    assert not trained & {source for source, *_ in tests}
    patterns = {make.__name__ for make in field.PATTERNS} - {"saying"}
    assert {pattern for *_, pattern in tests} == {f"field_{name}" for name in patterns}
    for source, target, *_ in tests:
        for text in (source, target):
            assert text[0].isupper(), text
            assert text[-1] in ".?", text
            assert "  " not in text, text
            assert " ." not in text, text


def test_articles_of_english(field) -> None:
    assert field._articled("a algorithm") == "an algorithm"
    assert field._articled("a old user") == "an old user"
    assert field._articled("a user") == "a user"
    plurals = {each.english: each.plural for each in field.Field(1).nouns["number"]}
    assert plurals["matrix"] == "matrices"
    assert plurals["loss"] == "losses"
