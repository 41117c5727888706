"""Updates as graphs, recorded on a processor: what stands in their memory, what is baked in.

`Tape` does what a CUDA graph does: it repeats the operations it saw, on the same memory and with
the same numbers, and cannot record a look at a number of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.data.batches import NO_TARGET, PairBatch, WindowBatch
from heedful.data.padding import pad
from heedful.device import Precision
from heedful.events import Events, Note, Recorder
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.batch_source import DataPosition, EpochBatches
from heedful.train.choose_updater import (
    has_one_shape,
    is_recordable,
    no_host_randomness,
    updater_of_run,
)
from heedful.train.graphed_update import MOST_SHAPES, GraphedUpdater, Replay
from heedful.train.objective import CausalLMObjective, Objective, TranslationObjective
from heedful.train.optimizers import DeviceStep, build_optimizer, export_moments
from heedful.train.parallel import shares
from heedful.train.parallel.shares import Share, UpdateParts
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings, RunSettings
from heedful.train.static_shapes import static_shapes
from heedful.train.update import Distribution, Updater

from .conftest import MakeSettings

FP32 = Precision("fp32", "cpu")
VOCABULARY = 12


class Language(nn.Module):
    """A language model of few operations, none of which looks at a number."""

    spec = SimpleNamespace(logits_softcap=None, width=6)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.inner = nn.Linear(6, 6)
        self.dropout = nn.Dropout(0.3)
        self.output = nn.Linear(6, VOCABULARY)

    @property
    def output_weight(self) -> Tensor:
        return self.output.weight

    @property
    def output_bias(self) -> Tensor:
        return self.output.bias

    def forward(self, ids: Tensor, *_: Any, **__: Any) -> Tensor:
        hidden: Tensor = self.dropout(torch.tanh(self.inner(self.embedding(ids))))
        return hidden


def windows(seed: int, rows: int = 3, length: int = 5) -> WindowBatch:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=draw)
    targets = ids.masked_fill(torch.rand(rows, length, generator=draw) < 0.3, NO_TARGET)
    places = torch.arange(length).expand(rows, length).contiguous()
    tokens = int((targets != NO_TARGET).sum())
    return WindowBatch(ids, places, ids * 0, targets, torch.arange(rows), tokens)


class Tape(TorchDispatchMode):
    """A recording of operations."""

    LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(look in func.__name__ for look in self.LOOKS):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        result = func(*args, **kwargs)
        inputs = {
            each.untyped_storage().data_ptr()
            for each in tree_leaves((args, kwargs))
            if isinstance(each, Tensor)
        }
        is_new = [
            isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in inputs
            for each in tree_leaves(result)
        ]
        if any(is_new) or func._schema.is_mutable:  # else it is a view
            self.calls.append((func, args, kwargs, result if any(is_new) else None))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, memory in self.calls:
            again = func(*args, **kwargs)
            if memory is not None:
                for old, new in zip(tree_leaves(memory), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor):
                        old.copy_(new)


class Tapes:
    """Records as `record_on_gpu` does: once it has run."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        compute()
        self.count += 1
        with Tape() as tape:
            result = compute()
        for each in tree_leaves([call[3] for call in tape.calls]):
            if isinstance(each, Tensor) and each.is_floating_point():
                each.detach().fill_(float("nan"))  # nothing was computed while recording

        def replay() -> Tensor:
            tape.replay()
            return result

        return replay


def repeat(compute: Callable[[], Tensor]) -> Replay:
    """Record nothing: do it again."""
    compute()
    return compute


def made(
    model: nn.Module, objective: Objective, kind: Any = Updater, clip: float = 0.3, **options: Any
) -> Any:
    optimizer = build_optimizer(model, OptimizerSettings(kind="adamw", weight_decay=0.1))
    return kind(model, objective, optimizer, FP32, seed=3, clip_norm=clip, **options)


def graphed(model: nn.Module, objective: Objective, record: Any, **options: Any) -> Any:
    return made(model, objective, GraphedUpdater, record=record, events=Events(), **options)


def without_graphs(work: Updater, batches: Any, step: int, rate: float) -> Any:
    """The result of an update by an ordinary updater that decides on the device."""
    if work.device_step is None:
        work.device_step = DeviceStep(work.optimizer, work.device)
    with static_shapes():
        return work.update(batches, step, rate)


def state(work: Updater) -> dict[str, Tensor]:
    weights = {name: p.detach().clone() for name, p in work.model.named_parameters()}
    return weights | {n: t.clone() for n, t in export_moments(work.optimizer, work.model).items()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_tapes_make_the_updates_that_are_made_without_them(clip: float) -> None:
    """Of one to three parts, with other rates, tokens, seeds and numbers each time."""
    tapes, objective = Tapes(), CausalLMObjective(0.1)
    work = graphed(Language().double(), objective, tapes, clip=clip)
    ordinary = made(Language().double(), objective, clip=clip)
    for step, parts in enumerate((1, 2, 1, 4, 3, 2), start=1):
        batches = [windows(10 * step + part) for part in range(parts)]
        expected = without_graphs(ordinary, batches, step, 0.1 / step)
        assert work.update(batches, step, 0.1 / step) == expected
        assert_equal(state(work), state(ordinary))
    assert tapes.count == 4  # alone, first, last and between


def test_a_tape_cannot_look() -> None:
    """The loss that chooses real positions asks how many there are."""
    work = made(Language().double(), CausalLMObjective(0.1))
    batch = windows(1)

    def compute() -> Tensor:
        loss: Tensor = work._loss(batch, 1, 0).loss_sum
        return loss * float(loss.detach())

    with pytest.raises(RuntimeError, match="not permitted"):
        Tapes()(compute)


def test_what_is_not_finite_changes_nothing() -> None:
    work = graphed(Language().double(), CausalLMObjective(0.1), Tapes())
    assert work.update([windows(1)], 1, 0.1).finite
    before = state(work)
    with torch.no_grad():
        work.model.inner.bias[0] = float("nan")
    bad = work.launch([windows(2)], 2, 0.1)
    with torch.no_grad():
        work.model.inner.bias[0] = before["inner.bias"][0]
    in_vain = work.launch([windows(3)], 3, 0.1)
    assert_equal(state(work), before)
    assert not bad.read().finite
    assert in_vain is not None
    assert work.update([windows(3)], 3, 0.1).finite
    assert not torch.equal(state(work)["inner.bias"], before["inner.bias"])


def test_results_can_be_read_after_others_were_launched() -> None:
    objective = CausalLMObjective(0.1)
    alone = made(Language().double(), objective)
    ahead = graphed(Language().double(), objective, Tapes())
    batches = [[windows(step + 9 * part) for part in range(4)] for step in range(4)]
    expected = [without_graphs(alone, each, step, 0.1) for step, each in enumerate(batches)]
    launched = [ahead.launch(each, step, 0.1) for step, each in enumerate(batches)]
    assert [each.read() for each in launched] == expected


def test_each_shape_has_its_graphs_from_its_second_time_on() -> None:
    tapes, objective = Tapes(), CausalLMObjective(0.1)
    work = graphed(Language().double(), objective, tapes)
    ordinary = made(Language().double(), objective)
    counts = []
    for step, rows in enumerate((3, 4, 4, 3, 5, 4, 5), start=1):
        batches = [windows(step, rows)]
        expected = without_graphs(ordinary, batches, step, 0.1)
        assert work.update(batches, step, 0.1) == expected
        counts.append(tapes.count)
    assert_equal(state(work), state(ordinary))
    assert counts == [1, 1, 2, 2, 2, 2, 3]
    mixed = [windows(8, 3), windows(9, 5)]
    expected = without_graphs(ordinary, mixed, 8, 0.1)
    assert work.update(mixed, 8, 0.1) == expected
    assert tapes.count == 5


def test_few_shapes_have_graphs() -> None:
    work = graphed(Language(), CausalLMObjective(0.1), repeat)
    for rows in [*range(1, MOST_SHAPES + 4)] * 2:
        work.update([windows(rows, rows)], rows, 0.1)
    assert sum(each is not None for each in work._shapes.values()) == MOST_SHAPES


def failing(error: Exception) -> Callable[[Callable[[], Tensor]], Replay]:
    def record(compute: Callable[[], Tensor]) -> Replay:
        compute()
        raise error

    return record


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("CUDA error: operation not permitted\nmore"), "operation not permitted"),
        (RuntimeError("CUDA out of memory."), "memory ran out"),
    ],
)
def test_where_recording_fails_all_updates_are_ordinary(error: Exception, why: str) -> None:
    recorder = Recorder()
    work = graphed(Language(), CausalLMObjective(0.1), failing(error), rounds=False)
    work.events = Events([recorder])
    ordinary = made(Language(), CausalLMObjective(0.1))
    ordinary.device_step = DeviceStep(ordinary.optimizer, ordinary.device)
    for step in (1, 2):
        batches = [windows(step), windows(step + 2)]
        assert work.update(batches, step, 0.1) == ordinary.update(batches, step, 0.1)
        assert_equal(state(work), state(ordinary))
    (note,) = recorder.texts(Note)
    assert note.startswith("Updates are not recorded as CUDA graphs")
    assert why in note
    assert "more" not in note


def test_a_shape_that_cannot_be_recorded_ends_recording() -> None:
    def record(compute: Callable[[], Tensor]) -> Replay:
        if len(calls := work._shapes) > 1:
            raise RuntimeError(f"{len(calls)} shapes")
        return repeat(compute)

    objective = CausalLMObjective(0.1)
    work, ordinary = graphed(Language(), objective, record), made(Language(), objective)
    for step, rows in enumerate((3, 4, 4, 3), start=1):
        batches = [windows(step, rows)]
        expected = without_graphs(ordinary, batches, step, 0.1)
        assert work.update(batches, step, 0.1) == expected
    assert_equal(state(work), state(ordinary))
    assert not work._shapes


class Narrow(CausalLMObjective):
    """Memory runs out for more rows than three."""

    def loss(self, model: Any, batch: Any, context: Any) -> Any:
        if len(batch.ids) > 3:
            raise RuntimeError("CUDA out of memory.")
        return super().loss(model, batch, context)


def test_batches_that_are_split_have_no_graphs() -> None:
    objective, recorder = Narrow(0.1), Recorder()
    work, ordinary = graphed(Language(), objective, repeat), made(Language(), objective)
    work.events = Events([recorder])
    for step, rows in enumerate((3, 4, 3), start=1):
        batches = [windows(step, rows)]
        expected = without_graphs(ordinary, batches, step, 0.1)
        found = work.update(batches, step, 0.1)
        assert found == expected
        assert bool(found.too_large) is (rows == 4)
    assert_equal(state(work), state(ordinary))
    assert not work._shapes
    assert "memory ran out" in recorder.texts(Note)[-1]


def test_restored_moments_are_those_that_go_on() -> None:
    tapes, objective = Tapes(), CausalLMObjective(0.1)
    work, ordinary = graphed(Language().double(), objective, tapes), None
    work.update([windows(1)], 1, 0.1)
    kept = state(work)
    for _ in range(2):
        work.update([windows(2)], 2, 0.1)
        found = state(work)
        if ordinary is not None:
            assert_equal(found, ordinary)
        ordinary = found
        moments = {name: t.clone() for name, t in kept.items() if "/" in name}
        work.load_moments(moments)
        with torch.no_grad():
            for name, parameter in work.model.named_parameters():
                parameter.copy_(kept[name])
        assert_equal(state(work), kept)


def test_a_cancelled_update_changes_nothing() -> None:
    work = graphed(Language().double(), CausalLMObjective(0.1), Tapes())
    work.update([windows(1), windows(2)], 1, 0.1)
    before, answers = state(work), iter([False, True])
    assert work.update([windows(3), windows(4)], 2, 0.1, lambda: next(answers)) is None
    assert_equal(state(work), before)


# A translator, whose own pass looks at numbers on processors: recorded by doing it again


def pairs(seed: int, count: int = 3) -> PairBatch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 7, (count,), generator=draw).tolist()
    rows = [torch.randint(4, 20, (n,), generator=draw).tolist() for n in lengths]
    ids, positions = pad(rows, 0)
    return PairBatch(ids, positions, ids, ids, positions, torch.arange(count), sum(lengths))


def translator(dropout: float) -> Translator:
    torch.manual_seed(0)
    shape = TranslatorShape(
        width=8, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=12, dropout=dropout
    )
    return Translator(translator_spec(shape, 20, 20))


def test_padded_batches_are_rounded_to_few_shapes_and_learn_the_same() -> None:
    objective = TranslationObjective(ObjectiveSettings())
    record = SimpleNamespace(count=0)

    def counted(compute: Callable[[], Tensor]) -> Replay:
        record.count += 1
        return repeat(compute)

    work = graphed(translator(0.0).double(), objective, counted, rounds=True, clip=0.0)
    plain = made(translator(0.0).double(), objective, clip=0.0)
    for step in range(1, 6):
        batches = [pairs(step, count=step), pairs(step + 50, count=step + 1)]
        found, expected = (each.update(batches, step, 0.01) for each in (work, plain))
        assert found.values == pytest.approx(expected.values, rel=1e-6)
        assert found.tokens == expected.tokens
    assert record.count == 2  # the first part, and the last
    assert len(work._shapes) == 1
    for (name, one), other in zip(
        work.model.named_parameters(), plain.model.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, msg=name)


def test_dropout_is_drawn_as_without_graphs() -> None:
    objective = TranslationObjective(ObjectiveSettings())
    work = graphed(translator(0.3), objective, repeat)
    ordinary = made(translator(0.3), objective)
    for step in range(1, 4):
        batches = [pairs(4, count=4), pairs(4, count=4)]
        expected = without_graphs(ordinary, batches, step, 0.01)
        assert work.update(batches, step, 0.01) == expected
    assert_equal(state(work), state(ordinary))


# Which runs


def test_random_numbers_of_the_processor_are_noticed() -> None:
    with no_host_randomness():
        torch.rand(1, generator=torch.Generator().manual_seed(1))
    with pytest.raises(RuntimeError, match="drawn on the processor"), no_host_randomness():
        torch.rand(1)


@pytest.mark.parametrize(
    ("changes", "objective", "expected"),
    [
        ({}, {}, True),
        ({"data": {"batch_tokens": 300_000}}, {}, False),
        ({"data": {"batch_tokens": 300_000, "packed_length": 512}}, {}, True),
        ({"checkpointing": "full"}, {}, False),
        ({}, {"r_drop": 1.0}, False),
    ],
)
def test_which_runs_are_recorded(
    make_settings: MakeSettings, changes: Any, objective: Any, expected: bool
) -> None:
    settings: RunSettings = make_settings(**changes)
    loss = TranslationObjective(ObjectiveSettings.parse(objective))
    distribution = Distribution(translator(0.0), loss)
    assert is_recordable(distribution, settings, FP32) is expected
    assert not is_recordable(distribution, settings, Precision("fp16", "cuda"))
    assert has_one_shape(settings) is (settings.data.packed_length is not None)


def test_a_processor_records_nothing(make_settings: MakeSettings) -> None:
    distribution = Distribution(translator(0.0), TranslationObjective(ObjectiveSettings()))
    work = updater_of_run(distribution, make_settings(), FP32, Events())
    assert type(work) is Updater
    assert work.device_step is None
    assert work.copies is None


def test_batches_for_a_gpu_are_pinned_by_the_thread_that_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "pin_batch", lambda batch: (batch, "pinned"))
    source = EpochBatches(lambda _: [windows(1), windows(2)], lambda item, _: item, str)
    for pin in (False, True):
        parts = UpdateParts(source, Share(), 2, None, pin=pin)
        taken, _ = parts.take(DataPosition(0, 0))
        parts.close()
        assert [isinstance(part.batch, tuple) for part in taken] == [pin, pin]
