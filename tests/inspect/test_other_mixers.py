"""Looking into stacks whose blocks differ: linear attention, sandwich norms, other windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful import inspect
from heedful.apps import pruning
from heedful.errors import ModelError
from heedful.inspect.attention_maps import attention_steps
from heedful.inspect.block_flow import block_flow

TEXT = "abc dag hip"


def sublayer(kind, name=None, placement="before", **part):
    return {"name": name or kind, "norm_placement": placement, "part": {"kind": kind, **part}}


def causal(heads, **mask):
    mask = mask or {"kind": "causal"}
    return sublayer("attention", "self_attention", "both", num_heads=heads, mask=mask)


LINEAR = sublayer("linear_attention", num_heads=2, causal=True)
NETWORK = sublayer("feedforward", placement="both", width=24)


@pytest.fixture
def mixed(toys):
    """Linear attention of 2 heads, then softmax attention of 4 with norms on both sides."""
    pattern = [{"sublayers": [LINEAR, NETWORK]}, {"sublayers": [causal(4), NETWORK]}]
    return toys.causal_lm(decoder={"num_layers": 2, "pattern": pattern, "final_norm": {}})


def test_the_weights_of_linear_attention_are_its_definition(mixed):
    reading = inspect.read(mixed, TEXT)
    inputs = inspect.tensors(mixed, [reading])
    found = inspect.capture(mixed.model, inputs, ["decoder.0.linear.*"])
    places = {name.rpartition(".")[2]: value[0] for name, value in found.items()}
    tensors = mixed.model.state_dict()

    def features(name):
        prefix = f"decoder.blocks.0.linear_attention.{name}"
        weight, bias = (tensors[f"{prefix}.{kind}"].double() for kind in ("weight", "bias"))
        mapped = torch.from_numpy(places["input"]).double() @ weight.T + bias
        positive = torch.where(mapped > 0, mapped + 1, mapped.exp())
        return positive.numpy().reshape(len(mapped), 2, 8).transpose(1, 0, 2)

    products = np.tril(features("query") @ features("key").transpose(0, 2, 1))
    expected = products / products.sum(-1, keepdims=True)
    shown = inspect.attention(mixed, reading, "decoder")
    assert (shown.layers, shown.heads) == ((0, 1), (0, 1, 2, 3))
    np.testing.assert_allclose(shown.weights[0, :2], expected, atol=1e-5)
    assert not shown.weights[0, 2:].any()  # it has no such heads
    np.testing.assert_allclose(expected @ places["value"], places["context"], atol=1e-4)
    np.testing.assert_allclose(shown.weights[1].sum(-1), 1, atol=1e-5)


def test_measures_of_heads_are_those_of_their_own_layer(mixed):
    readings = inspect.read_all(mixed, [TEXT, "ha", "abba gag"])
    measures = inspect.measure(mixed, readings)
    assert [(head.layer, head.head) for head in measures.heads] == [
        *((0, head) for head in range(2)),
        *((1, head) for head in range(4)),
    ]
    rows = [
        row
        for reading in readings
        for row in inspect.attention(mixed, reading, layers=[0], heads=[1]).weights[0, 0]
    ]
    entropy = np.mean([-sum(w * np.log(w) for w in row.astype(float) if w > 0) for row in rows])
    assert measures.head(0, 1).entropy == pytest.approx(entropy, rel=1e-5)


def test_every_layer_is_measured_by_its_own_window(toys):
    pattern = [
        {
            "sublayers": [
                causal(4, kind="all_of", parts=[{"kind": "causal"}, {"kind": "window", "size": 2}]),
                NETWORK,
            ]
        },
        {"sublayers": [causal(4), NETWORK]},
    ]
    subject = toys.causal_lm(decoder={"num_layers": 2, "pattern": pattern})
    reading = inspect.read(subject, TEXT)
    measures = inspect.measure(subject, [reading])
    count = len(reading.tokens("decoder"))
    near = np.mean([np.log(min(row, 2)) for row in range(1, count + 1)])
    far = np.mean([np.log(row) for row in range(1, count + 1)])
    assert measures.head(0, 0).largest_entropy == pytest.approx(near)
    assert measures.head(1, 0).largest_entropy == pytest.approx(far)


def test_contributions_add_up_with_norms_on_both_sides(mixed):
    reading = inspect.read(mixed, TEXT)
    parts = inspect.contributions(mixed, reading)
    assert parts.sublayers == ("0.linear", "0.feedforward", "1.self", "1.feedforward")
    found = inspect.capture(mixed.model, inspect.tensors(mixed, [reading]), ["decoder.output"])
    np.testing.assert_allclose(parts.vectors.sum(0), found["decoder.output"][0], atol=1e-4)
    assert inspect.lens(mixed, reading).layers == ("embedding", "0", "1")


def test_heads_of_linear_attention_are_taken_away(mixed):
    assert "decoder.0.linear.head.1" in pruning.parts(mixed.model)
    assert "decoder.0.linear.scale" not in pruning.parts(mixed.model)
    inputs = inspect.tensors(mixed, [inspect.read(mixed, TEXT)])
    places = ["decoder.0.linear.context", "decoder.0.linear.output"]
    context = inspect.capture(mixed.model, inputs, places)[places[0]][0]
    with pruning.ablated(mixed.model, "decoder.0.linear.head.1"):
        output = inspect.capture(mixed.model, inputs, places)[places[1]][0]
    module = mixed.model.decoder.blocks[0].linear_attention.output
    weight, bias = (each.detach().numpy() for each in (module.weight, module.bias))
    np.testing.assert_allclose(output, context[0] @ weight[:, :8].T + bias, atol=1e-5)


def test_norms_of_outputs_are_taken_away(mixed):
    place = "decoder.1.self.output_norm"
    assert place in pruning.parts(mixed.model)
    inputs = inspect.tensors(mixed, [inspect.read(mixed, TEXT)])
    places = ["decoder.1.self.context", "decoder.1.self.output"]
    context = inspect.capture(mixed.model, inputs, places)[places[0]][0]
    with pruning.ablated(mixed.model, place):
        output = inspect.capture(mixed.model, inputs, places)[places[1]][0]
    module = mixed.model.decoder.blocks[1].self_attention.output
    weight, bias = (each.detach().numpy() for each in (module.weight, module.bias))
    merged = context.transpose(1, 0, 2).reshape(len(output), -1)
    np.testing.assert_allclose(output, merged @ weight.T + bias, atol=1e-5)


def test_what_linear_attention_does_not_serve_is_said(mixed):
    with pytest.raises(ModelError, match=r"decoder\.0\.linear is linear attention"):
        attention_steps(mixed, inspect.read(mixed, TEXT), "decoder", layer=0, head=0, row=0)
    with pytest.raises(ModelError, match="cannot be cut out"):
        pruning.pruned(mixed, "decoder.0.linear.head.0")
    examples = pruning.examples_of_text(mixed, [TEXT])
    result = pruning.prune(mixed, examples, heads_left=3)
    assert result.points[0].heads_left == 4  # those that can be cut out
    assert result.points[1].removed.startswith("decoder.1.self.head.")


def test_models_without_weights_say_so(toys):
    network = {"sublayers": [NETWORK]}
    subject = toys.causal_lm(decoder={"num_layers": 1, "pattern": [network]})
    with pytest.raises(ModelError, match="No layer of this model has attention weights"):
        inspect.attention(subject, inspect.read(subject, TEXT))
    with pytest.raises(ModelError, match="no attention heads"):
        pruning.importance(subject, pruning.examples_of_text(subject, [TEXT]))


def test_the_way_through_linear_attention(mixed):
    flow = block_flow(mixed, inspect.read(mixed, TEXT), layer=0)
    assert flow.norm_first  # in the network too, whose output is normed as well
    reads = {part.key: part.reads for part in flow.parts}
    assert reads["linear.weights"] == ("linear.query", "linear.key")
    assert reads["linear.context"] == ("linear.weights", "linear.value")
    about = {part.key: part.about for part in flow.parts}
    assert "the sum of its row" in about["linear.weights"]
    assert "norm of it is added to the stream" in about["feedforward.output"]
    assert "norm" not in about["linear.output"]


def test_sums_of_linear_attention_do_not_grow(mixed):
    step = inspect.next_token(mixed, TEXT, mixed.target.encode("ab"))
    sums, keys = 4 * 2 * (8 * 8 + 8), 4 * 2 * 16
    first, *_, last = step.cache_sizes
    assert first.bytes == sums + keys * first.slots
    assert last.bytes == sums + keys * last.slots
    assert (last.slots, last.layers, last.shape) == (first.slots + 2, 2, (1, 1, 2, 8, 8))
    assert step.memory_bytes == 0
