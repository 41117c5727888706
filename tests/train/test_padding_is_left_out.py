"""Every objective trains on real tokens only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from heedful.data.batches import PairBatch
from heedful.device import Precision
from heedful.models import stack
from heedful.models.shape import TranslatorShape
from heedful.models.translator import Translator
from heedful.nn.unpadding import real_rows
from heedful.train.objective import Context, TranslationObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.settings import ObjectiveSettings, OptimizerSettings
from heedful.train.update import Updater


def made() -> tuple[Translator, PairBatch]:
    torch.manual_seed(0)
    sizes = {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2}
    model = Translator(TranslatorShape(**sizes, feedforward=24).expand(30, 30)).train()
    places = torch.arange(12).expand(3, 12)
    positions = torch.where(places < torch.tensor([[12], [4], [3]]), places, -1)
    ids = torch.randint(4, 29, positions.shape)
    return model, PairBatch(ids, positions, ids, ids, positions, torch.tensor([7, 8, 9]), 19)


def test_translation_leaves_padding_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(stack, "real_rows", lambda p: found.append(real_rows(p)) or found[-1])
    model, batch = made()
    TranslationObjective(ObjectiveSettings()).loss(model, batch, Context(1)).loss_sum.backward()
    assert len(found) == 3  # encoder, memory, decoder
    assert all(rows is not None and rows.count == 19 for rows in found)


def test_an_example_that_goes_wrong_is_named_all_the_same() -> None:
    model, batch = made()
    batch.source[1, 2] = 29

    mark = torch.full((16,), 100.0)

    def burst(_module: nn.Module, inputs: Any, output: Any) -> Any:
        """The query of what was piece 29 is infinite."""
        marked = (inputs[0] - mark).abs().amax(-1, keepdim=True) < 1e-6
        return (output[0].masked_fill(marked, torch.inf), *output[1:])

    model.source_input.dropout.probability = 0.0
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
    found, indices = updater.diagnose([batch], 1)
    assert found.rows == (1,)
    assert indices.tolist() == [8]
