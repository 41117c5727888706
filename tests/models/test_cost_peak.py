"""The foreseen peak of a training step is what its tensors really come to."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.data.batches import PairBatch, RowBatch, WindowBatch
from heedful.device import Precision
from heedful.engines import cost_memory
from heedful.engines.training.activation_checkpointing import apply_checkpointing
from heedful.models import cost
from heedful.models.build import build_model
from heedful.models.encoder_spec import MaskedLMHeadSpec
from heedful.models.model_spec import ModelSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec, translator_spec
from heedful.nn.work import BFLOAT16, FLOAT32
from heedful.train.objective import CausalLMObjective, MaskedObjective, TranslationObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.update import Updater

SHAPE = TranslatorShape(
    width=64, encoder_layers=3, decoder_layers=3, num_heads=4, feedforward=192, dropout=0.1
)
VOCABULARY, ROWS, LENGTH = 400, 24, 24
NUMBER_BYTES = {"fp32": FLOAT32, "bf16": BFLOAT16}


class Tracker(TorchDispatchMode):
    """The most bytes of tensors made under it that were alive at once.

    Args:
        model: whose parameters do not count.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.known = {each.untyped_storage()._cdata for each in model.parameters()}
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.see(tensor.untyped_storage())
        return result

    def see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes()
        self.known.add(key)
        self.now += size
        self.most = max(self.now, self.most)

        def gone() -> None:
            self.known.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def ids() -> tuple[Tensor, Tensor]:
    drawn = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    return drawn, torch.arange(LENGTH).repeat(ROWS, 1)


def translation() -> tuple[ModelSpec, Any, Any]:
    tokens, positions = ids()
    numbers = torch.arange(ROWS)
    batch = PairBatch(tokens, positions, tokens, tokens, positions, numbers, ROWS * LENGTH)
    return (
        translator_spec(SHAPE, VOCABULARY, VOCABULARY),
        TranslationObjective(ObjectiveSettings()),
        batch,
    )


def language() -> tuple[ModelSpec, Any, Any]:
    tokens, positions = ids()
    shape = SHAPE.model_copy(update={"norm_placement": "pre", "activation": "gelu"})
    nothing = torch.zeros_like(tokens)
    batch = WindowBatch(tokens, positions, nothing, tokens, torch.arange(ROWS), ROWS * LENGTH)
    return causal_lm_spec(shape, VOCABULARY, LENGTH), CausalLMObjective(0.0), batch


def masked() -> tuple[ModelSpec, Any, Any]:
    tokens, positions = ids()
    shape = SHAPE.model_copy(update={"norm_placement": "pre", "activation": "gelu"})
    spec = encoder_spec(shape, VOCABULARY, LENGTH, (MaskedLMHeadSpec(),))
    batch = RowBatch(tokens, positions, tokens, torch.arange(ROWS), ROWS * LENGTH)
    return spec, MaskedObjective(0.0), batch


def peaks(task: Any, precision: Any, checkpointing: Any = "none") -> tuple[int, int]:
    """Foreseen and measured bytes of the second step; moments are made in the first.

    Ids and positions are not counted.
    """
    spec, objective, batch = task()
    torch.manual_seed(0)
    model = build_model(spec)
    own = sum(p.untyped_storage().nbytes() for p in {id(p): p for p in model.parameters()}.values())
    apply_checkpointing(model, checkpointing)
    optimizer = build_optimizer(model, OptimizerSettings())
    chosen = Precision(precision, "cpu")
    updater = Updater(model, objective, optimizer, chosen, seed=1)
    tracker = Tracker(model)
    with tracker:
        for step in (1, 2):
            assert updater.update([batch], step, 1e-3) is not None
    foreseen = cost_memory.training_peak(
        spec,
        ROWS * LENGTH,
        length=LENGTH,
        parameters=cost.count_parameters(spec),
        number_bytes=NUMBER_BYTES[precision],
        checkpointing=checkpointing,
    )
    return foreseen.model + foreseen.batch, own + tracker.most


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("task", [translation, language, masked])
def test_the_peak_of_a_step_is_foreseen(task: Any, precision: Any) -> None:
    foreseen, measured = peaks(task, precision)
    assert foreseen == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_peak_of_blocks_computed_again_is_foreseen(
    dropout: float, checkpointing: Any, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a deep model, of which there would otherwise be little to forget.

    With dropout inside, no sub-layer is one call in C.
    """
    inside = {"attention_dropout": dropout, "feedforward_dropout": dropout}
    deep = SHAPE.model_copy(update={"decoder_layers": 9, **inside})
    monkeypatch.setattr(sys.modules[__name__], "SHAPE", deep)
    foreseen, measured = peaks(language, precision, checkpointing)
    assert foreseen == pytest.approx(measured, rel=0.15)
    without, _ = peaks(language, precision)
    least = 0.0 if checkpointing == "selective" and not dropout else 0.2
    assert foreseen <= (1.0 - least) * without


@given(limit=st.integers(0, 5000), most=st.none() | st.integers(1, 3000))
def test_the_largest_that_fits(limit: int, most: int | None) -> None:
    expected = limit if most is None else min(limit, most)
    assert cost.largest(lambda number: number <= limit, most) == expected


def test_a_single_block_is_computed_again_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing is saved, but the loss's chunks, which are gone by then."""
    single = SHAPE.model_copy(update={"decoder_layers": 1, "feedforward": 768})
    monkeypatch.setattr(sys.modules[__name__], "SHAPE", single)
    foreseen, measured = peaks(language, "fp32", "full")
    assert foreseen == pytest.approx(measured, rel=0.15)


def test_a_longer_cache_and_more_hypotheses_take_more() -> None:
    spec = translator_spec(SHAPE, VOCABULARY, VOCABULARY)
    asked: dict[str, Any] = {"length": 20, "parameters": cost.count_parameters(spec)}
    small = cost_memory.decoding_peak(spec, 1000, beam=4, **asked)
    large = cost_memory.decoding_peak(spec, 2000, beam=4, **asked)
    assert large.batch == pytest.approx(2 * small.batch, rel=0.01)
    assert large.total - large.needed == cost_memory.decoding_peak(spec, 1, **asked).process
    on_gpu = cost_memory.decoding_peak(spec, 1000, beam=4, device="cuda", **asked)
    assert on_gpu.process == 0
    assert on_gpu.total == small.needed
