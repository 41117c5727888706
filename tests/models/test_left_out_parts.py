"""Parts of a block that are left out by a setting: the definition, engines, what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from heedful.config import Config
from heedful.device import Precision
from heedful.engines.cost_memory import training_memory
from heedful.engines.inference.prepare import prepare
from heedful.engines.inference.support import cpu_refusals
from heedful.errors import ConfigError
from heedful.models.cost import count_parameters, parameter_table, training_cost
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.spec_overrides import contradictions
from heedful.models.translator import Translator

SMALL: dict[str, Any] = {
    "width": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "num_heads": 1,
    "feedforward": 24,
    "positions": "none",
    "dropout": 0.0,
}
LEFT_OUT: dict[str, dict[str, Any]] = {
    "residual": {"residual": False},
    "norm": {"norm_placement": "none"},
    "feed-forward": {"feedforward": 0},
    "scale": {"attention_scale": 1.0},
    "positions": {"positions": "none"},
    "norm and biases": {"norm_placement": "none", "bias": False},
}


def build(**changes: Any) -> Translator:
    torch.manual_seed(3)
    model = Translator(translator_spec(TranslatorShape.parse(SMALL | changes), 20, 20)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def reference_block(x: np.ndarray, weights: dict[str, np.ndarray], shape: Any) -> np.ndarray:
    """One encoder block with one head, by the formulas, in float64."""

    def linear(value: np.ndarray, name: str) -> np.ndarray:
        return value @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(value: np.ndarray, name: str) -> np.ndarray:
        centred = value - value.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def attention(value: np.ndarray) -> np.ndarray:
        q, k, v = (linear(value, f"self_attention.{each}") for each in ("query", "key", "value"))
        factor = shape.attention_scale or 1 / np.sqrt(q.shape[-1])
        scores = np.exp(factor * q @ k.T)
        return linear(scores / scores.sum(-1, keepdims=True) @ v, "self_attention.output")

    def network(value: np.ndarray) -> np.ndarray:
        inner = np.maximum(linear(value, "feedforward.up"), 0)
        return linear(inner, "feedforward.down")

    parts = [("self_attention", attention)]
    parts += [("feedforward", network)] if shape.feedforward else []
    for name, part in parts:
        read = norm(x, f"{name}_norm") if shape.norm_placement == "pre" else x
        x = part(read) + (x if shape.residual else 0)
        x = norm(x, f"{name}_norm") if shape.norm_placement == "post" else x
    return x


@pytest.mark.parametrize(
    ("residual", "placement", "feedforward", "scale"),
    [*product((True, False), ("post", "pre", "none"), (24, 0), (None, 1.0))],
)
@torch.no_grad()
def test_a_block_computes_the_parts_it_has(
    residual: bool, placement: str, feedforward: int, scale: float | None
) -> None:
    changes = {"residual": residual, "norm_placement": placement, "feedforward": feedforward}
    model = build(**changes, attention_scale=scale)
    shape = TranslatorShape.parse(SMALL | changes | {"attention_scale": scale})
    ids, places = torch.arange(4, 10)[None], torch.arange(6)[None]
    block = model.encoder.blocks[0]
    weights = {name: each.double().numpy() for name, each in block.state_dict().items()}
    x = 4.0 * model.source_embedding(ids)  # times sqrt(width)
    if placement == "pre":  # the norm after the last block is a part of the stack
        model.encoder.final_norm = None
    expected = reference_block(x[0].double().numpy(), weights, shape)
    found = model.encode(ids, places).states[0].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", LEFT_OUT)
@torch.inference_mode()
def test_engines_give_what_the_definition_gives(part: str) -> None:
    model = build(**{"encoder_layers": 2, "decoder_layers": 2, "num_heads": 2, **LEFT_OUT[part]})
    engine = prepare(model, Precision("fp32", "cpu"))
    ids, places = torch.arange(4, 10)[None], torch.arange(6)[None]
    states = [each.start(ids, places) for each in (model, engine)]
    for token in (2, 5, 7):
        logits = []
        for i, each in enumerate((model, engine)):
            found, states[i] = each.step(states[i], torch.tensor([[token]]))
            logits.append(found)
        torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=2e-5)
    named = {refusal.field.split(".")[-1] for refusal in cpu_refusals(model.spec)}
    expected = {"residual": "residual", "norm": "norm_placement", "feed-forward": "sublayers"}
    assert named >= {field for name, field in expected.items() if part.startswith(name)}


@pytest.mark.parametrize("part", LEFT_OUT)
def test_what_is_left_out_costs_nothing(part: str) -> None:
    model = build(**LEFT_OUT[part])
    assert count_parameters(model.spec) == sum(each.numel() for each in model.parameters())
    whole = build(positions="sinusoidal").spec
    assert training_cost(model.spec, 9, 9).total.total <= training_cost(whole, 9, 9).total.total
    assert training_memory(model.spec, 64, 64).weights <= training_memory(whole, 64, 64).weights
    has_network = any("feed-forward" in row.component for row in parameter_table(model.spec))
    assert has_network == (part != "feed-forward")


def test_a_model_contradicts_what_it_lacks() -> None:
    lacking = build(**LEFT_OUT["residual"], **LEFT_OUT["feed-forward"], attention_scale=1.0).spec
    asked = {"residual": True, "feedforward": 24, "attention_scale": 0.25}
    found = contradictions(TranslatorShape.parse(asked), lacking)
    assert sorted(found) == [
        "model.attention_scale is 0.25, and the model's 1.0",
        "model.feedforward is 24, and the model's 0",
        "model.residual is true, and the model's false",
    ]
    same = {"residual": False, "feedforward": 0, "attention_scale": 1.0}
    assert contradictions(TranslatorShape.parse(same), lacking) == []
    # Left unset, the scale is 1/sqrt(head width), and so equal to that number.
    assert contradictions(TranslatorShape.parse({"attention_scale": 0.25}), build().spec) == []


def test_experts_need_a_network_to_be() -> None:
    with pytest.raises(ConfigError, match="num_experts needs feedforward above 0"):
        TranslatorShape.parse({"feedforward": 0, "num_experts": 4})
    assert isinstance(TranslatorShape.parse({"num_experts": 4}), Config)
