"""Models at hand: their names stand for directories, and what is on the disk comes first."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import heedful
from heedful.cli.main import main
from heedful.config import dump_toml
from heedful.errors import ConfigError, ModelError
from heedful.models.checkpoint import load_model, save_model
from heedful.pretrained import catalogue
from heedful.pretrained.catalogue import CARD_FILE, NameTaken, directory_of, models_at_hand
from tests.apps.studio.conftest import write_translator

CARD = {
    "title": "A translator of nothing",
    "summary": "Made for tests",
    "task": "translation",
    "data": "eleven words",
    "licence": "none",
    "attribution": "nobody",
    "command": "pytest",
    "machine": "any",
    "date": "2026-11-24",
    "minutes": 0.1,
    "scores": [{"metric": "BLEU", "data": "its own words", "value": 1.5, "interval": [1.0, 2.0]}],
    "limits": ["It cannot translate."],
    "examples": [{"text": "the cat sat on a mat"}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models at hand with one of them, and a working directory beside it."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    model = write_translator(folder / "some", "sinusoidal", seed=3)
    (model / CARD_FILE).write_text(dump_toml(CARD), encoding="utf-8")
    monkeypatch.setattr(catalogue, "FOLDER", folder)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def test_a_name_stands_for_its_directory(folder: Path) -> None:
    assert directory_of(Path("some")) == folder / "some"
    by_name = heedful.load("some").translate(["the cat sat"], beam=2)
    assert list(by_name) == list(heedful.load(folder / "some").translate(["the cat sat"], beam=2))


def test_a_command_shows_the_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lines").write_text("the cat sat\n")
    assert main(["evaluate", "some", "--source", "lines", "--reference", "lines"]) == 0
    told = capsys.readouterr().err
    assert "translating: some" in told
    assert str(folder) not in told
    assert main(["evaluate", "some", "--reference", "lines"]) == 2
    assert "some: A model needs text" in capsys.readouterr().err


def test_a_directory_of_that_name_comes_first_and_is_said(folder: Path) -> None:
    loaded, tokenizers = load_model(folder / "some")
    save_model(loaded, tokenizers, Path("some"))
    with pytest.warns(NameTaken, match="Using the directory some"):
        assert directory_of(Path("some")) == Path("some")
    Path("other/some").mkdir(parents=True)
    assert directory_of(Path("./other/some")) == Path("./other/some")


def test_a_command_says_it_once(folder: Path) -> None:
    Path("some").mkdir()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default", NameTaken)
        directory_of(Path("some"))
        directory_of(Path("some"))  # of another line, as by another module
    assert len(heard) == 1


def test_an_unknown_name_names_near_ones(folder: Path) -> None:
    with pytest.raises(ModelError) as error:
        heedful.load("sone")
    assert "some" in str(error.value.remedy)
    with pytest.raises(ModelError) as error:
        heedful.load("nothing/like/it")
    assert "at hand: some" in str(error.value.remedy)


def test_the_list_and_a_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert facts["name"] == "some"
    count = sum(p.numel() for p in load_model(folder / "some")[0].parameters())
    assert facts["parameters"] == count
    assert facts["bytes"] == sum(file.stat().st_size for file in (folder / "some").iterdir())
    assert main(["models", "some"]) == 0
    shown = capsys.readouterr().out
    for words in ("eleven words", "nobody", "pytest", "BLEU 1.5 (95 %: 1 to 2)", "cannot"):
        assert words in shown
    assert main(["models", "sume"]) == 2
    assert "some" in capsys.readouterr().err


def test_a_card_names_heads_that_beat_a_fixed_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = "".join(
        f'[[noted_heads]]\nrelation = "{relation}"\npart = "encoder"\nlayer = 2\nhead = 3\n'
        f"share = 0.61\noffset = -1\noffset_share = 0.44\ngain = [{low}, 0.2]\ncount = 1420\n"
        for relation, low in (("verb → subject", 0.1), ("noun → adjective", -0.1))
    )
    with (folder / "some" / CARD_FILE).open("a", encoding="utf-8") as file:
        file.write(heads)
    assert main(["models", "some"]) == 0
    shown = capsys.readouterr().out
    assert "verb → subject: encoder 2.3, 61% of 1,420 words, 44% at -1" in shown
    assert "noun → adjective" not in shown  # its head may well be worse


def test_a_damaged_card_is_refused_in_words(folder: Path) -> None:
    (folder / "some" / CARD_FILE).write_text("title = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="title"):
        models_at_hand()["some"].card()


def test_the_package_carries_what_it_lists() -> None:
    """Every folder of a model is whole, small, and has a readable card."""
    known = models_at_hand()
    for model in known.values():
        card = model.card()
        assert card.scores
        assert card.limits
        assert card.examples or card.task in ("images", "sounds")
        load_model(model.path)
    assert sum(model.size for model in known.values()) <= 24e6


def test_the_command_says_which_directory_it_takes(folder: Path) -> None:
    """As a process of its own, where warnings are sentences on standard error."""
    script = (
        "import sys; from pathlib import Path; from heedful.pretrained import catalogue;"
        f"catalogue.FOLDER = Path({str(folder)!r}); sys.argv[1:] = ['info', 'some'];"
        "from heedful.cli.main import run; sys.exit(run())"
    )
    alone = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert alone.returncode == 0
    assert "Using the directory" not in alone.stderr
    loaded, tokenizers = load_model(folder / "some")
    save_model(loaded, tokenizers, Path("some"))
    hidden = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert hidden.returncode == 0
    assert "Using the directory some, not the model at hand of this name" in hidden.stderr
    assert "Warning" not in hidden.stderr
