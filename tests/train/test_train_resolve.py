from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from heedful.config import merge
from heedful.errors import ConfigError
from heedful.models.preset_files import read_preset
from heedful.train.run_config import resolve_settings

DATA = {"train": [{"file": "pairs.tsv"}]}


def test_later_places_win(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("seed = 5\n[model]\nwidth = 64\ndropout = 0.25\n[schedule]\nwarmup_steps = 7\n")
    settings = resolve_settings("tiny", file, {"model": {"width": 32}, "data": DATA})
    assert settings.preset == "tiny"
    assert settings.model.width == 32  # flag over file
    assert settings.model.dropout == 0.25  # file over preset
    assert settings.schedule.warmup_steps == 7
    assert settings.model.encoder_layers == read_preset("tiny")["model"]["encoder_layers"] == 4
    assert settings.optimizer.beta2 == 0.98  # default
    assert settings.seed == 5


def test_a_file_may_name_the_preset_and_a_flag_another(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('preset = "tiny"\n')
    assert resolve_settings(None, file, {"data": DATA}).model.width == 128
    assert resolve_settings("small", file, {"data": DATA}).preset == "small"
    assert resolve_settings("small", file, {"data": DATA}).model.width == 256


def test_without_a_preset_the_model_is_the_papers_base() -> None:
    settings = resolve_settings(overrides={"data": DATA})
    assert (settings.preset, settings.model.width, settings.model.encoder_layers) == (None, 512, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checkpoint": {"average": "best"}}, "needs validation data"),
        ({"validation": {"patience": 3}}, "needs validation data"),
        (
            {
                "data": {"valid": DATA["train"]},
                "checkpoint": {"average": "best", "every_steps": 7},
                "validation": {"every_steps": 11},
                "max_steps": 76,
            },
            "first meet at step 77",
        ),
    ],
)
def test_settings_that_could_have_no_effect_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_settings(overrides=merge({"data": DATA}, change))


def test_unknown_keys_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[schedule]\nwarmup = 7\n")
    with pytest.raises(ConfigError, match="Did you mean 'warmup_steps'") as caught:
        resolve_settings(None, file, {"data": DATA})
    assert str(file) in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_named_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match="named pipe"):
        resolve_settings(None, tmp_path / "run.toml")
