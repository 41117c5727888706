"""Every objective trains on real tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from heedful.data.batches import PairBatch
from heedful.device import Precision
from heedful.engines import unpadding
from heedful.engines.training import processor
from heedful.engines.training.chunked_loss import ProcessorLosses
from heedful.engines.unpadding import RealRows
from heedful.kernels.library import has_gemm
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.objective import LossContext, TranslationObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.update import Updater

from ..on_processor import on_processor


def made(lengths: Sequence[int] = (12, 4, 3), width: int = 16) -> tuple[Translator, PairBatch]:
    torch.manual_seed(0)
    sizes = {"width": width, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2}
    shape = TranslatorShape(**sizes, feedforward=3 * width // 2)
    model = Translator(translator_spec(shape, 30, 30)).train()
    places = torch.arange(max(lengths)).expand(len(lengths), -1)
    positions = torch.where(places < torch.tensor(lengths)[:, None], places, -1)
    ids = torch.randint(4, 29, positions.shape)
    examples = torch.arange(7, 7 + len(lengths))
    return model, PairBatch(ids, positions, ids, ids, positions, examples, sum(lengths))


def learn(model: Translator, batch: PairBatch) -> None:
    context = LossContext(1, losses=ProcessorLosses())
    with on_processor(model):
        TranslationObjective(ObjectiveSettings()).loss(model, batch, context).loss_sum.backward()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[RealRows | None]:
    """The rows that stacks are given."""
    found: list[RealRows | None] = []

    def real_rows(*given: Any, **how: Any) -> RealRows | None:
        found.append(unpadding.real_rows(*given, **how))
        return found[-1]

    monkeypatch.setattr(processor, "real_rows", real_rows)
    return found


def test_translation_leaves_padding_out(found: list[RealRows | None]) -> None:
    model, batch = made()
    learn(model, batch)
    assert len(found) == 3  # encoder, memory, decoder
    assert all(rows is not None and rows.count == 19 for rows in found)


@pytest.mark.parametrize(("width", "rows"), [(16, 94), (64, 93)])
def test_only_what_pytorch_multiplies_is_rounded_up(
    width: int, rows: int, found: list[RealRows | None]
) -> None:
    if width == 64 and not has_gemm("float32", width, fused=True):
        pytest.skip("no products in C here")
    model, batch = made((40, 33, 20), width)
    learn(model, batch)
    assert [(len(each.index), each.count) for each in found if each] == 3 * [(rows, 93)]


@pytest.mark.parametrize("width", [16, 64])
def test_a_model_is_one_graph_for_who_compiles_it(width: int) -> None:
    """With its padding: neither are tokens counted nor kernels asked there."""
    model, batch = made(width=width)
    graphs = []

    def keep(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=keep, fullgraph=True)
    compiled(batch.source, batch.source_positions, batch.target_input, batch.target_positions)
    assert len(graphs) == 1


def test_an_example_that_goes_wrong_is_named_all_the_same() -> None:
    model, batch = made()
    batch.source[1, 2] = 29

    mark = torch.full((16,), 100.0)

    def burst(_module: nn.Module, inputs: Any, output: Any) -> Any:
        """The query of what was piece 29 is infinite."""
        marked = (inputs[0] - mark).abs().amax(-1, keepdim=True) < 1e-6
        return (output[0].masked_fill(marked, torch.inf), *output[1:])

    model.source_input.dropout.p = 0.0
    model.source_input.register_forward_hook(
        lambda _module, inputs, output: torch.where((inputs[0] == 29)[..., None], mark, output)
    )
    model.encoder.blocks[0].self_attention.projection.register_forward_hook(burst)
    optimizer = build_optimizer(model, OptimizerSettings())
    updater = Updater(
        model,
        TranslationObjective(ObjectiveSettings()),
        optimizer,
        Precision("fp32", "cpu"),
        seed=1,
    )
    found, indices = updater.diagnose([batch], 1, {})
    assert found.rows == (1,)
    assert indices.tolist() == [8]
