"""Losses that do the same for all batches of a shape, against those that choose real positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.data.batches import NO_TARGET, PairBatch, WindowBatch
from heedful.data.padding import pad
from heedful.engines.training.masked_loss import MaskedLosses
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.nn.losses import smoothed_cross_entropy
from heedful.train.objective import CausalLMObjective, LossContext, TranslationObjective
from heedful.train.run_settings import ObjectiveSettings
from heedful.train.static_shapes import (
    real_places,
    rounded_up,
    static_key,
)


def gradients(loss: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [t for t in tensors if t is not None]))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("smoothing", "softcap"), [(0.0, None), (0.1, None), (0.1, 5.0)])
def test_padding_adds_nothing(has_bias: bool, smoothing: float, softcap: float | None) -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(3, 4, 6, generator=draw, dtype=torch.float64).requires_grad_()
    weight = torch.randn(11, 6, generator=draw, dtype=torch.float64).requires_grad_()
    bias = torch.randn(11, generator=draw, dtype=torch.float64) if has_bias else None
    if bias is not None:
        bias.requires_grad_()
    real = torch.rand(3, 4, generator=draw) < 0.6
    targets = torch.randint(0, 11, (3, 4), generator=draw).where(real, NO_TARGET)
    at_all = states.flatten(0, 1), weight, targets.flatten(), smoothing, bias, softcap
    found = MaskedLosses(compiled=False).smoothed_cross_entropy(*at_all)
    chosen = states[real], weight, targets[real], smoothing, bias, softcap
    expected = smoothed_cross_entropy(*chosen)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=0)
    some = states, weight, bias
    for one, other in zip(gradients(found[0], *some), gradients(expected[0], *some), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_places_of_real_tokens_are_those_of_a_mask() -> None:
    real = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    table = torch.arange(35).view(5, 7)
    assert torch.equal(real_places(real, int(real.sum())), table[real])


def pairs(count: int, longest: int) -> PairBatch:
    rows = [[5 + i % 3] * (longest - i % longest) for i in range(count)]
    ids, positions = pad(rows, 0)
    return PairBatch(ids, positions, ids, ids, positions, torch.arange(count), sum(map(len, rows)))


@pytest.mark.parametrize(
    ("size", "shape"), [((3, 5), (8, 16)), ((8, 16), (8, 16)), ((9, 17), (16, 32))]
)
def test_rounded_batches_have_few_shapes(size: tuple[int, int], shape: tuple[int, int]) -> None:
    rounded = rounded_up(pairs(*size))
    assert rounded.source.shape == rounded.target_positions.shape == shape
    assert rounded.indices.tolist() == list(range(size[0]))
    other = replace(rounded, target_tokens=1)
    assert static_key(other) == static_key(rounded)
    assert static_key(rounded) != static_key(pairs(40, 16))


@pytest.mark.parametrize("rounds", [False, True])
def test_a_translators_loss_is_that_of_its_real_tokens(rounds: bool) -> None:
    torch.manual_seed(0)
    shape = TranslatorShape(
        width=8, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=12, dropout=0.0
    )
    model = Translator(translator_spec(shape, 20, 20)).double()
    batch = pairs(5, 6)
    objective = TranslationObjective(ObjectiveSettings())
    parameters = list(model.parameters())
    expected = objective.loss(model, batch, LossContext(1))
    masked = LossContext(1, losses=MaskedLosses(compiled=False))
    found = objective.loss(model, rounded_up(batch) if rounds else batch, masked)
    torch.testing.assert_close(found.loss_sum, expected.loss_sum, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.extras["nll"], expected.extras["nll"], rtol=1e-9, atol=0)
    both = (torch.autograd.grad(each.loss_sum, parameters) for each in (found, expected))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)


def test_what_depends_on_more_than_shapes_cannot_be_static() -> None:
    for settings in ({"r_drop": 1.0}, {"scheduled_sampling": 0.1}):
        assert not TranslationObjective(ObjectiveSettings.parse(settings)).can_be_static
    assert TranslationObjective(ObjectiveSettings()).can_be_static


@pytest.mark.parametrize("several", [True, False])
def test_windows_of_one_text_need_no_segments(several: bool) -> None:
    """What a batch says of itself holds without a look at the device's numbers."""
    given: list[Any] = []

    def model(ids: Tensor, positions: Tensor, segments: Tensor | None, **_: Any) -> Tensor:
        given.append(segments)
        raise InterruptedError

    model.training = False  # type: ignore[attr-defined]
    zeros = torch.zeros(2, 3, dtype=torch.int64)
    batch = WindowBatch(zeros, zeros, zeros, zeros, zeros[:, 0], 6, packed=several)
    with pytest.raises(InterruptedError):
        CausalLMObjective(0.0).loss(model, batch, LossContext(1))
    assert (given[0] is not None) is several
