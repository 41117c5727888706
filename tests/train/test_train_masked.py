"""Masked language modelling through the same trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.device import resolve_precision
from heedful.errors import ConfigError, DataError
from heedful.events import Events
from heedful.models.checkpoint import load_model
from heedful.models.encoder import EncoderModel
from heedful.train.objective import LossContext, MaskedObjective
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task

from .conftest import noted_losses, short_run, write_text

FP32 = resolve_precision("fp32", torch.device("cpu"), width=16)
SHAPE = {"width": 16, "encoder_layers": 2, "num_heads": 2, "feedforward": 32}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("texts")
    return {
        "train": [{"file": write_text(folder / "train.txt", 1, 60)}],
        "valid": [{"file": write_text(folder / "valid.txt", 2, 20)}],
        "max_length": 32,
        "batch_tokens": 256,
        "cache": str(folder / "cache"),
    }


def settings(files: dict[str, Any], **changes: Any) -> RunSettings:
    return short_run("masked_lm", SHAPE, files, changes)


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_stopped_and_resumed_run_is_the_same(
    tmp_path: Path, files: dict[str, Any], whole_words: bool
) -> None:
    changes = {"objective": {"whole_words": whole_words}}
    whole = run_training(tmp_path / "whole", settings(files, **changes), events=Events([]))
    part = settings(files, **changes, max_steps=10)  # within the second epoch
    run_training(tmp_path / "parts", part, events=Events([]))
    resumed = settings(files, **changes)
    parts = run_training(tmp_path / "parts", resumed, resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")
    assert parts.scores == whole.scores
    assert whole.epochs > 1
    assert whole.scores["loss"] < 3.3  # 40 pieces: ln 40 = 3.7


@pytest.fixture(scope="module")
def task(files: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Task:
    run = tmp_path_factory.mktemp("run")
    return prepare_task(run, settings(files), None, Events([]))


def test_a_batch_is_a_function_of_its_place(
    task: Task, files: dict[str, Any], tmp_path: Path
) -> None:
    again = prepare_task(tmp_path, settings(files), task.tokenizers, Events([]))
    epochs = []
    for epoch in (1, 0):
        count = task.source.count(epoch)
        assert count == again.source.count(epoch)
        batches = [task.source.batch(epoch, number) for number in range(count)]
        for number in reversed(range(count)):
            other = again.source.batch(epoch, number)
            assert isinstance(other, type(batches[number]))
            assert other.ids.equal(batches[number].ids)
            assert other.targets.equal(batches[number].targets)
            assert other.ids.numel() <= 256
        epochs.append(batches)
    tokens = [sum(int((b.positions >= 0).sum()) for b in batches) for batches in epochs]
    targets = [sum(b.target_tokens for b in batches) for batches in epochs]
    # The first cut of an epoch may make one more row, with two more tokens around it.
    assert tokens[0] == pytest.approx(tokens[1], abs=2)
    assert targets[0] / tokens[0] == pytest.approx(0.15, abs=0.02)


def test_validation_hides_the_same_tokens_each_time_and_for_each_seed(
    task: Task, files: dict[str, Any], tmp_path: Path
) -> None:
    other = prepare_task(tmp_path, settings(files, seed=7), task.tokenizers, Events([]))
    found = []
    for each in (task, task, other):
        validator = each.validator(settings(files), FP32)
        assert validator is not None
        found.append([(b.ids.tolist(), b.targets.tolist()) for b in validator.batches])
    assert found[0] == found[1] == found[2]


def test_only_hidden_tokens_count(task: Task) -> None:
    model = task.new_model().eval()
    batch = task.source.batch(0, 0)
    result = MaskedObjective(0.0).loss(model, batch, LossContext(1))
    logits = model.masked_lm_logits(model(batch.ids, batch.positions))
    wanted = batch.targets >= 0
    expected = torch.nn.functional.cross_entropy(
        logits[wanted], batch.targets[wanted], reduction="sum"
    )
    assert float(result.loss_sum.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert result.tokens == int(wanted.sum())


def test_every_parameter_of_the_encoder_learns(task: Task) -> None:
    model = task.new_model().train()
    task.objective.loss(model, task.source.batch(0, 0), LossContext(1)).loss_sum.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


def test_the_model_says_what_it_is(tmp_path: Path, files: dict[str, Any]) -> None:
    chosen = settings(files, max_steps=1, model={**SHAPE, "positions": "learned"})
    run_training(tmp_path / "run", chosen, events=Events([]))
    model, tokenizers = load_model(tmp_path / "run")
    assert isinstance(model, EncoderModel)
    assert tokenizers is not None
    assert tokenizers.source.size == model.spec.vocabulary <= 40
    assert tokenizers.source.mask == tokenizers.source.size - 1
    assert [head.kind for head in model.spec.heads] == ["masked_lm"]
    assert model.spec.max_length == 32


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"objective": {"r_drop": 1.0}}, "objective.r_drop"),
        ({"objective": {"bpe_dropout": 0.1}}, "objective.bpe_dropout"),
        ({"validation": {"metrics": ["bleu"]}}, "validation.metrics"),
        ({"task": "causal_lm", "objective": {"whole_words": True}}, "objective.whole_words"),
        ({"task": "causal_lm", "objective": {"mask_share": 0.2}}, "objective.mask_share"),
    ],
)
def test_settings_of_other_tasks_are_refused(
    tmp_path: Path, files: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        run_training(tmp_path / "run", settings(files, **changes), events=Events([]))


def test_rows_without_room_are_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="batch_tokens"):
        run_training(tmp_path / "a", settings({**files, "batch_tokens": 8}), events=Events([]))
    with pytest.raises(ConfigError, match="no room"):
        run_training(tmp_path / "b", settings({**files, "max_length": 2}), events=Events([]))
    pairs = {**files, "train": [{"source": "a", "target": "b"}]}
    with pytest.raises(DataError, match="single files"):
        run_training(tmp_path / "c", settings(pairs), events=Events([]))
