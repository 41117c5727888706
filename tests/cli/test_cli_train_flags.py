"""Flags of `heedful train`: every setting, and who wins."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest

from heedful.cli.main import normalize
from heedful.cli.parser import build_app, flags_of, overrides
from heedful.cli.train import corpora
from heedful.config import Config, read_toml
from heedful.errors import UserError
from heedful.train.run_settings import RunSettings


def leaves(settings: type[pydantic.BaseModel], path: str = "") -> Iterator[str]:
    """Dotted names of all settings, found independently of the code under test."""
    for name, field in settings.model_fields.items():
        kinds = (field.annotation, *typing.get_args(field.annotation))  # a section may be optional
        sections = [
            kind
            for kind in kinds
            if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
        ]
        if sections:
            yield from leaves(sections[0], f"{path}{name}.")
        else:
            yield path + name


@pytest.fixture(scope="module")
def flags_of_train() -> set[str]:
    arguments = build_app("train")["train"].assemble_argument_collection()
    return {name for argument in arguments for name in argument.names}


def parsed(*words: str) -> dict[str, object]:
    """The settings that words of the command line give."""
    _, bound, _ = build_app("train").parse_args(
        normalize(["train", "run", *words]), exit_on_error=False, print_error=False
    )
    return overrides(bound.arguments.get("settings"))


@pytest.mark.parametrize("name", [n for n in leaves(RunSettings) if n not in ("preset",)])
def test_every_setting_is_a_flag(name: str, flags_of_train: set[str]) -> None:
    flag = {"data.train": "--train", "data.valid": "--valid"}.get(
        name, f"--{name.replace('_', '-')}"
    )
    assert flag in flags_of_train


@pytest.mark.parametrize("name", [n for n in leaves(RunSettings) if not n.startswith("data.t")])
def test_help_shows_every_flag_in_one_piece(name: str, help_text: str) -> None:
    flag = "--valid" if name == "data.valid" else f"--{name.replace('_', '-')}"
    assert re.search(rf"{re.escape(flag)}(?![\w.-])", help_text)


@pytest.fixture(scope="module")
def help_text() -> str:
    import contextlib
    import io

    from heedful.cli.main import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["train", "--help"]) == 0
    return printed.getvalue()


def test_help_shows_defaults_and_descriptions(help_text: str) -> None:
    flowing = " ".join(help_text.replace("│", " ").split())
    assert "0.3 for small data. [default: 0.1]" in flowing
    assert "[choices: bpe, byte-bpe, unigram, characters]" in flowing
    assert "Maximum number of tokens on each side of a pair" in flowing
    assert "Learning rate over the updates." in flowing


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["--max-steps", "5"], {"max_steps": 5}),
        (["--max_steps=5"], {"max_steps": 5}),
        (["--model.num-heads", "2"], {"model": {"num_heads": 2}}),
        (["--model.num_heads", "2"], {"model": {"num_heads": 2}}),
        (["--tokenizer.joint", "false"], {"tokenizer": {"joint": False}}),
        (["--tensorboard"], {"tensorboard": True}),
        (["--tensorboard", "true", "--seed", "3"], {"tensorboard": True, "seed": 3}),
        (["--validation.metrics", "bleu", "ter"], {"validation": {"metrics": ["bleu", "ter"]}}),
        (["--tokenizer.kind", "byte-bpe"], {"tokenizer": {"kind": "byte-bpe"}}),
        (["--model.positions", "relative_keys"], {"model": {"positions": "relative_keys"}}),
        (["--optimizer.epsilon", "1e-8"], {"optimizer": {"epsilon": 1e-8}}),
        (
            ["--model.width", "8", "--model.dropout", "0"],
            {"model": {"width": 8, "dropout": 0.0}},
        ),
        (["--data.cache", "some_folder"], {"data": {"cache": "some_folder"}}),
    ],
)
def test_flags_become_settings(words: list[str], expected: dict[str, object]) -> None:
    assert parsed(*words) == expected


def test_values_keep_their_underscores() -> None:
    assert normalize(["train", "my_run", "--data.cache=a_b", "--x_y", "c_d"]) == [
        "train",
        "my_run",
        "--data.cache=a_b",
        "--x-y",
        "c_d",
    ]
    assert normalize(["translate", "m", "--", "--a_b", "true"])[-2:] == ["--a_b", "true"]


def test_flags_of_a_class_of_ones_own() -> None:
    class Inner(Config):
        """The inner ones."""

        number: int | None = None

    class Outer(Config):
        """The outer ones."""

        switch: bool = False
        inner: Inner = Inner()

    made = flags_of(Outer, "Title", skip=("switch",))
    assert [field.name for field in dataclasses.fields(made)] == ["inner__number"]
    assert overrides(made(inner__number=3)) == {"inner": {"number": 3}}
    assert overrides(made()) == overrides(None) == {}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["a", "b"], [{"source": "a", "target": "b"}]),
        (["a.tsv"], [{"file": "a.tsv"}]),
        (
            ["a.jsonl.gz", "b.gz", "c.gz"],
            [{"file": "a.jsonl.gz"}, {"source": "b.gz", "target": "c.gz"}],
        ),
        (["a", "b.tsv"], [{"source": "a", "target": "b.tsv"}]),
    ],
)
def test_corpora(files: list[str], expected: list[dict[str, str]]) -> None:
    assert corpora(files, "--train") == expected


def test_a_source_needs_a_target() -> None:
    with pytest.raises(UserError, match="'c' has no partner"):
        corpora(["a", "b", "c"], "--train")


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """What training was asked to do; nothing is trained."""
    asked: list[RunSettings] = []

    class Stop(Exception):
        pass

    def instead(run_dir: Path, settings: RunSettings, **_: object) -> None:
        asked.append(settings)
        raise Stop

    monkeypatch.setattr("heedful.train.run.run_training", instead)
    return asked


def test_flags_win_over_files_over_presets(run, tmp_path: Path, resolved) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[model]\nwidth = 96\nfeedforward = 100\n", encoding="utf-8")
    flags = ["--train", "a", "b", "c.tsv", "--train", "d", "e", "--weights", "1", "3", "0.5"]
    run(
        "train", tmp_path / "r", "--preset", "tiny", "--config", file, *flags, "--model.width", "64"
    )
    (settings,) = resolved
    assert settings.preset == "tiny"
    assert settings.model.width == 64  # the flag
    assert settings.model.feedforward == 100  # the file
    assert settings.model.dropout == 0.3  # the preset
    assert settings.model.activation == "relu"  # the default
    assert [corpus.weight for corpus in settings.data.train] == [1.0, 3.0, 0.5]
    assert settings.data.train[1].file == "c.tsv"


def test_each_corpus_has_a_prefix_of_its_own(run, tmp_path: Path, resolved) -> None:
    flags = ["--train", "a", "b", "c.tsv", "--valid", "d", "e", "f.tsv"]
    run("train", tmp_path / "r", *flags, "--task-prefixes", "say: ", "")
    (settings,) = resolved
    for part in (settings.data.train, settings.data.valid):
        assert [corpus.task_prefix for corpus in part] == ["say: ", ""]


def test_a_run_is_repeated_from_its_own_file(run, tmp_path: Path, pairs) -> None:
    tiny = ["--tokenizer.kind=characters", "--model.width=16", "--model.encoder-layers=1"]
    tiny += ["--model.decoder-layers=1", "--model.num-heads=2", "--model.feedforward=32"]
    first = run("train", tmp_path / "one", *tiny, "--max-steps", "1", "--train", *pairs)
    assert first.status == 0, first.err
    again = run("train", tmp_path / "two", "--config", tmp_path / "one" / "config.toml")
    assert again.status == 0, again.err
    one, two = (read_toml(tmp_path / name / "config.toml") for name in ("one", "two"))
    assert one == two
