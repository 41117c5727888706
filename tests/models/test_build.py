"""Models around stored weights: nothing is drawn, nothing is missing, nothing is shared."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.models.build import build_around, build_model, canonical_weights, stored_shapes
from heedful.models.model_spec import ModelSpec
from tests.models.test_spec_questions import KINDS, PAIRS


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS.keys())
def test_a_model_around_weights_has_their_bits_and_its_ties(spec: ModelSpec) -> None:
    model = build_model(spec)
    weights = canonical_weights(model)
    before = torch.get_rng_state()
    again = build_around(spec, weights, where="here")
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(tensor.is_meta for tensor in [*again.parameters(), *again.buffers()])
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in model.named_parameters()]
    for (name, one), two in zip(
        model.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two), name
        assert one.data_ptr() != two.data_ptr() or not one.numel()
    assert list(canonical_weights(again)) == list(weights)
    assert all(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS.keys())
def test_shapes_are_known_without_memory(spec: ModelSpec) -> None:
    weights = canonical_weights(build_model(spec))
    assert stored_shapes(spec) == {name: tensor.shape for name, tensor in weights.items()}


def test_a_model_becomes_float32_unless_it_keeps_its_type() -> None:
    weights: dict[str, Tensor] = {
        name: tensor.bfloat16() for name, tensor in canonical_weights(build_model(PAIRS)).items()
    }
    assert {p.dtype for p in build_around(PAIRS, weights, where="").parameters()} == {torch.float32}
    kept = build_around(PAIRS, weights, where="", dtype=None)
    assert {p.dtype for p in kept.parameters()} == {torch.bfloat16}


def test_weights_of_another_model_are_refused_by_name() -> None:
    weights = dict(canonical_weights(build_model(PAIRS)))
    weights["spare"] = weights.pop("target_embedding.weight")
    with pytest.raises(ModelError, match=r"missing: target_embedding.weight; unknown: spare"):
        build_around(PAIRS, weights, where="here")
