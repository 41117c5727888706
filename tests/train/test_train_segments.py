"""Training a language model with a memory: what is carried, kept, split and validated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.data.batches import SegmentBatch
from heedful.data.encoded_texts import EncodedTexts
from heedful.data.text_corpus import DocumentReader
from heedful.data.text_streams import Streams, make_segments
from heedful.device import Precision
from heedful.errors import ConfigError
from heedful.events import Events
from heedful.models.build import build_model
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.train.checkpoints import CheckpointStore
from heedful.train.objective import HandOver, LossContext, LossSum, SegmentObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings
from heedful.train.run_settings import OptimizerSettings, RunSettings, ValidationSettings
from heedful.train.tasks import language_model_task
from heedful.train.training_memory import with_budget
from heedful.train.update import Updater
from heedful.train.validation import Validator

from .conftest import Crash, CrashAt, write_text

SHAPE: dict[str, Any] = {
    "width": 16,
    "decoder_layers": 2,
    "num_heads": 2,
    "feedforward": 24,
    "positions": "transformer_xl",
    "memory": 6,
}


def model_of(**changes: Any) -> CausalLM:
    torch.manual_seed(0)
    shape = TranslatorShape(**(SHAPE | {"dropout": 0.0} | changes))
    model = build_model(causal_lm_spec(shape, 30, 4))
    assert isinstance(model, CausalLM)
    return model


def segments(rows: int = 3) -> list[SegmentBatch]:
    draw = np.random.default_rng(0)
    arrays = {
        "ids": draw.integers(30, size=62),
        "begins": np.array([0, 25, 40]),
        "lines": np.array([1, 2, 3]),
    }
    texts = EncodedTexts([DocumentReader(Path("texts.txt"), "line")], [arrays], ["key"])
    return [make_segments(texts, each) for each in Streams.cut(62, 4, rows, shift=1).segments()]


def by_hand(model: CausalLM, batches: list[SegmentBatch]) -> list[Tensor]:
    """The loss of each batch, of one that is read after all before it."""
    losses, memory = [], model.empty_memory(len(batches[0].ids))
    for batch in batches:
        states, memory = model.read_segment(batch.ids, batch.positions, batch.segments, memory)
        real = batch.targets >= 0
        logits = model.logits(states[real])
        losses.append(
            torch.nn.functional.cross_entropy(logits, batch.targets[real], reduction="sum")
        )
    return losses


def test_the_loss_is_that_of_segments_read_one_after_the_other() -> None:
    model, carried, batches = model_of(), {}, segments()
    assert len(batches) == 5
    for batch, expected in zip(batches, by_hand(model, batches), strict=True):
        result = SegmentObjective(0.0).loss(model, batch, LossContext(1, carried))
        torch.testing.assert_close(result.loss_sum, expected)
        assert not any(tensor.requires_grad for tensor in result.carried_state.values())
        carried = result.carried_state


def test_a_row_finds_its_memory_and_only_its_own() -> None:
    model, batches = model_of(), segments()
    objective = SegmentObjective(0.0)
    first = objective.loss(model, batches[0], LossContext(1))
    turned = {name: tensor.flip(0) for name, tensor in first.carried_state.items()}
    expected = objective.loss(model, batches[1], LossContext(1, first.carried_state)).loss_sum
    torch.testing.assert_close(
        objective.loss(model, batches[1], LossContext(1, turned)).loss_sum, expected
    )
    alone = objective.loss(model, batches[1], LossContext(1)).loss_sum
    assert not torch.isclose(alone, expected)
    # After a gap, and where streams begin, there is none.
    elsewhere = objective.loss(model, batches[2], LossContext(1, first.carried_state)).loss_sum
    torch.testing.assert_close(
        elsewhere, objective.loss(model, batches[2], LossContext(1)).loss_sum, rtol=0, atol=0
    )
    again = {**first.carried_state, "following": batches[0].indices}
    begun = objective.loss(model, batches[0], LossContext(1, again)).loss_sum
    torch.testing.assert_close(begun, first.loss_sum, rtol=0, atol=0)


class Narrow:
    """An objective for which memory runs out for several rows, from some token on."""

    def __init__(self, first: int) -> None:
        self.inner = SegmentObjective(0.0)
        self.first = first
        self.rows: list[int] = []

    def loss(self, model: Any, batch: SegmentBatch, context: LossContext) -> LossSum:
        self.rows.append(len(batch.ids))
        result = self.inner.loss(model, batch, context)
        if len(batch.ids) > 1 and batch.indices[0] >= self.first:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return result


def updater_of(model: CausalLM, objective: Any) -> Updater:
    optimizer = build_optimizer(model, OptimizerSettings())
    return Updater(model, objective, optimizer, Precision("fp32", "cpu"), seed=1)


def test_batches_that_are_split_hand_on_the_same_memory() -> None:
    """Memory runs out in the second batch of the second update, which then begins again."""
    batches = segments()
    narrow = Narrow(int(batches[3].indices[0]))
    whole, split = (
        updater_of(model_of(), objective) for objective in (SegmentObjective(0.0), narrow)
    )
    carried: list[Any] = [{}, {}]
    for step, first in enumerate((0, 2, 4), start=1):
        pair = batches[first : first + 2]  # an update of two batches
        results = [
            each.update(pair, step, 0.01, carried_state=before)
            for each, before in zip((whole, split), carried, strict=True)
        ]
        one, two = (result for result in results if result is not None)
        assert one.values["loss"] == pytest.approx(two.values["loss"], rel=1e-4)
        carried = [one.carried_state, two.carried_state]
        for name, tensor in one.carried_state.items():
            torch.testing.assert_close(two.carried_state[name], tensor, rtol=1e-3, atol=1e-3)
    assert narrow.rows[:4] == [3] * 4
    assert set(narrow.rows[4:]) <= {1, 2}


@torch.no_grad()
def test_validation_carries_the_memory_too() -> None:
    model, batches = model_of().eval(), segments()
    precision = Precision("fp32", "cpu")
    settings = ValidationSettings(metrics=(), choose_by="loss")
    found = Validator(batches, SegmentObjective(0.1), settings, precision=precision)(model)
    tokens = sum(batch.target_tokens for batch in batches)
    assert found.values["loss"] == pytest.approx(float(sum(by_hand(model, batches))) / tokens)


def test_each_batch_gets_what_all_parts_of_the_one_before_it_hand_on() -> None:
    hand_over = HandOver({"x": torch.tensor([9])})
    for _ in range(2):  # the second time is after memory ran out
        assert hand_over.before(0)["x"].tolist() == [9]
        hand_over.add({"x": torch.tensor([1])})
        assert hand_over.before(0)["x"].tolist() == [9]
        hand_over.add({"x": torch.tensor([2])})
        assert hand_over.before(1)["x"].tolist() == [1, 2]
        hand_over.add({"x": torch.tensor([3])})
        assert hand_over.last()["x"].tolist() == [3]
        hand_over.restart()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("texts")
    return {
        "train": [{"file": write_text(folder / "train.txt", 1, 24)}],
        "valid": [{"file": write_text(folder / "valid.txt", 2, 5)}],
        "max_length": 16,
        "batch_tokens": 64,
    }


def settings(files: dict[str, Any], **changes: Any) -> RunSettings:
    values: dict[str, Any] = {
        "task": "causal_lm",
        "model": {**SHAPE, "memory": 20, "dropout": 0.1},
        "tokenizer": {"kind": "characters"},
        "data": files,
        "schedule": {"warmup_steps": 5, "peak_learning_rate": 0.01},
        "optimizer": {"accumulate": 2},
        "validation": {"every_steps": 8},
        "checkpoint": {"every_steps": 3, "average_count": 2},
        "max_steps": 14,
        "precision": "fp32",
    }
    return resolve_settings(None, None, values | changes)


def outcome(run: Path) -> tuple[list[Any], dict[str, bytes]]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [(e["step"], e["loss"]) for e in events if "loss" in e and e.get("event") != "summary"]
    last = max((run / "checkpoints").glob("step-*"))
    return losses, {file.name: file.read_bytes() for file in last.glob("*.safetensors")}


def test_a_killed_and_resumed_run_is_the_same_to_the_bit(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    """Killed in the middle of an epoch, where memories are at work, and twice at one checkpoint."""
    run_training(tmp_path / "whole", settings(files), events=Events())
    resume = False
    for step in (2, 5, 5, 11):
        events = Events([CrashAt(step)])
        with pytest.raises(Crash):
            run_training(tmp_path / "parts", settings(files), resume=resume, events=events)
        resume = True
    run_training(tmp_path / "parts", settings(files), resume=True, events=Events())
    (losses, tensors), (expected, others) = (outcome(tmp_path / n) for n in ("parts", "whole"))
    assert losses == expected
    assert tensors == others
    store = CheckpointStore(tmp_path / "whole" / "checkpoints", settings(files).checkpoint)
    carried = {n for n in store.all()[-1].training() if n.startswith("carried/")}
    assert carried == {f"carried/{n}" for n in ("following", "segments", "layer.0", "layer.1")}


def test_a_trained_model_goes_on_with_its_memory(tmp_path: Path, files: dict[str, Any]) -> None:
    run_training(tmp_path / "first", settings(files, max_steps=2), events=Events())
    more = settings(files, init=str(tmp_path / "first"), model={}, max_steps=2)
    run_training(tmp_path / "more", more, events=Events())
    last = max((tmp_path / "more" / "checkpoints").glob("step-*"))
    assert b"carried/following" in (last / "training.safetensors").read_bytes()
    other = settings(files, init=str(tmp_path / "first"), model={"memory": 5})
    with pytest.raises(ConfigError, match=r"model\.memory is 5, and the model's 20"):
        run_training(tmp_path / "other", other, events=Events())


def test_what_was_not_finite_is_not_remembered(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, bool, bool]] = []

    class Bad(SegmentObjective):
        def loss(self, model: Any, batch: SegmentBatch, context: LossContext) -> LossSum:
            result = super().loss(model, batch, context)
            if not model.training:
                return result
            calls.append((context.step, batch.begins, bool(context.carried_state)))
            wrong = int(batch.indices[0]) == 48  # the fourth batch
            return replace(result, loss_sum=result.loss_sum * float("nan")) if wrong else result

    monkeypatch.setattr(language_model_task, "SegmentObjective", Bad)
    changes = {"optimizer": {"accumulate": 2}, "data": files | {"valid": []}, "max_steps": 3}
    run_training(tmp_path / "run", settings(files, **changes), events=Events())
    assert calls == [
        *((1, True, False), (1, False, True)),
        *((2, False, True), (2, False, True)),
        *((2, False, True), (2, False, True)),  # again, to find out where it went wrong
        *((3, False, False), (3, False, True)),
    ]


def test_a_memory_takes_room_of_a_batch(files: dict[str, Any]) -> None:
    budgets = []
    for memory in (16, 200):
        model = {"model": SHAPE | {"width": 64, "memory": memory}}
        wanted = settings(files | {"batch_tokens": "auto"}, **model)
        chosen = with_budget(wanted, torch.device("cpu"), Events(), available=60_000_000)
        budgets.append(chosen.data.budget)
    assert budgets[0] > 2 * budgets[1]
