"""A batch that memory runs out for is split; what is learned is the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.config import dump_toml, read_toml
from heedful.data.batches import (
    FramedBatch,
    PairBatch,
    RowBatch,
    WindowBatch,
    positions_in,
)
from heedful.data.encoded_images import ImageBatch
from heedful.device import Precision, resolve_device
from heedful.errors import ConfigError, RunError
from heedful.events import Events, Note, Recorder, Warning
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.objective import LossContext, LossSum, TranslationObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run import run_training
from heedful.train.run_config import with_choices_of_run
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.splitting import OneTooLarge
from heedful.train.training_memory import with_budget
from heedful.train.update import Updater, UpdateResult

VOCABULARY = 11
SAID = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"


TASK = "heedful.train.tasks.translation_task"


class Narrow:
    """An objective for which memory runs out in the middle of a backward pass."""

    def __init__(self, most: int, said: str = SAID) -> None:
        self.inner = TranslationObjective(ObjectiveSettings())
        self.most = most
        self.said = said
        self.sizes: list[int] = []

    def loss(self, model: Any, batch: PairBatch, context: LossContext) -> LossSum:
        self.sizes.append(positions_in(batch))
        result = self.inner.loss(model, batch, context)
        if model.training and self.sizes[-1] > self.most:
            result.loss_sum.backward()  # gradients that must not stay
            raise RuntimeError(self.said)
        return result


def model_of(dropout: float = 0.0) -> Translator:
    shape = TranslatorShape(
        width=8,
        encoder_layers=1,
        decoder_layers=1,
        num_heads=2,
        feedforward=12,
        dropout=dropout,
    )
    torch.manual_seed(0)
    return Translator(translator_spec(shape, VOCABULARY, VOCABULARY)).double()


def pairs(count: int, length: int = 4, seed: int = 0) -> PairBatch:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, length + 1, count)
    lengths[0] = length
    places = np.arange(length)[None].repeat(count, 0)
    positions = torch.from_numpy(np.where(places < lengths[:, None], places, -1))
    tokens = torch.from_numpy(draw.integers(4, VOCABULARY, (count, length)))
    numbers = torch.arange(count)
    return PairBatch(tokens, positions, tokens, tokens, positions, numbers, int(lengths.sum()))


def learn(
    most: int, batches: list[PairBatch], dropout: float = 0.0, step: int = 1
) -> tuple[UpdateResult, dict[str, Tensor], Narrow]:
    model, objective = model_of(dropout), Narrow(most)
    optimizer = build_optimizer(model, OptimizerSettings())
    updater = Updater(model, objective, optimizer, Precision("fp32", "cpu"), seed=3)
    result = updater.update(batches, step, 0.01)
    assert result is not None
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return result, gradients, objective


@pytest.mark.parametrize("most", [28, 10])
def test_parts_teach_what_the_batch_does(most: int) -> None:
    batches = [pairs(3, 3, 1), pairs(10), pairs(2, 5, 2)]
    whole, expected, _ = learn(1000, batches)
    split, found, objective = learn(most, batches)
    assert whole.too_large == ()
    assert (40, 10) in split.too_large
    assert max(objective.sizes[-3:]) <= most
    assert split.tokens == whole.tokens
    assert split.values == pytest.approx(whole.values, rel=1e-9)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-7, atol=1e-11, msg=name)


def test_what_was_too_large_is_not_tried_again() -> None:
    model, objective = model_of(), Narrow(24)
    optimizer = build_optimizer(model, OptimizerSettings())
    updater = Updater(model, objective, optimizer, Precision("fp32", "cpu"), seed=3)
    first = updater.update([pairs(10)], 1, 0.01)
    objective.sizes.clear()
    second = updater.update([pairs(11)], 2, 0.01)
    assert first is not None
    assert second is not None
    assert first.too_large == ((40, 10),)
    assert second.too_large == ()
    assert objective.sizes == [20, 24]


def test_dropout_depends_on_the_place_and_the_part_only() -> None:
    batches = [pairs(4, 3, 1), pairs(10)]
    _, first, _ = learn(24, batches, dropout=0.5)
    torch.rand(17)
    _, again, _ = learn(24, batches, dropout=0.5)
    assert all(torch.equal(first[name], again[name]) for name in first)
    # a batch that was not split keeps the randomness it has when nothing is split
    model = model_of(0.5)
    updater = Updater(
        model,
        TranslationObjective(ObjectiveSettings()),
        build_optimizer(model, OptimizerSettings()),
        Precision("fp32", "cpu"),
        seed=3,
    )
    with updater.engine.active():
        losses = [updater._loss(batches[0], 1, 0).loss_sum.item() for _ in range(2)]
        parts = [
            updater._loss(batches[1].part(0, 5), 1, *place).loss_sum.item()
            for place in ((1, 0, 5), (1, 5, 10), (1, 0, 5))
        ]
    assert losses[0] == losses[1]
    assert parts[0] == parts[2] != parts[1]


def test_other_errors_pass() -> None:
    model = model_of()
    updater = Updater(
        model,
        Narrow(1, "shapes cannot be multiplied"),
        build_optimizer(model, OptimizerSettings()),
        Precision("fp32", "cpu"),
        seed=3,
    )
    with pytest.raises(RuntimeError, match="shapes"):
        updater.update([pairs(4)], 1, 0.01)


def test_one_example_that_is_too_large_is_named_and_nothing_is_left() -> None:
    model = model_of()
    updater = Updater(
        model,
        Narrow(3),
        build_optimizer(model, OptimizerSettings()),
        Precision("fp32", "cpu"),
        seed=3,
    )
    with pytest.raises(OneTooLarge) as caught:
        updater.update([pairs(5)], 1, 0.01)
    assert caught.value.positions == 4
    assert caught.value.numbers.tolist() == [0]
    assert all(p.grad is None for p in model.parameters())


def window(count: int) -> WindowBatch:
    targets = torch.arange(count * 3).view(count, 3) - 1
    return WindowBatch(targets, targets, targets, targets, torch.arange(count), count * 3 - 1)


def row(count: int) -> RowBatch:
    targets = torch.arange(count * 3).view(count, 3) - 1
    return RowBatch(targets, targets, targets, torch.arange(count), count * 3 - 1)


def images(count: int) -> ImageBatch:
    return ImageBatch(torch.randn(count, 1, 2, 2), torch.arange(count), torch.arange(count))


@pytest.mark.parametrize("make", [pairs, window, row, images])
def test_parts_of_every_batch(make: Callable[[int], Any]) -> None:
    batch = make(7)
    parts = [batch.part(0, 3), batch.part(3, 7)]
    assert sum(part.target_tokens for part in parts) == batch.target_tokens
    for name, value in vars(batch).items():
        if isinstance(value, Tensor):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), value), name


def test_parts_of_rows_with_targets_of_their_own() -> None:
    rows = torch.tensor([0, 2, 2, 3])
    places, targets = torch.tensor([1, 0, 2, 1]), torch.tensor([5, 6, 7, 8])
    ids = torch.arange(12).view(4, 3)
    batch = FramedBatch(ids, ids, ids[:, 0], rows, places, targets, torch.arange(4))
    part = batch.part(2, 4)
    assert part.rows.tolist() == [0, 0, 1]
    assert part.places.tolist() == [0, 2, 1]
    assert part.targets.tolist() == [6, 7, 8]
    assert torch.equal(part.ids, ids[2:])
    assert batch.part(0, 2).target_tokens + part.target_tokens == batch.target_tokens


def test_a_run_says_so_once_and_goes_on(
    make_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = Narrow(70)
    monkeypatch.setattr(
        "heedful.train.tasks.translation_task.TranslationObjective", lambda _: narrow
    )
    told = Recorder()
    summary = run_training(tmp_path / "run", make_settings(max_steps=6), events=Events([told]))
    assert summary.finished
    assert summary.steps == 6
    warnings = [text for text in told.texts(Warning) if "memory" in text]
    assert 1 <= len(warnings) <= 2
    assert "at step 1 " in warnings[0]
    assert "data.batch_tokens (120)" in warnings[0]
    assert told.metrics("out_of_memory")[0].step == 1
    assert len(told.metrics()) == 6


def test_a_run_without_memory_for_a_sentence_names_it(
    make_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "heedful.train.tasks.translation_task.TranslationObjective", lambda _: Narrow(0)
    )
    with pytest.raises(RunError, match=r"one example of \d+ positions \(.*train.source:\d+") as e:
        run_training(tmp_path / "run", make_settings(), events=Events())
    assert "data.max_length" in str(e.value)


LIMITED = """
import resource, sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from test_batch_splitting import *
import psutil
def step(limit):
    shape = TranslatorShape(width=32, encoder_layers=2, decoder_layers=2, num_heads=4,
                            feedforward=64, dropout=0.0)
    torch.manual_seed(0)
    model = Translator(translator_spec(shape, VOCABULARY, VOCABULARY))
    updater = Updater(model, TranslationObjective(ObjectiveSettings()),
                      build_optimizer(model, OptimizerSettings()), Precision("fp32", "cpu"), seed=3)
    updater.update([pairs(2)], 1, 0.0)
    if limit:
        most = psutil.Process().memory_info().vms + limit * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    result = updater.update([pairs(1000, 16)], 2, 0.0)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return result, [p.grad.clone() for p in model.parameters()]
split, found = step(40)
whole, expected = step(0)
assert split.too_large and not whole.too_large, (split, whole)
for a, b in zip(found, expected):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
print(len(split.too_large))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits on addresses are Linux's")
def test_a_real_limit() -> None:
    command = [sys.executable, "-c", LIMITED, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1


def auto(make_settings: Any, **changes: Any) -> Any:
    return make_settings(data={"batch_tokens": "auto", "max_length": 20}, **changes)


def test_more_memory_takes_larger_batches_up_to_the_papers(make_settings: Any) -> None:
    told = Recorder()
    cpu = resolve_device("cpu")
    settings = auto(make_settings, model={"width": 64, "feedforward": 256})
    budgets = [
        with_budget(settings, cpu, Events([told]), available=mib * 2**20).data.budget
        for mib in (100, 120, 200, 10**5)
    ]
    assert budgets == sorted(budgets)
    assert len(set(budgets)) >= 3
    assert budgets[-1] == 25_000 // 64 * 64
    assert all(budget % 64 == 0 for budget in budgets)
    notes = told.texts(Note)
    assert len(notes) == 4
    assert f"{budgets[0]:,} positions" in notes[0]
    assert "the most that auto takes" in notes[-1]
    with pytest.raises(RunError, match="max_length = 20"):
        with_budget(settings, cpu, Events(), available=2**20)


def test_images_need_a_number(make_settings: Any) -> None:
    settings = auto(make_settings).model_copy(update={"task": "images"})
    with pytest.raises(ConfigError, match="images"):
        with_budget(settings, resolve_device("cpu"), Events(), available=2**30)


def test_the_picked_number_is_the_runs_for_good(
    make_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, free = tmp_path / "run", [2**30]
    monkeypatch.setattr("heedful.train.training_memory.available_bytes", lambda _: free[0])
    run_training(run, auto(make_settings, max_steps=1), events=Events())
    picked = read_toml(run / "config.toml")["data"]["batch_tokens"]
    assert picked == 25_000 // 64 * 64
    free[0] = 2**29 + 2**26
    resumed = auto(make_settings, max_steps=2)
    assert with_choices_of_run(run, resumed).data.budget == picked
    summary = run_training(run, resumed, resume=True, events=Events())
    assert summary.steps == 2
    assert read_toml(run / "config.toml")["data"]["batch_tokens"] == picked


def test_parts_of_batches_are_the_runs_for_good(make_settings: Any, tmp_path: Path) -> None:
    """Two processes that start anew are told nothing of what they had before."""
    settings = auto(make_settings).with_batch_tokens(640)
    (tmp_path / "config.toml").write_text(dump_toml(settings.with_parts(2).plain()))
    assert with_choices_of_run(tmp_path, settings).parallel.parts == 2
    assert with_choices_of_run(tmp_path, settings.with_parts(3)).parallel.parts == 3
