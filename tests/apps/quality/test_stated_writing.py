"""A model that states how numbers and names are written: translations are, measures are not."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import heedful
from heedful.apps.quality import stated_writing
from heedful.apps.serve.served_models import ServedModels, parse_model
from heedful.apps.serve.server_settings import ModelOptions
from heedful.cli.main import main
from heedful.errors import ModelError
from heedful.events import Events
from heedful.models.checkpoint import load_model, save_model
from heedful.pretrained.catalogue import models_at_hand
from heedful.text.tokenizer_pair import WRITING_FILE, TokenizerPair, Writing
from heedful.train.run_config import resolve_settings
from heedful.train.warm_start import initial_tokenizers

TEXT = "I have 144 cats."
OWN, RIGHT = "Ich habe 14 Katzen.", "Ich habe 144 Katzen."
NAME = "Heidelberg is a small town."
MISSPELLED, SPELLED = (f"{name} ist eine kleine Stadt." for name in ("Eridelberg", "Heidelberg"))


@pytest.fixture(scope="module")
def translator():
    return heedful.load("en-de", device="cpu")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [((), RIGHT), (("--numbers", "model"), OWN), (("--numbers", "keep"), RIGHT)],
)
@pytest.mark.parametrize("lines", [1, 12])  # few lines need no PyTorch where nothing is corrected
def test_the_command_line(capsys, tmp_path: Path, flags, expected, lines) -> None:
    (tmp_path / "texts").write_text(f"{TEXT}\n" * lines)
    words = ["translate", "en-de", "--device", "cpu", "-i", str(tmp_path / "texts"), *flags]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{expected}\n" * lines
    assert (f"{lines} number" in captured.err) == (expected == RIGHT)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [((), SPELLED), (("--no-copy-unknown",), MISSPELLED), (("--copy-unknown",), SPELLED)],
)
@pytest.mark.parametrize("others", [1, 12])
def test_names_at_the_command_line(capsys, tmp_path: Path, flags, expected, others) -> None:
    (tmp_path / "texts").write_text("The cat sleeps.\n" * others + f"{NAME}\n")
    words = ["translate", "en-de", "--device", "cpu", "-i", str(tmp_path / "texts"), *flags]
    assert main(words) == 0
    assert capsys.readouterr().out == "Die Katze schläft.\n" * others + f"{expected}\n"


def test_names_in_python_and_on_a_server(translator) -> None:
    assert translator.translate([NAME, TEXT]) == [SPELLED, RIGHT]
    own = heedful.load("en-de", device="cpu", copy_unknown=False)
    assert own.translate([NAME, TEXT]) == [MISSPELLED, RIGHT]
    for asked, expected in (({}, SPELLED), ({"copy_unknown": False}, MISSPELLED)):
        options = ModelOptions(device="cpu", consistency=asked)
        served = ServedModels([parse_model("en-de")], options).get("en-de")
        assert served.translate([NAME]) == [expected]
    with pytest.raises(ModelError, match="Only translators have the option copy_unknown"):
        heedful.load("english", copy_unknown=True)


def test_python_and_its_copies(translator) -> None:
    assert translator.translate([TEXT]) == [RIGHT]
    assert heedful.load("en-de", device="cpu", numbers="model").translate([TEXT]) == [OWN]
    for made in (copy.deepcopy(translator), pickle.loads(pickle.dumps(translator))):
        assert made.translate([TEXT]) == [RIGHT]
    touched = copy.deepcopy(translator)
    with torch.no_grad():
        next(touched.model.parameters()).zero_()
    assert touched.translate([TEXT]) != [RIGHT]  # the model is the definition, and followed
    with pytest.raises(ModelError, match="Only translators have the option numbers"):
        heedful.load("english", numbers="keep")


def test_texts_without_digits_are_the_models_own(translator) -> None:
    card = models_at_hand()["en-de"].card()
    texts = [*card.sentences, *(example.text for example in card.examples)]
    texts = [text for text in texts if not any(map(str.isdecimal, text))]
    plain = heedful.load("en-de", device="cpu", numbers="model").translate(texts)
    found = translator.translate(texts)
    assert [(str(a), a.score) for a in found] == [(str(a), a.score) for a in plain]


def test_measures_are_of_the_model(translator) -> None:
    pairs = [(TEXT, RIGHT)]
    own = heedful.evaluate("en-de", pairs)
    assert own["bleu"] < 100
    assert heedful.evaluate(translator, pairs) == own


def test_a_server() -> None:
    for asked, expected in (({}, RIGHT), ({"numbers": "model"}, OWN)):
        options = ModelOptions(device="cpu", consistency=asked)
        served = ServedModels([parse_model("en-de")], options).get("en-de")
        assert served.translate([TEXT]) == [expected]


def test_without_the_words_for_numbers_it_is_said(monkeypatch) -> None:
    monkeypatch.setattr(stated_writing, "knows_number_words", lambda: False)
    with pytest.warns(stated_writing.NumbersLeft, match="heedful.check"):
        left = heedful.load("en-de", device="cpu")
    assert left.translate([TEXT]) == [OWN]


def test_the_file(tmp_path: Path) -> None:
    model, pair = load_model(models_at_hand()["en-de"].path)
    assert pair.writing == Writing("localize", ("en", "de"), copy_unknown=True)
    assert replace(pair, writing=None).fingerprint == pair.fingerprint
    save_model(model, pair, tmp_path / "copy")
    assert TokenizerPair.load(tmp_path / "copy").writing == pair.writing
    save_model(model, replace(pair, writing=None), tmp_path / "old")
    assert TokenizerPair.load(tmp_path / "old").writing is None
    assert heedful.load(tmp_path / "old", device="cpu").translate([TEXT]) == [OWN]
    # Not a word of the languages: they are those of the file.
    copied = heedful.load(tmp_path / "copy", device="cpu")
    assert copied.translate([TEXT, NAME]) == [RIGHT, SPELLED]
    plain = {"schema_version": 1, "numbers": "keep", "languages": ["en", "de"]}
    old = tmp_path / "old" / WRITING_FILE  # versions before this one do not say
    old.write_text(json.dumps(plain))
    assert TokenizerPair.load(tmp_path / "old").writing == Writing("keep", ("en", "de"))
    for content in (
        {**plain, "numbers": "rounded"},
        {"schema_version": 1, "numbers": "keep", "languages": ["en"]},
        {**plain, "copy_unknown": "yes"},
        {**plain, "schema_version": 2},
    ):
        (tmp_path / "copy" / WRITING_FILE).write_text(json.dumps(content))
        with pytest.raises(ModelError, match="how translations are written"):
            TokenizerPair.load(tmp_path / "copy")


def test_a_model_that_is_trained_on_states_nothing() -> None:
    files = {"data": {"train": [{"source": "a.fr", "target": "a.it"}]}}
    settings = resolve_settings(None, None, {"init": "en-de", **files})
    tokenizers = initial_tokenizers(settings, Events([]))
    assert tokenizers is not None
    assert tokenizers.writing is None
