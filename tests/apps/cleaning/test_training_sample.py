"""The languages of training data, judged by a sample before training begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.apps.cleaning.training_sample import check_languages
from heedful.data.corpus_spec import DataSpec
from heedful.errors import DataError
from heedful.events import Events, Recorder, Warning

ENGLISH = ["The cat is asleep.", "Where is my book?", "We went home early.", "It is raining."]
GERMAN = ["Die Katze schläft.", "Wo ist mein Buch?", "Wir gingen früh heim.", "Es regnet heute."]
FRENCH = ["Le chat dort.", "Où est mon livre ?", "Nous sommes rentrés tôt.", "Il pleut ici."]


def warnings(folder: Path, source: list[str], target: list[str], **data: object) -> list[str]:
    for name, lines in (("t.en", source), ("t.de", target)):
        (folder / name).write_text("\n".join(lines * 10), encoding="utf-8")
    corpus = {"source": str(folder / "t.en"), "target": str(folder / "t.de")}
    recorder = Recorder()
    check_languages(DataSpec.parse({"train": [corpus], **data}), Events([recorder]))
    return recorder.texts(Warning)


def test_exchanged_sides_are_refused_by_names_and_by_languages(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sources look like de and the targets like en"):
        warnings(tmp_path, GERMAN, ENGLISH)
    with pytest.raises(DataError, match="exchanged"):
        warnings(tmp_path, ENGLISH, GERMAN, languages=["de", "en-GB"])
    # The settings win over names of files.
    assert warnings(tmp_path, GERMAN, ENGLISH, languages=["de", "en"]) == []
    assert warnings(tmp_path, ENGLISH, GERMAN) == []


def test_other_languages_are_named_where_somebody_gave_them(tmp_path: Path) -> None:
    assert warnings(tmp_path, FRENCH, GERMAN) == []
    (warning,) = warnings(tmp_path, FRENCH, GERMAN, languages=["en", "de"])
    assert "the sources look like fr and the targets like de" in warning


def test_no_language_is_no_finding(tmp_path: Path) -> None:
    assert warnings(tmp_path, ["abc de", "fgh"], ["xyz", "uvw q"], languages=["en", "de"]) == []
    assert warnings(tmp_path, ["a"], ["b"], languages=["en", "en"]) == []
    assert warnings(tmp_path, ENGLISH[:1], GERMAN[:1], languages=["tlh", "de"]) == []
