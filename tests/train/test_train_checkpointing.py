"""Activation checkpointing: the same losses and gradients bit for bit, from less memory."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.cli.main import main
from heedful.data.batches import NO_TARGET, PairBatch, SegmentBatch, WindowBatch
from heedful.device import Precision
from heedful.engines.training import fused_sublayer, masked_loss, products
from heedful.engines.training.activation_checkpointing import (
    CheckpointedForward,
    apply_checkpointing,
    blocks_of,
)
from heedful.engines.training.compiled import CompiledEngine
from heedful.engines.training.fused_sublayer import LearnedKeyValues, ProjectedMemory
from heedful.errors import ConfigError
from heedful.events import Events
from heedful.kernels.library import has_gemm
from heedful.models.build import build_model
from heedful.models.new_tokens import NewTokens
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.nn.attention.cache import KeyValues
from heedful.nn.capture import Capture
from heedful.nn.moe import PENALTIES, penalty
from heedful.train import lora
from heedful.train.objective import CausalLMObjective, SegmentObjective, TranslationObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run import run_training
from heedful.train.run_settings import LoraSettings, ObjectiveSettings, OptimizerSettings
from heedful.train.update import Updater

MODES: Any = ("selective", "full")
VOCABULARY = 30
SHAPE: dict[str, Any] = {
    "width": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_heads": 2,
    "feedforward": 48,
    "dropout": 0.2,
}


def padded(count: int, longest: int) -> tuple[Tensor, Tensor]:
    ids, positions = torch.randint(4, VOCABULARY, (count, longest)), torch.arange(longest)
    rows = positions.expand(count, longest).clone()
    for number, row in enumerate(rows):
        row[longest - number % 5 :] = -1
    return ids, rows


def pairs(count: int = 9, longest: int = 14) -> PairBatch:
    source, target = padded(count, longest), padded(count, longest + 2)
    tokens = int((target[1] >= 0).sum())
    return PairBatch(*source, target[0], target[0], target[1], torch.arange(count), tokens)


def texts(count: int = 9, longest: int = 14) -> WindowBatch:
    ids, positions = padded(count, longest)
    targets = ids.masked_fill(positions < 0, NO_TARGET)
    segments = (positions >= longest // 2).long()
    tokens = int((targets != NO_TARGET).sum())
    return WindowBatch(ids, positions, segments, targets, torch.arange(count), tokens)


def segments() -> SegmentBatch:
    batch = texts()
    return SegmentBatch(
        batch.ids,
        batch.ids.new_tensor(range(14)).repeat(9, 1),
        torch.zeros_like(batch.ids),
        batch.ids,
        14 * torch.arange(9),
        batch.ids.numel(),
        begins=False,
    )


Learner = tuple[nn.Module, Any, Any]


def translator(**changes: Any) -> Learner:
    torch.manual_seed(0)
    model = build_model(translator_spec(TranslatorShape(**SHAPE | changes), VOCABULARY, VOCABULARY))
    return model, TranslationObjective(ObjectiveSettings()), pairs()


def without_attention(**changes: Any) -> Learner:
    torch.manual_seed(0)
    sizes = {name: SHAPE[name] for name in ("width", "encoder_layers", "decoder_layers", "dropout")}
    model = build_model(translator_spec(TranslatorShape(**sizes | changes), VOCABULARY, VOCABULARY))
    return model, TranslationObjective(ObjectiveSettings()), pairs()


def language_model(**changes: Any) -> Learner:
    torch.manual_seed(0)
    model = build_model(causal_lm_spec(TranslatorShape(**SHAPE | changes), VOCABULARY, 16))
    return model, CausalLMObjective(0.1), texts()


def with_memory(**changes: Any) -> Learner:
    relative = {"positions": "transformer_xl", "memory": 5}
    return language_model(**relative | changes)[0], SegmentObjective(0.0), segments()


def adapted() -> Learner:
    model, objective, batch = language_model()
    settings = LoraSettings(rank=2, targets=("query", "feedforward.up"))
    lora.adapt(
        model, settings, new_parts=(), new_tokens={"target": NewTokens(VOCABULARY, ())}, seed=1
    )
    return model, objective, batch


CASES: dict[str, Callable[[], Learner]] = {
    "as in the paper": translator,
    "dropout everywhere": lambda: translator(attention_dropout=0.1, feedforward_dropout=0.1),
    "biases that blocks share": lambda: translator(positions="t5", norm="rms"),
    "gated, grouped, rotary": lambda: language_model(
        positions="rotary", activation="swiglu", num_kv_heads=1, norm_placement="pre", norm="rms"
    ),
    "gelu, norms of queries and keys": lambda: translator(activation="gelu", norm_placement="pre"),
    "experts": lambda: translator(num_experts=3),
    "recurrent": lambda: without_attention(
        recurrent={"attention": "additive", "feeding": "context"}
    ),
    "convolutions": lambda: without_attention(convolution={}),
    "selective scans": lambda: language_model(mixer="mamba"),
    "memory": with_memory,
    "low-rank changes": adapted,
}


def updater(learner: Learner, precision: Precision) -> Updater:
    model, objective, _ = learner
    optimizer = build_optimizer(model, OptimizerSettings())
    return Updater(model, objective, optimizer, precision, seed=3)


def learned(learner: Learner, precision: Precision) -> tuple[list[Any], list[Tensor]]:
    """Losses and lengths of gradients of three updates, and the weights after them."""
    work = updater(learner, precision)
    results, carried = [], {}
    for step in range(1, 4):
        result = work.update([learner[2], learner[2]], step, 0.01, carried_state=carried)
        assert result is not None
        carried = dict(result.carried_state)
        results.append((result.values, result.grad_norm))
    return results, [parameter.detach() for parameter in learner[0].parameters()]


PRECISIONS = {
    "fp32": Precision("fp32", "cpu"),
    "bf16": Precision("bf16", "cpu"),
    "by PyTorch": Precision("fp32", "cpu", own=False),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES)
def test_the_same_updates(case: str, precision: str) -> None:
    expected, weights = learned(CASES[case](), PRECISIONS[precision])
    assert expected[0] != expected[1]
    for mode in MODES:
        learner = CASES[case]()
        names = [name for name, _ in learner[0].named_parameters()]
        apply_checkpointing(learner[0], mode)
        assert [name for name, _ in learner[0].named_parameters()] == names
        found, others = learned(learner, PRECISIONS[precision])
        assert found == expected, mode
        assert all(map(torch.equal, others, weights)), mode


class Watch(TorchDispatchMode):
    """Counts operations, and the bytes of tensors made under it that are still there.

    Args:
        model: whose parameters do not count.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: dict[int, int] = {}
        self.known = {each.untyped_storage()._cdata for each in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return result

    def held(self) -> int:
        gc.collect()
        return sum(self.bytes.values())

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.bytes and key not in self.known:
            self.bytes[key] = storage.nbytes()
            weakref.finalize(storage, self.bytes.pop, key)


def watched(learner: Learner, mode: Any, precision: Precision) -> tuple[int, Counter[str], int]:
    """Bytes that wait for the gradients, operations of an update, bytes that stay."""
    apply_checkpointing(learner[0], mode)
    work, watch = updater(learner, precision), Watch(learner[0])
    work.model.train()
    with work.engine.active(), watch:
        loss = work._loss(learner[2], 1, 0).loss_sum
        waiting = watch.held()
        loss.backward()
        del loss
        work.optimizer.zero_grad(set_to_none=True)
    return waiting, watch.calls, watch.held()


LARGE: dict[str, Any] = {"width": 64, "feedforward": 256, "dropout": 0.1, "num_heads": 4}


KEPT: dict[str, dict[str, Any]] = {
    "dropout of attention": {"attention_dropout": 0.1},
    "experts": {"num_experts": 2},
    "norms made of operations": {"positions": "rotary", "norm_placement": "pre", "norm": "rms"},
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_kept(case: str) -> None:
    """A full one keeps a small part; a selective one makes no product with a weight twice."""
    found = {}
    for mode in ("none", "none", *MODES):  # tables of positions stay from the first time on
        learner = (*translator(**LARGE | KEPT[case])[:2], pairs(12, 30))
        found[mode] = watched(learner, mode, PRECISIONS["by PyTorch"])
    waiting, calls, left = ({mode: each[i] for mode, each in found.items()} for i in range(3))
    assert waiting["full"] < 0.4 * waiting["none"]
    assert waiting["full"] < waiting["selective"] < 0.8 * waiting["none"]
    products = {mode: counted["mm"] + counted["addmm"] for mode, counted in calls.items()}
    assert products["none"] == products["selective"] < products["full"]
    if case == "dropout of attention":
        assert calls["selective"]["bmm"] == calls["full"]["bmm"] > calls["none"]["bmm"]
    assert left["none"] == left["selective"] == left["full"]


@pytest.mark.skipif(not has_gemm("float32", 64, fused=True), reason="no products in C here")
def test_products_in_c_are_computed_once_where_they_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole sub-layers among them, which are left as they are."""
    calls: Counter[str] = Counter()
    library = fused_sublayer.kernels()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            calls[name] += 1
            return getattr(library, name)

    monkeypatch.setattr(fused_sublayer, "kernels", Counting)
    monkeypatch.setattr(products, "_forward", counted(products._forward, calls, "a map"))
    waiting = {}
    wide = {"feedforward_dropout": 0.1, "width": 256, "encoder_layers": 1, "decoder_layers": 1}
    for changes, name in (({}, "heedful_sublayer"), (wide, "a map")):
        counts = {}
        for mode in ("none", *MODES):
            calls.clear()
            learner = (*translator(**LARGE | changes)[:2], pairs(12, 40))
            waiting[name, mode] = watched(learner, mode, PRECISIONS["fp32"])[0]
            counts[mode] = calls[name]
        assert counts["none"] == counts["selective"]
        assert 0 < counts["none"] < counts["full"]
    assert waiting["heedful_sublayer", "selective"] == pytest.approx(
        waiting["heedful_sublayer", "none"], rel=0.05
    )
    assert waiting["a map", "selective"] < 0.95 * waiting["a map", "none"]


def counted(function: Callable[..., Any], calls: Counter[str], name: str) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        calls[name] += 1
        return function(*inputs)

    return call


@pytest.mark.parametrize("mode", MODES)
def test_outside_training_nothing_is_forgotten(mode: Any) -> None:
    learner = translator()
    copied = copy.deepcopy(learner[0])
    apply_checkpointing(learner[0], mode)
    again = copy.deepcopy(learner[0]).eval()
    assert all(vars(block)["forward"].block is block for block in blocks_of(again))
    with Watch(again) as watch:
        inputs = [getattr(learner[2], name) for name in ("source", "source_positions")]
        targets = [getattr(learner[2], name) for name in ("target_input", "target_positions")]
        found = again(*inputs, *targets)
        before = watch.calls["addmm"]
        found.sum().backward()
    assert watch.calls["addmm"] == before
    assert torch.equal(found, copied.eval()(*inputs, *targets))


class Reader(nn.Module):
    """A block that asks for keys and values of a memory."""

    def forward(self, x: Tensor, state: LearnedKeyValues) -> Tensor:
        keys_values = state.plain
        return x * keys_values.keys.sum() * keys_values.values.sum()


@pytest.mark.parametrize("selective", [False, True])
def test_a_memory_is_split_for_each_pass(selective: bool) -> None:
    """What is split in a block is forgotten with it, and is not there the second time."""
    splits: list[KeyValues] = []

    def split(memory: ProjectedMemory) -> KeyValues:
        splits.append(KeyValues(*memory.projected.sin().unbind()))
        return splits[-1]

    state = LearnedKeyValues(ProjectedMemory(torch.randn(2, 3).requires_grad_(), None), split)
    block = Reader().train()
    run = CheckpointedForward(block, selective)
    run(torch.ones(3, requires_grad=True), state).sum().backward()
    assert len(splits) == 2
    assert "plain" not in vars(state)


def test_a_capture_keeps_what_the_first_pass_gave_it() -> None:
    """Not what the second one makes, which would keep the block's tensors with it."""
    model, _, batch = translator(num_experts=2)
    apply_checkpointing(model, "full")
    capture = Capture([PENALTIES])
    names = ("source", "source_positions", "target_input", "target_positions")
    states = model.train()(*(getattr(batch, name) for name in names), capture=capture)
    before = dict(capture.found)
    (states.sum() + penalty(capture)).backward()
    assert len(before) == 4
    assert all(capture.found[name] is value for name, value in before.items())


def test_a_model_without_blocks_is_refused() -> None:
    apply_checkpointing(nn.Linear(2, 2), "none")
    with pytest.raises(ConfigError, match=r"checkpointing = full: .*no blocks.*= none"):
        apply_checkpointing(nn.Linear(2, 2), "full")


@pytest.mark.parametrize("mode", MODES)
def test_a_diagnosis_finds_the_gradient_that_is_not_finite(mode: Any) -> None:
    """Modules are watched, which changes whose kernels compute them; the second time as well."""
    learner = translator(**LARGE)
    apply_checkpointing(learner[0], mode)
    work = updater(learner, PRECISIONS["fp32"])

    def spoiled(gradient: Tensor) -> Tensor:
        return gradient * torch.inf

    weight = blocks_of(learner[0])[0].feedforward.down.weight
    weight.register_hook(spoiled)
    found, _ = work.diagnose([learner[2]], 1, {})
    assert found.place == "the gradient of encoder.blocks.0.feedforward.down.weight"


@pytest.mark.parametrize(("mode", "computed"), [("selective", 4), ("full", 8)])
def test_compiled_blocks(mode: Any, computed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full one computes the graphs again; a selective one leaves it to the compiler."""
    calls: Counter[str] = Counter()

    def traced(graph: Any, inputs: Any, **options: Any) -> Any:
        return counted(graph.forward, calls, "graph")

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: traced)
    monkeypatch.setattr(masked_loss, "_compiled_work", lambda: masked_loss.chunk_work)
    results = {}
    for each in ("none", mode):
        learner = translator()
        apply_checkpointing(learner[0], each)
        own = [vars(block).get("forward") for block in blocks_of(learner[0])]
        work = updater(learner, PRECISIONS["fp32"])
        work.compiled = CompiledEngine(learner[0], Events(), asked_for=True)
        work.warm_up(learner[2], 0)
        calls.clear()
        result = work.update([learner[2]], 1, 0.01)
        assert result is not None
        results[each] = (result.values, result.grad_norm)
        assert work.compiled.graphs == 2
        assert [vars(block).get("forward") for block in blocks_of(learner[0])] == own
    assert results[mode] == results["none"]
    assert calls["graph"] == computed


def test_a_run_changes_it_on_the_way(tmp_path: Path, make_settings: Any) -> None:
    """Begun with none, resumed with full and selective: the losses of a run that had none."""
    losses = {}
    for name, modes in (("plain", ["none"] * 3), ("changing", ["none", "full", "selective"])):
        for number, mode in enumerate(modes):
            steps = 4 * (number + 1)
            settings = make_settings(checkpointing=mode, max_steps=steps)
            run_training(tmp_path / name, settings, resume=number > 0, events=Events())
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        losses[name] = [record["loss"] for record in records if "event" not in record]
    assert len(losses["plain"]) == 12
    assert losses["changing"] == losses["plain"]
    assert 'checkpointing = "selective"' in (tmp_path / "changing/config.toml").read_text()


def test_through_the_command_line(
    tmp_path: Path, corpus: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = corpus["train"][0]
    words = ["train", str(tmp_path / "run"), "--train", pair["source"], pair["target"]]
    words += ["--tokenizer.vocabulary-size", "60", "--model.width", "16", "--max-steps", "2"]
    words += ["--model.num-heads", "2", "--checkpointing"]
    assert main([*words, "half"]) == 2
    assert "full" in capsys.readouterr().err
    assert main([*words, "full"]) == 0
    assert "Blocks are computed again for their gradients (full)" in capsys.readouterr().err
