"""Parameters, operations and activations of models, against sums by hand."""

from __future__ import annotations

import pytest

from heedful.apps.planning.model_costs import Activations, model_costs
from heedful.models.preset_files import preset_spec


def test_transformer_big_by_hand() -> None:
    d, f, vocabulary, length = 1024, 4096, 37_000, 25
    attention = 4 * (d * d + d)
    network = 2 * d * f + f + d
    norm = 2 * d
    encoder = 6 * (attention + network + 2 * norm)
    decoder = 6 * (2 * attention + network + 3 * norm)
    costs = model_costs(preset_spec("transformer-big", vocabulary), length, 2)
    assert costs.parameters == vocabulary * d + encoder + decoder
    assert costs.blocks.parameters == encoder + decoder
    assert costs.blocks.divisible == 6 * (4 * d * d + 2 * d * f) + 6 * (8 * d * d + 2 * d * f)
    assert costs.largest.parameters == decoder // 6
    # A multiplication and an addition for each weight; scores and sums over the other tokens in
    # 6 attentions of the encoder and 12 of the decoder.
    assert costs.forward.weights == 2 * length * costs.blocks.divisible
    assert costs.forward.attention == 18 * 4 * length * length * d
    assert costs.forward.output == 2 * length * d * vocabulary
    assert costs.training_per_position * length == 3 * costs.forward.total
    assert costs.divisors == {"heads": 16, "key/value heads": 16, "feed-forward width": f}
    assert "pairs" in costs.refuses_context


def test_llama_7b_by_hand() -> None:
    d, f, vocabulary, layers, length = 4096, 11_008, 32_000, 32, 2048
    costs = model_costs(preset_spec("llama-7b"), length, 2)
    matrices = 4 * d * d + 3 * d * f
    assert costs.parameters == 2 * vocabulary * d + layers * (matrices + 2 * d) + d
    assert costs.blocks.divisible == layers * matrices
    per_token = 2 * layers * matrices + 2 * vocabulary * d + layers * 4 * length * d
    assert costs.forward_per_position == per_token
    assert costs.blocks.keys_values == layers * 2 * d * 2
    assert costs.blocks.exchanges == 2 * layers
    assert costs.blocks.exchanged == layers * 2 * d * 2
    assert costs.refuses_context == ""


def test_activations_of_gpt2_by_hand() -> None:
    """Without dropout a block keeps 36 bytes of each of D numbers in bfloat16."""
    values = preset_spec("gpt2").plain()
    for sublayer in values["decoder"]["pattern"][0]["sublayers"]:
        sublayer["dropout"] = sublayer["part"]["dropout"] = 0.0
    spec = type(preset_spec("gpt2")).parse(values)
    d = spec.width
    kept = model_costs(spec, 1024, 2).largest
    heads = 2 * 4 * d  # queries, keys, values and what the heads found
    network = 2 * 2 * 4 * d  # before and after the GELU
    around = 2 * (2 * d + 4 * d)  # each norm's result, and the residual sum in float32
    assert kept.kept.inside == heads + network
    assert kept.kept.outside == around
    assert kept.products.inside == heads + 2 * 4 * d
    assert kept.products.outside == 4 * d + 2 * 2 * d
    assert kept.inputs == Activations(0, 4 * d)
    assert kept.kept.divided(2) == (heads + network) / 2 + around


def test_fewer_bits_halve_products_but_not_the_residual_stream() -> None:
    wide = model_costs(preset_spec("llama-7b"), 2048, 4).largest
    narrow = model_costs(preset_spec("llama-7b"), 2048, 2).largest
    assert narrow.kept.inside == wide.kept.inside / 2
    assert narrow.inputs == wide.inputs


@pytest.mark.parametrize(
    ("name", "divides"),
    [("bert-base", True), ("vit-b-16", True), ("t5-small", True), ("rnn-luong", False)],
)
def test_every_kind_of_model_has_costs(name: str, divides: bool) -> None:
    costs = model_costs(preset_spec(name), 64, 2)
    assert costs.forward.total > 0
    assert costs.parameters_of(1) == costs.parameters
    assert bool(costs.undivided) is not divides
    assert (costs.blocks.divisible > 0) is divides


def test_masked_models_predict_some_tokens_and_classifiers_none() -> None:
    bert = model_costs(preset_spec("bert-base"), 128, 2)
    assert bert.predicted == 0.15
    assert bert.forward.output == pytest.approx(0.15 * 2 * 128 * 768 * 30_522)
    assert model_costs(preset_spec("vit-b-16"), 1, 2).vocabulary == 0
    assert model_costs(preset_spec("vit-b-16"), 1, 2).length == 197
