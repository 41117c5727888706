"""Results read one update later: the same run, whatever happens in it.

Processors decide at once; here they do as a GPU would, and both runs are compared to the bit.
"""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.data.batches import PairBatch
from heedful.data.padding import pad
from heedful.device import Precision
from heedful.errors import RunError
from heedful.events import Event, Events, Metric, Recorder, Warning
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train import trainer as trainers
from heedful.train import update as updates
from heedful.train.model_weights import MovingAverage
from heedful.train.objective import LossContext, LossSum, SegmentObjective, TranslationObjective
from heedful.train.optimizers import build_optimizer, export_moments
from heedful.train.run import run_training
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.splitting import derive_seed
from heedful.train.tasks import language_model_task, translation_task
from heedful.train.update import Updater
from heedful.train.update_result import LaunchedUpdate

from .conftest import MakeSettings, short_run, write_text

FP32 = Precision("fp32", "cpu")


@pytest.fixture
def deferring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "DECIDING", {"cpu"})


def model_of(dropout: float = 0.2) -> Translator:
    torch.manual_seed(0)
    shape = TranslatorShape(
        width=8,
        encoder_layers=1,
        decoder_layers=1,
        num_heads=2,
        feedforward=12,
        dropout=dropout,
    )
    return Translator(translator_spec(shape, 20, 20))


def pairs(seed: int, count: int = 3) -> PairBatch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 7, (count,), generator=draw).tolist()
    rows = [torch.randint(4, 20, (n,), generator=draw).tolist() for n in lengths]
    ids, positions = pad(rows, 0)
    return PairBatch(ids, positions, ids, ids, positions, torch.arange(count), sum(lengths))


class NanAt(TranslationObjective):
    """A loss that is not a number where the batch has this many tokens."""

    tokens = -1

    def loss(self, model: Any, batch: PairBatch, context: LossContext) -> LossSum:
        result = super().loss(model, batch, context)
        bad = float("nan") if batch.target_tokens == self.tokens else 1.0
        return replace(result, loss_sum=result.loss_sum * bad)


def updater(model: Translator, *, deferred: bool, clip_norm: float = 0.5) -> Updater:
    objective = NanAt(ObjectiveSettings())
    optimizer = build_optimizer(model, OptimizerSettings(kind="adamw", weight_decay=0.1))
    made = Updater(model, objective, optimizer, FP32, seed=3, clip_norm=clip_norm)
    assert (made.device_step is not None) is deferred
    return made


def state(work: Updater) -> dict[str, Tensor]:
    weights = {name: p.detach().clone() for name, p in work.model.named_parameters()}
    return weights | {n: t.clone() for n, t in export_moments(work.optimizer, work.model).items()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("clip_norm", [0.0, 0.5, 100.0])
def test_updates_are_the_same_to_the_bit(clip_norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = updater(model_of(), deferred=False, clip_norm=clip_norm)
    monkeypatch.setattr(updates, "DECIDING", {"cpu"})
    deferred = updater(model_of(), deferred=True, clip_norm=clip_norm)
    for step in range(1, 5):
        batches = [pairs(2 * step), pairs(2 * step + 1)]
        rate = 0.01 / step
        expected, found = (each.update(batches, step, rate) for each in (ordinary, deferred))
        assert found == expected
        assert_equal(state(deferred), state(ordinary))


@pytest.mark.usefixtures("deferring")
def test_an_update_that_is_not_finite_changes_nothing_nor_does_the_next_until_it_is_read() -> None:
    work = updater(model_of(), deferred=True)
    batches = [[pairs(step, count=step + 1)] for step in range(4)]
    assert work.update(batches[0], 1, 0.01) is not None
    before = state(work)
    assert all(float(t) == 1 for name, t in before.items() if name.startswith("step/"))
    work.distribution.objective.tokens = batches[1][0].target_tokens  # type: ignore[attr-defined]
    bad = work.launch(batches[1], 2, 0.01)
    in_vain = work.launch(batches[2], 3, 0.01)
    assert bad is not None
    assert in_vain is not None
    assert_equal(state(work), before)
    result = bad.read()
    assert not result.finite
    assert result.values["loss"] != result.values["loss"]
    assert_equal(state(work), before)
    again = work.update(batches[2], 3, 0.01)
    assert again is not None
    assert again.finite
    other = updater(model_of(), deferred=True)
    other.update(batches[0], 1, 0.01)
    other.update(batches[2], 3, 0.01)
    assert_equal(state(work), state(other))


@pytest.mark.usefixtures("deferring")
def test_numbers_are_those_of_the_update_though_others_followed() -> None:
    alone, ahead = (updater(model_of(), deferred=True) for _ in range(2))
    batches = [[pairs(step)] for step in range(3)]
    expected = [alone.update(each, step, 0.1) for step, each in enumerate(batches, start=1)]
    launched = [ahead.launch(each, step, 0.1) for step, each in enumerate(batches, start=1)]
    assert [each.read() for each in launched if each is not None] == expected


def test_what_is_not_decided_on_the_device() -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, fused=False)
    work = Updater(model, TranslationObjective(ObjectiveSettings()), optimizer, FP32, seed=1)
    assert work.device_step is None  # it is a processor
    updates.DECIDING.add("cpu")
    try:
        work = Updater(model, TranslationObjective(ObjectiveSettings()), optimizer, FP32, seed=1)
        assert work.device_step is None  # no kernel of this optimizer looks at a flag
    finally:
        updates.DECIDING.remove("cpu")


def test_a_moving_average_takes_no_update_that_was_skipped() -> None:
    torch.manual_seed(0)
    weights = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    moved = {name: tensor + 1 for name, tensor in weights.items()}
    known, flagged = MovingAverage(weights, 0.9), MovingAverage(weights, 0.9)
    known.update(moved, 3)
    flagged.update(moved, 3, torch.tensor(0.0))
    for name, tensor in known.tensors.items():
        torch.testing.assert_close(flagged.tensors[name], tensor)
    before = copy.deepcopy(flagged.tensors)
    flagged.update(weights, 4, torch.tensor(1.0))
    assert_equal(flagged.tensors, before)


# Whole runs

TIMES = {"tokens_per_second", "seconds", "peak_memory_bytes"}


class BadAt(TranslationObjective):
    """A loss that is not a number at some steps, for one in `share` of the batches there."""

    steps: Sequence[int] = ()
    share = 1

    def loss(self, model: Any, batch: PairBatch, context: LossContext) -> LossSum:
        result = super().loss(model, batch, context)
        if not model.training or context.step not in self.steps:
            return result
        is_bad = derive_seed(context.step, *batch.indices.tolist()) % self.share == 0
        return replace(result, loss_sum=result.loss_sum * (float("nan") if is_bad else 1.0))


def outcome(run: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """What a run noted, and the tensors of all its checkpoints."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in event.items() if k not in TIMES} for event in events]
    files = sorted((run / "checkpoints").glob("step-*/*.safetensors"))
    return kept, {str(file.relative_to(run)): file.read_bytes() for file in files}


def both(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, *, error: str | None = None
) -> tuple[Any, Any]:
    """Outcomes of a run read at once, and of one read an update later, and what they warned of."""
    outcomes = []
    for name in ("at once", "later"):
        recorder = Recorder()
        if error is None:
            run_training(tmp_path / name, settings, events=Events([recorder]))
        else:
            with pytest.raises(RunError, match=error):
                run_training(tmp_path / name, settings, events=Events([recorder]))
        outcomes.append((*outcome(tmp_path / name), recorder.texts(Warning)))
        monkeypatch.setattr(updates, "DECIDING", {"cpu"})
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_run_with_updates_that_are_not_finite_is_the_same(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Two in a row, one where a checkpoint and a validation are due, and the last of all."""
    monkeypatch.setattr(translation_task, "TranslationObjective", BadAt)
    monkeypatch.setattr(BadAt, "steps", (3, 6, 7, 8, 20) if action == "skip" else range(5, 19))
    monkeypatch.setattr(BadAt, "share", 1 if action == "skip" else 5)
    changes = {"model": {"dropout": 0.1}, "optimizer": {"accumulate": 2, "clip_norm": 0.1}}
    settings = make_settings(on_nonfinite=action, **changes)
    expected, found = both(tmp_path, settings, monkeypatch)
    assert len(expected[2]) >= 3
    assert found[0] == expected[0]
    assert found[1] == expected[1]
    assert found[2] == expected[2]


def test_a_run_that_stops_at_once_is_the_same(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation_task, "TranslationObjective", BadAt)
    monkeypatch.setattr(BadAt, "steps", (6,))
    settings = make_settings(on_nonfinite="stop")
    expected, found = both(tmp_path, settings, monkeypatch, error="Not finite at step 6: the loss")
    assert found == expected


def test_epochs_patience_and_streams_of_texts_end_where_they_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory of earlier segments, one update of which is bad: what came after it is forgotten."""

    class Bad(SegmentObjective):
        def loss(self, model: Any, batch: Any, context: LossContext) -> LossSum:
            result = super().loss(model, batch, context)
            wrong = model.training and context.step == 5
            return replace(result, loss_sum=result.loss_sum * float("nan")) if wrong else result

    monkeypatch.setattr(language_model_task, "SegmentObjective", Bad)
    shape = {
        "width": 8,
        "decoder_layers": 2,
        "num_heads": 2,
        "feedforward": 8,
        "positions": "transformer_xl",
        "memory": 20,
    }
    data = {
        "train": [{"file": write_text(tmp_path / "train.txt", 1, 24)}],
        "valid": [{"file": write_text(tmp_path / "valid.txt", 2, 5)}],
        "max_length": 16,
        "batch_tokens": 64,
    }
    changes = {
        "tokenizer": {"kind": "characters"},
        "max_epochs": 1,
        "validation": {"every_steps": 3, "patience": 9},
    }
    settings = short_run("causal_lm", shape, data, changes)
    expected, found = both(tmp_path, settings, monkeypatch)
    assert any(event.get("event") == "nonfinite" for event in expected[0])
    assert found == expected


class Stop:
    """A sink that asks this process to stop at the training metrics of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def handle(self, event: Event) -> None:
        if isinstance(event, Metric) and event.kind == "train" and event.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("deferring")
def test_a_run_that_is_stopped_reads_what_is_in_flight_and_goes_on_the_same(
    tmp_path: Path, make_settings: MakeSettings
) -> None:
    settings = make_settings(model={"dropout": 0.1}, checkpoint={"ema_decay": 0.9})
    run_training(tmp_path / "whole", settings, events=Events())
    summary = run_training(tmp_path / "parts", settings, events=Events([Stop(5)]))
    assert not summary.finished
    assert summary.steps == 6  # the update in flight counts
    assert (tmp_path / "parts/checkpoints/step-00000006").is_dir()
    run_training(tmp_path / "parts", settings, resume=True, events=Events())
    whole, parts = outcome(tmp_path / "whole"), outcome(tmp_path / "parts")
    assert [each for each in parts[0] if "event" not in each] == [
        each for each in whole[0] if "event" not in each
    ]
    last = "checkpoints/step-00000020/"
    for name in ("model.safetensors", "training.safetensors"):
        assert parts[1][last + name] == whole[1][last + name]


@pytest.mark.usefixtures("deferring")
def test_results_are_read_one_update_later_but_before_what_is_due(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    launch = Updater.launch

    def noted(self: Updater, parts: Any, step: int, *arguments: Any) -> LaunchedUpdate | None:
        launched = launch(self, parts, step, *arguments)
        assert launched is not None
        calls.append(("launch", step))

        def read() -> Any:
            calls.append(("read", step))
            return launched.read()

        return replace(launched, read=read)

    def noted_save(self: Any, **how: Any) -> None:
        calls.append(("save", self.state.step))

    monkeypatch.setattr(Updater, "launch", noted)
    monkeypatch.setattr(trainers.Trainer, "save", noted_save)
    settings = make_settings(max_steps=6, data={"valid": []}, checkpoint={"every_steps": 3})
    run_training(tmp_path / "run", settings, events=Events())
    assert calls == [
        *(("launch", 1), ("launch", 2), ("read", 1), ("launch", 3), ("read", 2), ("read", 3)),
        ("save", 3),
        *(("launch", 4), ("launch", 5), ("read", 4), ("launch", 6), ("read", 5), ("read", 6)),
        *(("save", 6), ("save", 6)),
    ]
