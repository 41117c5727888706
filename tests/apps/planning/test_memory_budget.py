"""The automatic batch size: as many positions as fit into the free memory."""

from __future__ import annotations

import pytest

from heedful.apps.planning.memory_budget import fitting_batch
from heedful.device import Precision
from heedful.errors import RunError
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator

SHAPE = TranslatorShape(
    width=16, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=16, max_length=40
)


def test_the_room_grows_with_the_memory_and_shrinks_with_the_beam() -> None:
    model = Translator(translator_spec(SHAPE, 500, 500))
    picked = [fitting_batch([model], None, available=mib * 2**20) for mib in (2, 4, 10**4)]
    numbers = [room.positions for room in picked]
    assert numbers[0] < numbers[1] < numbers[2] == 16_384
    assert "the most that pays" in picked[2].reason
    assert f"{numbers[0]:,} positions" in picked[0].reason
    two = fitting_batch([model, model], None, available=4 * 2**20)
    assert two.positions < numbers[1]
    half = fitting_batch([model], Precision("bf16", "cpu"), available=4 * 2**20)
    assert "bf16" in half.reason
    with pytest.raises(RunError, match="no room"):
        fitting_batch([model], None, available=1000)
