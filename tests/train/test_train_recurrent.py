"""Runs of recurrent translators: resumed exactly, started from, refused on contradiction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from heedful.errors import ConfigError
from heedful.events import Events
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings, settings_of_run

RECURRENT = {"attention": "general", "feeding": "output", "readout": "tanh", "window": 3}
SHAPE = {"width": 16, "encoder_layers": 1, "decoder_layers": 2, "positions": "none"}


def settings(folder: Path, model: dict[str, Any], **changes: Any) -> Any:
    (folder / "a.txt").write_text("one two three\nfour five\nsix seven eight nine\n" * 20)
    pair = {"source": str(folder / "a.txt"), "target": str(folder / "a.txt")}
    values = {
        "model": SHAPE | {"dropout": 0.2} | model,
        "data": {"train": [pair], "max_length": 64, "batch_tokens": 128},
        "tokenizer": {"kind": "characters"},
        "checkpoint": {"every_steps": 2, "average": "none"},
        "device": "cpu",
        "precision": "fp32",
    }
    return resolve_settings(None, None, values | changes)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize(
    "model", [{"recurrent": RECURRENT}, {"recurrent": {}}, {"convolution": {}}]
)
def test_a_resumed_run_is_exactly_one_that_was_never_stopped(
    model: dict[str, Any], tmp_path: Path
) -> None:
    whole = settings(tmp_path, model, max_steps=4)
    run_training(tmp_path / "whole", whole, events=Events([]))
    run_training(tmp_path / "parts", settings(tmp_path, model, max_steps=2), events=Events([]))
    run_training(
        tmp_path / "parts",
        settings_of_run(tmp_path / "parts", {"max_steps": 4}),
        events=Events([]),
        resume=True,
    )
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_to_begin_with_brings_its_layers_and_takes_dropout(tmp_path: Path) -> None:
    first = settings(tmp_path, {"recurrent": RECURRENT}, max_steps=2)
    run_training(tmp_path / "one", first, events=Events([]))

    def begun(name: str, **model: Any) -> None:
        values = settings(tmp_path, {}, max_steps=1).plain()
        values |= {"model": model, "init": str(tmp_path / "one"), "max_steps": 1}
        run_training(tmp_path / name, resolve_settings(None, None, values), events=Events([]))

    begun("two", dropout=0.4, recurrent={"attention": "general", "readout": "tanh"})
    config = (tmp_path / "two" / "model" / "config.json").read_text()
    assert config.count('"dropout": 0.4') == 4  # the embedding, both sub-layers, between layers
    with pytest.raises(ConfigError, match=r"recurrent\.cell is gru, and the model's lstm"):
        begun("three", recurrent={"cell": "gru"})
