"""Every objective trains on real tokens only."""

from __future__ import annotations

import pytest
import torch

from heedful.data.batches import PairBatch
from heedful.models import stack
from heedful.models.shape import TranslatorShape
from heedful.models.translator import Translator
from heedful.nn.unpadding import real_rows
from heedful.train.objective import Context, TranslationObjective
from heedful.train.settings import ObjectiveSettings


def test_translation_leaves_padding_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(stack, "real_rows", lambda p: found.append(real_rows(p)) or found[-1])
    torch.manual_seed(0)
    sizes = {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2}
    model = Translator(TranslatorShape(**sizes, feedforward=24).expand(30, 30)).train()
    places = torch.arange(12).expand(3, 12)
    positions = torch.where(places < torch.tensor([[12], [4], [3]]), places, -1)
    ids = torch.randint(4, 30, positions.shape)
    batch = PairBatch(ids, positions, ids, ids, positions, torch.arange(3), 19)
    TranslationObjective(ObjectiveSettings()).loss(model, batch, Context(1)).loss_sum.backward()
    assert len(found) == 3  # encoder, memory, decoder
    assert all(rows is not None and rows.count == 19 for rows in found)
