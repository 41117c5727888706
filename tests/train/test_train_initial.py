"""Beginning a run with the weights of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.errors import ModelError
from heedful.events import Events
from heedful.models.checkpoint import load_translator
from heedful.train.run import run_training
from heedful.train.task import prepare_task


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, make_settings: Any) -> Path:
    """A short run."""
    run = tmp_path_factory.mktemp("runs") / "first"
    run_training(run, make_settings(max_steps=8), events=Events([]))
    return run


def test_weights_and_tokenizer_are_those_of_the_model(
    first: Path, tmp_path: Path, make_settings: Any
) -> None:
    # Another vocabulary size and dropout are asked for; the model's tokenizer goes before the one.
    settings = make_settings(
        init=str(first), tokenizer={"vocabulary_size": 40}, model={"dropout": 0.3}
    )
    model, tokenizers = load_translator(first)
    task = prepare_task(tmp_path, settings, None, Events([]))
    assert task.tokenizers.fingerprint == tokenizers.fingerprint
    begun = task.new_model()
    for name, tensor in model.state_dict().items():
        assert torch.equal(begun.state_dict()[name], tensor), name
    assert begun.spec.decoder.block.dropout == 0.3  # type: ignore[union-attr]


def test_a_run_goes_on_learning_and_can_be_resumed(
    first: Path, tmp_path: Path, make_settings: Any
) -> None:
    kept = load_translator(first)[0].output_weight.clone()
    settings = make_settings(init=str(first), max_steps=12)
    whole = run_training(tmp_path / "whole", settings, events=Events([]))
    run_training(tmp_path / "parts", make_settings(init=str(first), max_steps=6), events=Events([]))
    parts = run_training(tmp_path / "parts", settings, resume=True, events=Events([]))
    assert parts.scores == whole.scores
    assert torch.equal(load_translator(first)[0].output_weight, kept)


def test_another_model_is_refused_by_what_differs(
    first: Path, tmp_path: Path, make_settings: Any
) -> None:
    settings = make_settings(init=str(first), model={"feedforward": 32})
    with pytest.raises(ModelError, match=r"feedforward\.width \(16 there, 32 here\)"):
        run_training(tmp_path / "run", settings, events=Events([]))
    with pytest.raises(ModelError, match="nowhere"):
        run_training(tmp_path / "b", make_settings(init="nowhere"), events=Events([]))
