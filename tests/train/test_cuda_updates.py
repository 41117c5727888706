"""Updates on a GPU: graphs equal to ordinary updates, no wait for the device, bad ones left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.data.batches import NO_TARGET, PairBatch, WindowBatch
from heedful.data.padding import pad
from heedful.device import Precision
from heedful.events import Events, Note, Recorder
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.batch_source import BatchCopies, pin_batch
from heedful.train.choose_updater import UpdateRecorder, updater_of_run
from heedful.train.graphed_update import GraphedUpdater
from heedful.train.objective import CausalLMObjective, TranslationObjective
from heedful.train.optimizers import build_optimizer, export_moments
from heedful.train.run import run_training
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.static_shapes import static_shapes
from heedful.train.update import Distribution, Updater
from tests.gpu_waits import no_waiting

from .conftest import MakeSettings

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="needs a CUDA GPU: graphs, streams and a device that decides are only there",
    ),
]

VOCABULARY = 64


class Language(nn.Module):
    """A language model of few operations, none of which looks at a number."""

    spec = SimpleNamespace(logits_softcap=None, width=32)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.inner = nn.Linear(32, 32)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(32, VOCABULARY)
        self.cuda()

    @property
    def output_weight(self) -> Tensor:
        return self.output.weight

    @property
    def output_bias(self) -> Tensor:
        return self.output.bias

    def forward(self, ids: Tensor, *_: Any, **__: Any) -> Tensor:
        hidden: Tensor = self.dropout(torch.tanh(self.inner(self.embedding(ids))))
        return hidden


def windows(seed: int, rows: int = 8, length: int = 16) -> WindowBatch:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=draw)
    targets = ids.masked_fill(torch.rand(rows, length, generator=draw) < 0.3, NO_TARGET)
    places = torch.arange(length).expand(rows, length).contiguous()
    tokens = int((targets != NO_TARGET).sum())
    return WindowBatch(ids, places, ids * 0, targets, torch.arange(rows), tokens)


def pairs(seed: int, count: int = 8) -> PairBatch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 15, (count,), generator=draw).tolist()
    rows = [torch.randint(4, VOCABULARY, (n,), generator=draw).tolist() for n in lengths]
    ids, positions = pad(rows, 0)
    return PairBatch(ids, positions, ids, ids, positions, torch.arange(count), sum(lengths))


def translator(dropout: float = 0.1) -> Translator:
    torch.manual_seed(0)
    shape = TranslatorShape(
        width=32,
        encoder_layers=2,
        decoder_layers=2,
        num_heads=2,
        feedforward=64,
        dropout=dropout,
    )
    return Translator(translator_spec(shape, VOCABULARY, VOCABULARY)).cuda()


def updater(model: nn.Module, objective: Any, kind: Any = Updater, **options: Any) -> Any:
    optimizer = build_optimizer(model, OptimizerSettings(kind="adamw", weight_decay=0.1))
    precision = Precision("bf16" if options.pop("half", False) else "fp32", "cuda")
    work = kind(model, objective, optimizer, precision, seed=3, clip_norm=0.5, **options)
    assert work.device_step is not None
    return work


def graphed(model: nn.Module, objective: Any, **options: Any) -> tuple[Any, Recorder]:
    recorder = Recorder()
    events = Events([recorder])
    options |= {"record": UpdateRecorder(next(model.parameters()).device), "events": events}
    return updater(model, objective, GraphedUpdater, **options), recorder


def state(work: Updater) -> dict[str, Tensor]:
    weights = {name: p.detach().clone() for name, p in work.model.named_parameters()}
    return weights | {n: t.clone() for n, t in export_moments(work.optimizer, work.model).items()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_a_look_at_a_number_is_noticed() -> None:
    tensor = torch.ones(3, device="cuda")
    with no_waiting(), pytest.raises(RuntimeError):
        float(tensor.sum())


@pytest.mark.parametrize("half", [False, True])
def test_graphs_make_the_updates_that_are_made_without_them(half: bool) -> None:
    objective = CausalLMObjective(0.1)
    work, recorder = graphed(Language(), objective, half=half)
    ordinary = updater(Language(), objective, half=half)
    for step, parts in enumerate((1, 2, 1, 3, 3, 2), start=1):
        batches = [windows(10 * step + part) for part in range(parts)]
        with static_shapes():
            expected = ordinary.update(batches, step, 0.1 / step)
        assert work.update(batches, step, 0.1 / step) == expected
        assert_equal(state(work), state(ordinary))
    assert [note for note in recorder.texts(Note) if "run as CUDA graphs" in note]


def test_a_translators_updates_are_recorded() -> None:
    """Fails as long as a translator's own pass looks at numbers on the device."""
    objective = TranslationObjective(ObjectiveSettings())
    work, recorder = graphed(translator(), objective, rounds=True)
    plain = updater(translator(), objective)
    for step in range(1, 6):
        batches = [pairs(step)]
        found, expected = (each.update(batches, step, 0.01) for each in (work, plain))
        assert found.finite
        assert found.tokens == expected.tokens
        if step == 1:  # from then on dropout draws for other shapes
            assert found.values["loss"] == pytest.approx(expected.values["loss"], rel=0.1)
    assert "run as CUDA graphs" in recorder.texts(Note)[0], recorder.texts(Note)


@pytest.mark.parametrize("with_graphs", [False, True])
def test_nobody_waits_for_the_device(with_graphs: bool) -> None:
    """Five updates of two parts are launched, and each is read once the next one is."""
    objective = CausalLMObjective(0.1)
    work = graphed(Language(), objective)[0] if with_graphs else updater(Language(), objective)
    for step in (1, 2):
        work.update([windows(step), windows(step + 9)], step, 0.1)
    batches = [[pin_batch(windows(step)), pin_batch(windows(step + 9))] for step in range(3, 8)]
    torch.cuda.synchronize()
    ahead, results = None, []
    with no_waiting():
        for step, parts in enumerate(batches, start=3):
            launched = work.launch(parts, step, 0.1)
            if ahead is not None:
                results.append(ahead.read())
            ahead = launched
    assert len(results) == 4
    assert all(result.finite for result in results)


def test_a_translators_ordinary_updates_do_not_wait() -> None:
    """Fails as long as a translator's own pass looks at numbers on the device."""
    work = updater(translator(), TranslationObjective(ObjectiveSettings()))
    for step in (1, 2):
        work.update([pairs(step)], step, 0.01)
    batches = [pin_batch(pairs(step)) for step in range(3, 8)]
    with no_waiting():
        for step, batch in enumerate(batches, start=3):
            work.launch([batch], step, 0.01)


@pytest.mark.parametrize("with_graphs", [False, True])
def test_an_update_that_is_not_finite_changes_nothing(with_graphs: bool) -> None:
    objective = CausalLMObjective(0.1)
    work = graphed(Language(), objective)[0] if with_graphs else updater(Language(), objective)
    work.update([windows(1)], 1, 0.1)
    before = state(work)
    with torch.no_grad():
        work.model.inner.bias[0] = float("nan")
    bad = work.launch([windows(2)], 2, 0.1)
    with torch.no_grad():
        work.model.inner.bias[0] = before["inner.bias"][0]
    in_vain = work.launch([windows(3)], 3, 0.1)
    assert in_vain is not None
    assert not bad.read().finite
    assert_equal(state(work), before)
    assert all(float(t) == 1 for name, t in state(work).items() if name.startswith("step/"))
    assert work.update([windows(3)], 3, 0.1).finite
    assert all(float(t) == 2 for name, t in state(work).items() if name.startswith("step/"))


def test_memory_of_the_graphs_serves_after_other_shapes_came() -> None:
    objective = CausalLMObjective(0.1)
    work, _ = graphed(Language(), objective)
    ordinary = updater(Language(), objective)
    for step, rows in enumerate((8, 4, 4, 8, 6, 4, 6, 8), start=1):
        batches = [windows(step, rows), windows(step + 20, 8)]
        with static_shapes():
            expected = ordinary.update(batches, step, 0.1)
        assert work.update(batches, step, 0.1) == expected
    assert_equal(state(work), state(ordinary))


def test_a_recording_that_fails_leaves_the_device_usable() -> None:
    class Looks(CausalLMObjective):
        def loss(self, model: Any, batch: Any, context: Any) -> Any:
            assert bool((batch.ids >= 0).all())
            return super().loss(model, batch, context)

    work, recorder = graphed(Language(), Looks(0.1))
    ordinary = updater(Language(), Looks(0.1))
    stream = torch.cuda.current_stream()
    for step in (1, 2):
        batches = [windows(step), windows(step + 9)]
        assert work.update(batches, step, 0.1) == ordinary.update(batches, step, 0.1)
    assert torch.cuda.current_stream() == stream
    assert "not recorded" in recorder.texts(Note)[0]
    assert_equal(state(work), state(ordinary))


def test_batches_are_copied_as_they_are() -> None:
    copies = BatchCopies(torch.device("cuda", torch.cuda.current_device()))
    for seed in range(20):
        batch = pin_batch(pairs(seed))
        assert batch.source.is_pinned()
        moved: Any = copies.copy(batch)
        assert moved.source.is_cuda
        assert not moved.indices.is_cuda
        assert torch.equal(moved.target_positions.cpu(), batch.target_positions)


def test_a_run_on_a_gpu_is_made_by_graphs_where_it_can(make_settings: MakeSettings) -> None:
    settings = make_settings(data={"packed_length": 32})
    distribution = Distribution(translator(), TranslationObjective(ObjectiveSettings()))
    work = updater_of_run(distribution, settings, Precision("fp32", "cuda"), Events())
    assert isinstance(work, GraphedUpdater)
    assert not work.rounds
    work = updater_of_run(distribution, settings, Precision("fp16", "cuda"), Events())
    assert type(work) is Updater
    assert work.device_step is None


@pytest.mark.parametrize("packed", [False, True])
def test_a_whole_run_learns(tmp_path: Path, make_settings: MakeSettings, packed: bool) -> None:
    data = {"packed_length": 32, "max_length": 20} if packed else {}
    changes = {"data": data, "optimizer": {"accumulate": 2, "clip_norm": 1.0}, "max_steps": 60}
    settings = make_settings(device="cuda", checkpoint={"ema_decay": 0.9}, **changes)
    recorder = Recorder()
    summary = run_training(tmp_path / "run", settings, events=Events([recorder]))
    losses = [m.values["loss"] for m in recorder.metrics() if m.kind == "train"]
    assert summary.steps == len(losses) == 60
    assert float(losses[-1]) < 0.8 * float(losses[0])
