"""Training on packed pairs: the losses of padded batches, resumed runs, shares, and refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heedful.apps.shards.shard_writer import write_shards
from heedful.data.batches import PairBatch, make_batch, numbers_in
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.encoded_pairs import encode_corpora
from heedful.device import Precision
from heedful.engines.training import masked_loss
from heedful.engines.training.chunked_loss import ProcessorLosses
from heedful.engines.training.compiled import CompiledEngine
from heedful.errors import ConfigError, RunError
from heedful.events import Events, Note, Recorder
from heedful.models.translator import Translator
from heedful.train.batch_source import DataPosition
from heedful.train.objective import LossContext, TranslationObjective, mix_in_guesses
from heedful.train.optimizers import build_optimizer
from heedful.train.parallel.shares import Share
from heedful.train.run import run_training
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings, RunSettings
from heedful.train.splitting import BatchPart, OneTooLarge
from heedful.train.task import Task, prepare_task
from heedful.train.training_memory import with_budget
from heedful.train.update import Updater

from ..on_processor import on_processor
from .conftest import Crash, CrashAt, MakeSettings, noted_losses, write_reversed

PACKED = {"packed_length": 32, "max_length": 20, "batch_tokens": 128}
ROWS = 4


@pytest.fixture(scope="module")
def packed(
    tmp_path_factory: pytest.TempPathFactory, make_settings: MakeSettings
) -> tuple[RunSettings, Task]:
    settings = make_settings(data=PACKED)
    return settings, prepare_task(tmp_path_factory.mktemp("packed"), settings, None, Events())


def batches_of(task: Task, epoch: int = 0) -> list[PairBatch]:
    place, found = DataPosition(epoch, 0), []
    while place.epoch == epoch:
        found.append(task.source.batch(*place))
        place = task.source.after(place)
    return found  # type: ignore[return-value]


def model_of(task: Task) -> Translator:
    torch.manual_seed(0)
    model = task.new_model()
    assert isinstance(model, Translator)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.train()


def unpacked(settings: RunSettings, task: Task, batch: PairBatch) -> PairBatch:
    assert task.tokenizers is not None
    cache = Path(str(settings.data.cache))
    pairs = encode_corpora(settings.data.train, task.tokenizers, cache)
    return make_batch(pairs, numbers_in(batch.indices).numpy())


def learned(model: nn.Module, batches: list[PairBatch], **how: Any) -> tuple[float, Tensor]:
    """The loss of batches together, and the gradient of all weights."""
    model.zero_grad()
    total = torch.zeros(())
    for batch in batches:
        objective = TranslationObjective(ObjectiveSettings(**how))  # type: ignore[arg-type]
        with on_processor(model):
            result = objective.loss(model, batch, LossContext(1, losses=ProcessorLosses()))
            assert result.tokens == batch.target_tokens
            result.loss_sum.backward()
        total += result.loss_sum.detach()
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return float(total), torch.cat(grads)


@pytest.mark.parametrize("how", [{"label_smoothing": 0.1}, {"label_smoothing": 0.1, "r_drop": 1.0}])
def test_the_loss_is_that_of_the_same_pairs_padded(
    packed: tuple[RunSettings, Task], how: dict[str, float]
) -> None:
    settings, task = packed
    model = model_of(task)
    for batch in batches_of(task)[:2]:
        loss, gradient = learned(model, [batch], **how)
        expected, other = learned(model, [unpacked(settings, task, batch)], **how)
        assert loss == pytest.approx(expected, rel=1e-6)
        assert float((gradient - other).norm() / other.norm()) < 1e-6


def test_guesses_of_scheduled_sampling_stay_in_their_pair(
    packed: tuple[RunSettings, Task],
) -> None:
    settings, task = packed
    model, batch = model_of(task).eval(), batches_of(task)[0]
    alone = unpacked(settings, task, batch)
    mixed, expected = mix_in_guesses(model, batch, 1.0), mix_in_guesses(model, alone, 1.0)
    assert not mixed.equal(batch.target_input)
    assert mixed[batch.target_positions >= 0].equal(expected[alone.target_positions >= 0])


def test_an_epoch_shows_every_pair_once_in_batches_of_one_shape(
    packed: tuple[RunSettings, Task],
) -> None:
    _, task = packed
    orders = []
    for epoch in (0, 1):
        batches = batches_of(task, epoch)
        for batch in batches:
            for name in ("source", "target_input", "target_output", "source_segments"):
                assert getattr(batch, name).shape == (ROWS, 32)
        numbers = [numbers_in(batch.indices).tolist() for batch in batches]
        assert sorted(i for some in numbers for i in some) == list(range(200))
        assert task.source.count(epoch) == len(batches)
        orders.append(numbers)
    assert orders[0] != orders[1]


def test_parts_of_a_batch_add_up_though_one_has_no_pair(packed: tuple[RunSettings, Task]) -> None:
    _, task = packed
    model, batch = model_of(task), batches_of(task)[0]
    empty = torch.full_like(batch.source, -1)
    nothing = replace(
        batch,
        source_positions=empty,
        target_positions=empty,
        source_segments=empty,
        target_segments=empty,
        indices=torch.full_like(batch.indices, -1),
        target_tokens=0,
    )
    loss, gradient = learned(model, [nothing])
    assert loss == 0.0
    assert not bool(gradient.any())
    whole = learned(model, [batch])
    shares = [Share(index, 2, parts=2).cut(batch, 0) for index in (0, 1)]
    parts = [part.batch for share in shares for part in share]
    assert [part.source.shape for part in parts] == [(2, 32), (2, 32)]  # type: ignore[attr-defined]
    assert sum(part.target_tokens for part in parts) == batch.target_tokens
    loss, gradient = learned(model, parts)  # type: ignore[arg-type]
    assert loss == pytest.approx(whole[0], rel=1e-6)
    assert float((gradient - whole[1]).norm() / whole[1].norm()) < 1e-5


def updater_of(model: nn.Module, objective: Any = None) -> Updater:
    objective = objective or TranslationObjective(ObjectiveSettings())
    optimizer = build_optimizer(model, OptimizerSettings())
    return Updater(model, objective, optimizer, Precision("fp32", "cpu"), seed=3)


def test_what_is_not_finite_names_the_pairs_of_its_row(packed: tuple[RunSettings, Task]) -> None:
    _, task = packed
    model, batch = model_of(task), batches_of(task)[0]

    def poison(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        bad = torch.zeros_like(output)
        bad[2] = torch.inf
        return output + bad

    model.encoder.blocks[0].feedforward.register_forward_hook(poison)  # type: ignore[union-attr]
    found, described, values = updater_of(model).origin(
        [BatchPart(batch, (0,))], 1, {}, task.source.lines
    )
    assert found
    expected = task.source.lines(numbers_in(batch.indices[2]).tolist())
    assert len(expected) > 1
    assert values["lines"] == ", ".join(expected)
    assert expected[0] in described


def test_a_row_that_is_too_large_is_named(packed: tuple[RunSettings, Task]) -> None:
    _, task = packed
    batch = batches_of(task)[0]

    class Full(TranslationObjective):
        def loss(self, model: Any, batch: Any, context: LossContext) -> Any:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    updater = updater_of(model_of(task), Full(ObjectiveSettings()))
    with pytest.raises(OneTooLarge) as caught:
        updater.update([batch], 1, 0.01)
    assert caught.value.positions == 32
    assert caught.value.numbers.tolist() == numbers_in(batch.indices[0]).tolist()


def test_one_graph_for_each_stack_serves_all_batches(
    packed: tuple[RunSettings, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch._dynamo, "lookup_backend", lambda name: lambda graph, inputs, **_: graph
    )
    monkeypatch.setattr(masked_loss, "_compiled_work", lambda: masked_loss.chunk_work)
    _, task = packed
    batches = batches_of(task)
    losses = []
    for compiles in (False, True):
        work = updater_of(model_of(task))
        if compiles:
            work.compiled = CompiledEngine(work.model, Events(), asked_for=True, one_shape=True)
        results = [work.update(batches[step : step + 1], step, 0.01) for step in range(3)]
        losses.append([result.values["loss"] for result in results if result is not None])
    assert work.compiled is not None
    assert work.compiled.graphs == 2
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_killed_and_resumed_run_is_the_same_to_the_bit(
    tmp_path: Path, make_settings: MakeSettings
) -> None:
    changes = {"model": {"dropout": 0.1}, "optimizer": {"accumulate": 2}, "max_steps": 9}
    settings = make_settings(data=PACKED, **changes)
    said = Recorder()
    run_training(tmp_path / "whole", settings, events=Events([said]))
    (line,) = [note for note in said.texts(Note) if note.startswith("batches:")]
    assert "in 4 rows of 32 positions" in line
    for resume in (False, True):
        events = Events([CrashAt(6)])
        with pytest.raises(Crash):
            run_training(tmp_path / "parts", settings, resume=resume, events=events)
    run_training(tmp_path / "parts", settings, resume=True, events=Events())
    losses = dict(noted_losses(tmp_path / "parts"))
    assert losses == dict(noted_losses(tmp_path / "whole"))
    stored = [
        tmp_path / n / "checkpoints/step-00000009/model.safetensors" for n in ("whole", "parts")
    ]
    assert stored[0].read_bytes() == stored[1].read_bytes()
    other = make_settings(data=PACKED | {"packed_length": 40}, **changes)
    with pytest.raises(ConfigError, match=r"data\.packed_length \(32 before\)"):
        run_training(tmp_path / "parts", other, resume=True, events=Events())


def test_shards_are_packed_block_by_block(tmp_path: Path, make_settings: MakeSettings) -> None:
    spec = CorpusSpec(**write_reversed(tmp_path, "large", 150, 5))
    write_shards([spec], tmp_path / "shards", shard_examples=16)
    data = PACKED | {"block_mb": 0.002, "train": [{"shards": str(tmp_path / "shards")}]}
    said = Recorder()
    task = prepare_task(tmp_path / "run", make_settings(data=data), None, Events([said]))
    batches = batches_of(task)
    assert {batch.source.shape for batch in batches} == {(ROWS, 32)}
    shown = Counter(i for batch in batches for i in numbers_in(batch.indices).tolist())
    assert shown == Counter(range(150))
    first = batches[0]
    lines = task.source.lines(numbers_in(first.indices).tolist())
    assert all("shards" in line for line in lines)
    (note,) = [note for note in said.texts(Note) if "an epoch of about" in note]
    assert "rows of 32 positions" in note
    share = np.mean([float((b.source_positions < 0).float().mean()) for b in batches])
    assert 0 < share < 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"packed_length": 20}}, "Rows of 20 positions have no room .* = 20 tokens"),
        ({"data": {"batch_tokens": 31}}, "A batch of 31 positions has no room for a row of 32"),
        ({"objective": {"bpe_dropout": 0.1}}, r"objective\.bpe_dropout makes texts longer"),
        ({"soft_terms": "terms.tsv"}, "soft_terms makes texts longer"),
        ({"parallel": {"context": 2}}, "not divided along their length"),
        (
            {"task": "masked_lm", "validation": {"metrics": [], "choose_by": "loss"}},
            r"data\.packed_length is for translation; this task is masked_lm",
        ),
    ],
)
def test_what_does_not_go_with_packing_is_refused(
    tmp_path: Path, make_settings: MakeSettings, changes: dict[str, Any], message: str
) -> None:
    data = PACKED | changes.pop("data", {})
    with pytest.raises(ConfigError, match=message) as error:
        prepare_task(tmp_path, make_settings(data=data, **changes), None, Events())
    assert "packed_length" in str(error.value.where)
    assert error.value.remedy


def test_auto_takes_whole_rows(make_settings: MakeSettings) -> None:
    settings = make_settings(data=PACKED | {"batch_tokens": "auto", "packed_length": 100})
    cpu = torch.device("cpu")
    chosen = with_budget(settings, cpu, Events(), available=100_000_000)
    assert chosen.data.budget % 100 == 0
    assert chosen.data.batch_rows >= 1
    with pytest.raises(RunError, match=r"data\.packed_length = 100"):
        with_budget(settings, cpu, Events(), available=10_000)
