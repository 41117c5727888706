"""Models of images and texts: specs, costs and engines are those of both towers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.engines.cost_memory import training_memory
from heedful.engines.inference.cpu_model import CpuStack
from heedful.engines.inference.packed_linear import int8_linear
from heedful.engines.inference.prepare import prepare
from heedful.kernels import library
from heedful.models.build import build_model
from heedful.models.cost import count_parameters, parameters_by_module
from heedful.models.images.two_towers import TwoTowers
from heedful.models.images.two_towers_spec import TwoTowersSpec
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.model_spec import parse_spec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import encoder_spec

WIDE = TranslatorShape(width=32, encoder_layers=3, num_heads=2, feedforward=64, positions="learned")
NARROW = WIDE.model_copy(update={"width": 16, "encoder_layers": 2, "feedforward": 24})
TEXTS = encoder_spec(NARROW, 20, 12, ())
IMAGES = VisionSpec(
    width=32, image_size=8, patch_size=4, channels=1, encoder=encoder_spec(WIDE, 20, 12, ()).encoder
)
SPEC = TwoTowersSpec(width=24, images=IMAGES, texts=TEXTS)


def shaken(spec: TwoTowersSpec) -> TwoTowers:
    torch.manual_seed(0)
    model = TwoTowers(spec).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Five images and three texts, one of them with padding."""
    draw = torch.Generator().manual_seed(1)
    positions = torch.arange(6).repeat(3, 1)
    positions[1, 4:] = -1
    ids = torch.randint(1, 20, (3, 6), generator=draw)
    return torch.randn(5, 1, 8, 8, generator=draw), ids, positions


def test_the_spec_is_read_back_and_answers_for_both_towers() -> None:
    assert parse_spec(SPEC.plain(), where="config.json") == SPEC
    assert SPEC.with_stacks(SPEC.stacks()) == SPEC
    fewer = SPEC.with_stacks({"texts": TEXTS.encoder.model_copy(update={"num_layers": 1})})
    assert (fewer.texts.encoder.num_layers, fewer.images) == (1, IMAGES)
    assert list(SPEC.stacks()) == list(build_model(SPEC).stacks())
    assert SPEC.with_vocabularies(source=9, target=9).vocabularies() == {"source": 9, "target": 9}
    assert SPEC.longest_text == TEXTS.longest_text


def test_parameters_and_memory_are_those_of_both_towers() -> None:
    model: Any = build_model(SPEC)
    assert count_parameters(SPEC) == sum(each.numel() for each in model.parameters())
    assert parameters_by_module(SPEC)["log_scale"] == 1
    apart = [training_memory(each, 64, 64).activations for each in (IMAGES, TEXTS)]
    assert training_memory(SPEC, 64, 64).activations == sum(apart)


def test_scores_do_not_depend_on_the_company() -> None:
    model, (images, ids, positions) = shaken(SPEC), batch()
    with torch.no_grad():
        scores = model(images, ids, positions)
        assert scores.shape == (5, 3)
        alone = model(images[2:3], ids[1:2, :4], positions[1:2, :4])
    torch.testing.assert_close(alone[0, 0], scores[2, 1])


@pytest.mark.skipif(int8_linear() is None, reason="no products of 8-bit integers here")
def test_both_towers_are_packed_in_8_bits() -> None:
    model = shaken(SPEC)
    engine = prepare(model, "int8")
    with torch.inference_mode():
        expected, found = model(*batch()), engine(*batch())
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, atol=0.3, rtol=0)  # of cosines times 14
    if library.kernels() is not None:
        assert all(isinstance(stack, CpuStack) for stack in engine.stacks().values())
