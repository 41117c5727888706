"""Training's pass compiled: when, with which losses, and what a failure says."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.cli.main import main
from heedful.data.batches import NO_TARGET, PairBatch, WindowBatch
from heedful.device import Precision
from heedful.engines.training import masked_loss
from heedful.engines.training.compiled import MOST_FORMS, CompiledEngine
from heedful.engines.training.traced_parts import obstacle_in
from heedful.errors import ConfigError, RunError
from heedful.events import Event, Events, Metric, Note, Recorder, Warning
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.models.translator import Translator
from heedful.nn.capture import Capture
from heedful.nn.embeddings import TokenEmbedding
from heedful.nn.feedforward import FeedForward
from heedful.nn.mixer import Context
from heedful.nn.positions import Positions
from heedful.nn.spec import FeedForwardSpec
from heedful.train.batch_source import Batch
from heedful.train.compute_plan import FEWEST_UPDATES, choose_compiling, lacking_here
from heedful.train.objective import CausalLMObjective, Objective, TranslationObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run import run_training
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.update import Updater

VOCABULARY = 13
SHAPE = {
    "width": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "num_heads": 2,
    "feedforward": 12,
    "dropout": 0.0,
}

LONG = {"updates": FEWEST_UPDATES, "minutes": None}


@pytest.mark.parametrize(
    ("requested", "device", "facts", "on", "reason"),
    [
        ("off", "cuda", {}, False, "as asked for"),
        ("on", "cpu", {}, True, "as asked for"),
        ("auto", "cpu", {}, False, "gains nothing"),
        ("auto", "mps", {}, False, "has not been tried on mps"),
        ("auto", "cuda", {}, True, "a long run"),
        ("auto", "cuda", {"lacking": "there is no C compiler"}, False, "no C compiler"),
        ("auto", "cuda", {"untraceable": "experts are picked"}, False, "experts are picked"),
        ("auto", "cuda", {"updates": FEWEST_UPDATES - 1}, False, "1,999 updates are too few"),
        ("auto", "cuda", {"updates": None}, True, "a long run"),
        ("auto", "cuda", {"minutes": 5.0}, False, "5 minutes are too few"),
        ("on", "cuda", {"updates": 3, "minutes": 0.1}, True, "as asked for"),
    ],
)
def test_what_is_picked_and_why(
    requested: Any, device: str, facts: dict[str, Any], on: bool, reason: str
) -> None:
    found = choose_compiling(requested, device, **{"lacking": None, **LONG, **facts})
    assert found.on is on
    assert reason in found.describe()
    assert found.describe().startswith("compiled" if on else "not compiled")
    assert found.asked_for is (requested != "auto")


@pytest.mark.parametrize(
    "facts", [{"lacking": "there is no compiler"}, {"untraceable": "experts are picked"}]
)
def test_what_is_asked_for_and_cannot_be_is_an_error(facts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"compile = on: .*Use compile = off"):
        choose_compiling("on", "cuda", **{"lacking": None, **facts})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"num_experts": 3}, "expert"),
        ({"recurrent": {"attention": "dot", "readout": "tanh"}}, "recurrent"),
    ],
)
def test_models_of_which_no_graph_can_be_made(changes: dict[str, Any], why: str | None) -> None:
    sizes = {"width": 8, "encoder_layers": 1, "decoder_layers": 1}
    found = obstacle_in(Translator(translator_spec(TranslatorShape(**sizes | changes), 9, 9)))
    assert found is None if why is None else why in str(found)


def test_a_missing_compiler_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert (
        lacking_here(torch.device("cpu"))
        == "there is no C++ compiler that works (no-such-compiler)"
    )
    monkeypatch.setenv("CXX", sys.executable)
    assert lacking_here(torch.device("cpu")) is None


def lengths(count: int, longest: int) -> list[int]:
    return [longest - i % 3 for i in range(count)]


def padded(count: int, longest: int) -> tuple[Tensor, Tensor]:
    ids, positions = torch.randint(4, VOCABULARY, (count, longest)), torch.arange(longest)
    rows = positions.expand(count, longest).clone()
    for row, length in zip(rows, lengths(count, longest), strict=True):
        row[length:] = -1
    return ids, rows


def pairs(count: int, longest: int) -> PairBatch:
    source, target = padded(count, longest), padded(count, longest + 2)
    tokens = int((target[1] >= 0).sum())
    return PairBatch(*source, target[0], target[0], target[1], torch.arange(count), tokens)


def texts(count: int, longest: int) -> WindowBatch:
    ids, positions = padded(count, longest)
    targets = ids.masked_fill(positions < 0, NO_TARGET)
    segments = (positions >= longest // 2).long() if longest % 2 else torch.zeros_like(ids)
    tokens = int((targets != NO_TARGET).sum())
    return WindowBatch(ids, positions, segments, targets, torch.arange(count), tokens)


def translator(**changes: Any) -> Translator:
    torch.manual_seed(0)
    return Translator(translator_spec(TranslatorShape(**SHAPE | changes), VOCABULARY, VOCABULARY))


def language_model(**changes: Any) -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(causal_lm_spec(TranslatorShape(**SHAPE | changes), VOCABULARY, 32))


def updater(model: nn.Module, objective: Objective) -> Updater:
    optimizer = build_optimizer(model, OptimizerSettings())
    return Updater(model, objective, optimizer, Precision("fp32", "cpu"), seed=3)


def losses(work: Updater, batches: list[Batch], accumulate: int = 1) -> list[float]:
    found = []
    for first in range(0, len(batches), accumulate):
        result = work.update(batches[first : first + accumulate], 1 + first, 0.01)
        assert result is not None
        assert result.finite
        found.append(result.values["loss"])
    return found


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are made and run as PyTorch's operations, which takes no compiler."""
    monkeypatch.setattr(
        torch._dynamo, "lookup_backend", lambda name: lambda graph, inputs, **_: graph
    )
    monkeypatch.setattr(masked_loss, "_compiled_work", lambda: masked_loss.chunk_work)


SIZES = [(5, 5), (4, 7), (3, 18), (6, 6)]
"""Examples and length: first equal ones, then not; rows of a softmax narrow and wide."""


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("task", ["r-drop", "language model"])
def test_a_graph_serves_all_blocks_of_a_stack_and_any_sizes(task: str) -> None:
    """The language model has a second one for texts that share a row."""

    def fresh() -> Updater:
        if task == "r-drop":
            model = translator(encoder_layers=3, decoder_layers=2)
            return updater(model, TranslationObjective(ObjectiveSettings(r_drop=1.0)))
        return updater(language_model(decoder_layers=3), CausalLMObjective(0.0))

    make: Any = pairs if task == "r-drop" else texts
    batches: list[Any] = [make(*size) for size in SIZES]
    plain = losses(fresh(), batches, accumulate=2)
    work = fresh()
    compiled = work.compiled = CompiledEngine(work.model, Events(), asked_for=True)
    assert losses(work, batches, accumulate=2) == pytest.approx(plain, rel=1e-5)
    assert compiled.graphs == 2
    assert not any("forward" in vars(module) for module in work.model.modules())


class Small(nn.Module):
    """Little to compile: a network of tokens that do not see each other."""

    def __init__(self, dropout: float = 0.0, forms: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = TokenEmbedding(VOCABULARY, 8)
        self.feedforward = FeedForward(8, FeedForwardSpec(width=16, dropout=dropout))
        self.forms = forms
        self.output_bias = None
        self.spec = SimpleNamespace(logits_softcap=None)

    @property
    def output_weight(self) -> Tensor:
        return self.table.weight

    def forward(
        self, ids: Tensor, positions: Tensor, segments: Any = None, capture: Capture | None = None
    ) -> Tensor:
        x: Tensor = self.table(ids)
        context = Context(Positions.of_self(positions), capture=capture)
        x = x + self.feedforward(x, context.at("feedforward"))
        for length in range(self.forms):  # each of which only one graph can answer
            if ids.shape[1] == length:
                x = x * 1.0
        return x


def small(asked_for: bool = True, said: Recorder | None = None, **changes: Any) -> Updater:
    work = updater(Small(**changes), CausalLMObjective(0.0))
    events = Events([] if said is None else [said])
    work.compiled = CompiledEngine(work.model, events, asked_for=asked_for)
    return work


@pytest.mark.usefixtures("traced")
def test_dropout_depends_on_the_seed_alone() -> None:
    batches: list[Any] = [texts(*size) for size in SIZES]
    runs = []
    for number in range(2):
        work = small(dropout=0.3)
        torch.manual_seed(number)
        work.warm_up(batches[number], 0)
        assert all(parameter.grad is None for parameter in work.model.parameters())
        runs.append(losses(work, batches))
        assert work.compiled is not None
        assert work.compiled.graphs == 1
    assert runs[0] == runs[1]
    assert runs[0] != pytest.approx(losses(small(), batches), rel=1e-3)


@pytest.mark.usefixtures("traced")
def test_forms_are_bounded() -> None:
    """Past the bound training goes on as it is written, and the bound is not the process's."""
    before = torch._dynamo.config.recompile_limit
    work, plain = small(forms=64), updater(Small(), CausalLMObjective(0.0))
    batches: list[Any] = [texts(4, 4 + i) for i in range(MOST_FORMS + 4)]
    compiled = work.compiled
    assert losses(work, batches) == pytest.approx(losses(plain, batches), rel=1e-5)
    assert compiled is not None
    assert 1 < compiled.graphs <= MOST_FORMS
    assert torch._dynamo.config.recompile_limit == before


@pytest.mark.usefixtures("traced")
def test_a_pass_that_is_looked_into_is_not_compiled() -> None:
    work = small()
    assert work.compiled is not None
    capture = Capture(["feedforward.inner"])
    batch = texts(4, 5)
    with work.compiled.active():
        work.model(batch.ids, batch.positions, capture=capture)
    assert capture.found.keys() == {"feedforward.inner"}
    assert work.compiled.graphs == 0


def test_where_it_fails_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: Any, inputs: Any, **options: Any) -> Any:
        raise RuntimeError("No kernel\nfor this")

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: refuse)
    batches: list[Any] = [texts(*size) for size in SIZES[:2]]
    plain = losses(updater(Small(), CausalLMObjective(0.0)), batches)
    said = Recorder()
    work = small(asked_for=False, said=said)
    assert losses(work, batches) == plain
    assert work.compiled is None
    (warning,) = said.texts(Warning)
    assert re.fullmatch(
        r"Training's pass could not be compiled: .*No kernel\. Training goes on uncompiled", warning
    )
    with pytest.raises(RunError, match=r"compile = on: .*No kernel\. Use compile = off"):
        small().warm_up(batches[0], 0)


def test_other_errors_stay_what_they_are() -> None:
    work = small(asked_for=False)
    with pytest.raises(AttributeError, match="'object' object has no attribute"):
        work.warm_up(object(), 0)  # type: ignore[arg-type]
    assert work.compiled is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own parts
def test_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch's compiler: the same losses for any sizes, dropout that the seed decides."""
    if (lacking := lacking_here(torch.device("cpu"))) is not None:
        pytest.skip(lacking)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # Half of the time would go into finding out what vectors this processor has.
    monkeypatch.setattr(importlib.import_module("torch._inductor.config").cpp, "vec_isa_ok", False)
    batches: list[Any] = [texts(*size) for size in SIZES]
    plain = losses(updater(Small(), CausalLMObjective(0.0)), batches, accumulate=2)
    said = Recorder()
    work = small(said=said)
    work.warm_up(batches[0], 0)
    assert losses(work, batches, accumulate=2) == pytest.approx(plain, rel=1e-5)
    (metric,) = said.metrics("compile")
    assert metric.step == 0
    assert metric.values["graphs"] == 1
    assert float(metric.values["seconds"]) > 0
    assert said.texts(Note)[0].startswith("Compiled 1 graph in ")


class Stop:
    """A sink that ends a run without warning after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def handle(self, event: Event) -> None:
        if isinstance(event, Metric) and event.kind == "train" and event.step == self.step:
            raise InterruptedError

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("traced")
def test_a_run_says_what_it_does_and_goes_on_after_a_stop(
    tmp_path: Path, make_settings: Any
) -> None:
    changes = {"model": {"dropout": 0.0}, "max_steps": 8, "validation": {"every_steps": 100}}
    plain, compiled = Recorder(), Recorder()
    run_training(tmp_path / "off", make_settings(**changes), events=Events([plain]))
    assert any(t.startswith("Training's pass is not compiled (on proc") for t in plain.texts(Note))
    settings = make_settings(**changes, compile="on")
    with pytest.raises(InterruptedError):
        run_training(tmp_path / "on", settings, events=Events([Stop(6)]))
    run_training(tmp_path / "on", settings, resume=True, events=Events([compiled]))
    lines = [json.loads(line) for line in (tmp_path / "on/metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "event" not in line]
    for metric, line in zip(plain.metrics(), trained, strict=True):
        assert line["loss"] == pytest.approx(metric.values["loss"], rel=1e-4)
    found = [(x["step"], x["graphs"]) for x in lines if x.get("event") == "compile"]
    assert found == [(0, 2), (4, 2)]
    assert "Training's pass is compiled (as asked for)" in compiled.texts(Note)
    assert lines[-1]["event"] == "summary"
    assert lines[-1]["compiling"] == "compiled (as asked for)"
    with pytest.raises(ConfigError, match="compile"):
        run_training(tmp_path / "on", make_settings(**changes), resume=True, events=Events())


def test_a_broken_compiler_through_the_command_line(
    tmp_path: Path,
    corpus: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    pair = corpus["train"][0]
    words = ["--train", pair["source"], pair["target"], "--tokenizer.vocabulary-size", "60"]
    words += ["--model.width", "8", "--model.num-heads", "1", "--max-steps", "2"]
    assert main(["train", str(tmp_path / "run"), *words, "--compile", "on"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("compile = on: Training cannot be compiled: there is no C++ compiler")
    assert "(/bin/false). Use compile = off" in last
    assert not (tmp_path / "run/config.toml").exists()
    assert main(["train", str(tmp_path / "run"), *words, "--compile", "perhaps"]) == 2
    assert main(["train", str(tmp_path / "run"), *words, "--compile", "off"]) == 0
    assert 'compile = "off"' in (tmp_path / "run/config.toml").read_text()
