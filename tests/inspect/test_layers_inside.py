"""Rollout and flow, the logit lens, and the residual stream, against independent computations."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful import inspect
from heedful.errors import ConfigError, ModelError
from heedful.inspect.attention_maps import AttentionMap
from heedful.inspect.residual_stream import contributions, layer_logits, lens
from heedful.inspect.tracing import flow, flow_from, max_flow, rollout

IMAGE = np.random.default_rng(0).normal(size=(3, 12, 12))


def drawn_map(layers=3, heads=2, tokens=3, seed=0, part="encoder"):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(tokens, 0.5), size=(layers, heads, tokens))
    names = tuple("abcdef"[:tokens])
    return AttentionMap(
        part, tuple(range(layers)), tuple(range(heads)), names, names, weights.astype(np.float32)
    )


def mixed(attention):
    return [(w.astype(float).mean(0) + np.eye(w.shape[-1])) / 2 for w in attention.weights]


def test_rollout_is_the_sum_over_all_paths():
    attention = drawn_map()
    layers = mixed(attention)
    expected = np.zeros((3, 3))
    for path in itertools.product(range(3), repeat=4):  # from the last state down to the input
        weight = np.prod([layers[2 - n][path[n], path[n + 1]] for n in range(3)])
        expected[path[0], path[3]] += weight
    found = rollout(attention)
    np.testing.assert_allclose(found.weights[2], expected, rtol=1e-10)
    np.testing.assert_allclose(found.weights[0], layers[0], rtol=1e-10)
    np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-6)
    json.dumps(found.plain())


def smallest_cut(capacities, source, sink):
    """By trying every set of nodes on the source's side."""
    inner = [n for n in range(len(capacities)) if n not in (source, sink)]
    best = np.inf
    for chosen in itertools.product((False, True), repeat=len(inner)):
        inside = np.zeros(len(capacities), bool)
        inside[[n for n, c in zip(inner, chosen, strict=True) if c]] = True
        inside[source] = True
        best = min(best, capacities[np.ix_(inside, ~inside)].sum())
    return best


@given(st.integers(0, 10**6), st.integers(3, 7), st.floats(0.1, 0.9))
@settings(max_examples=40)
def test_maximum_flow_is_the_smallest_cut(seed, nodes, share):
    rng = np.random.default_rng(seed)
    capacities = rng.random((nodes, nodes)) * (rng.random((nodes, nodes)) < share)
    np.fill_diagonal(capacities, 0)
    before = capacities.copy()
    found = max_flow(capacities, 0, nodes - 1)
    assert found == pytest.approx(smallest_cut(capacities, 0, nodes - 1), abs=1e-9)
    assert np.array_equal(capacities, before)


def test_flow_through_layers_is_the_smallest_cut():
    attention = drawn_map(layers=3, tokens=3, seed=4)
    layers = mixed(attention)
    graph = np.zeros((12, 12))
    for n, layer in enumerate(layers):
        for above, below in itertools.product(range(3), repeat=2):
            graph[3 * (n + 1) + above, 3 * n + below] = layer[above, below]
    found = flow(attention)
    for row, column in itertools.product(range(3), repeat=2):
        expected = smallest_cut(graph, 9 + row, column)
        assert found.weights[0, row, column] == pytest.approx(expected, abs=1e-9)
    some = flow(attention, rows=[1])
    assert np.array_equal(some.weights[0, 0], found.weights[0, 1])
    assert some.rows == ("b",)


def test_flow_by_hand():
    """Two wires: half stays, half crosses; then all crosses."""
    first, second = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.5, 0.5], [0.0, 1.0]])
    np.testing.assert_allclose(flow_from([first, second], 0), [0.5, 0.5])
    np.testing.assert_allclose(flow_from([first, second], 1), [1.0, 0.0])


def test_what_cannot_be_traced():
    for wrong in (drawn_map(part="cross"), drawn_map()):
        if wrong.part != "cross":
            wrong = AttentionMap(
                "encoder", (1, 2), wrong.heads, *[wrong.rows] * 2, wrong.weights[1:]
            )
        with pytest.raises(ConfigError, match="all layers and rows"):
            rollout(wrong)
    with pytest.raises(ConfigError, match="no row with index 3"):
        flow(drawn_map(), rows=[3])


@torch.no_grad()
def own_logits(subject, reading):
    inputs = inspect.tensors(subject, [reading])
    model, states = subject.model, subject.model(*inputs)
    kind = model.spec.kind
    if kind == "encoder":
        return model.masked_lm_logits(states)[0]
    return model.class_logits(states) if kind == "vision" else model.logits(states)[0]


def lens_cases(toys):
    for subject in (
        toys.translator(),
        toys.translator(norm_placement="pre"),
        toys.causal_lm(),
        toys.encoder(),
    ):
        pair = ("fgh",) if subject.model.spec.kind == "translator" else ()
        yield subject, inspect.read(subject, "abc de", *pair)
    subject = toys.vision()
    yield subject, inspect.see(subject, IMAGE)


def test_the_last_layer_is_the_model_itself(toys):
    for subject, reading in lens_cases(toys):
        logits = torch.stack([layer() for layer in layer_logits(subject, reading)])
        expected = own_logits(subject, reading)
        assert torch.equal(logits[-1], expected)
        assert not torch.allclose(logits[0], expected)
        found = lens(subject, reading, top=2)
        assert found.layers[0] == "embedding"
        assert len(found.layers) == len(logits)
        probabilities = expected.softmax(-1)
        assert found.probabilities.shape == (len(logits), len(expected), 2)
        np.testing.assert_allclose(found.probabilities[-1], probabilities.topk(2).values, rtol=1e-5)
        assert (found.rank[-1] == 0).all()
        assert np.allclose(found.divergence[-1], 0)
        first = torch.nn.functional.kl_div(
            logits[0].double().log_softmax(-1),
            expected.double().log_softmax(-1),
            log_target=True,
            reduction="none",
        ).sum(-1)
        np.testing.assert_allclose(found.divergence[0], first, rtol=1e-5, atol=1e-5)
        for row, best in enumerate(expected.argmax(-1).tolist()):
            order = logits[0, row].argsort(descending=True).tolist()
            assert found.rank[0, row] == order.index(best)
        json.dumps(found.plain(), allow_nan=False)


def test_long_texts_are_looked_at_in_parts(toys, monkeypatch):
    subject, reading = next(lens_cases(toys))
    whole = lens(subject, reading).plain()
    monkeypatch.setattr("heedful.inspect.residual_stream._ROWS_AT_ONCE", 2)
    assert lens(subject, reading).plain() == whole


def test_lens_shows_pieces_and_classes(toys):
    (subject, reading), *_, (images, image) = lens_cases(toys)
    found = lens(subject, reading, top=1)
    best = own_logits(subject, reading).argmax(-1).tolist()
    assert [row[0] for row in found.pieces[-1]] == subject.target.pieces(best)
    assert found.rows == reading.decoder.pieces
    classes = lens(images, image, top=9)
    assert classes.rows == ("image",)
    assert set(classes.pieces[0][0]) == {"LABEL_0", "LABEL_1", "LABEL_2"}


def test_lens_needs_a_head(toys):
    subject = toys.encoder(heads=())
    with pytest.raises(ModelError, match="no masked_lm head"):
        lens(subject, inspect.read(subject, "ab"))
    subject = toys.causal_lm()
    with pytest.raises(ConfigError, match="At least one"):
        lens(subject, inspect.read(subject, "ab"), top=0)


def contribution_cases(toys):
    yield from lens_cases(toys)
    for changes in (
        {"norm": "rms", "norm_placement": "post"},
        {"norm_placement": "pre", "norm": "rms"},
    ):
        subject = toys.translator(**changes)
        yield subject, inspect.read(subject, "abc de", "fgh")
    subject = toys.causal_lm(output_bias=True, tied=False)
    yield subject, inspect.read(subject, "abc de")


def test_parts_add_up_to_the_stream_and_the_score(toys):
    for subject, reading in contribution_cases(toys):
        inputs = inspect.tensors(subject, [reading])
        stacks = [n for n in ("encoder", "decoder") if hasattr(subject.model, n)]
        for stack in stacks:
            found = contributions(subject, reading, stack)
            output = inspect.capture(subject.model, inputs, [f"{stack}.output"])[f"{stack}.output"]
            np.testing.assert_allclose(found.vectors.sum(0), output[0], rtol=1e-5, atol=1e-5)
            assert len(found.parts) == len(found.sublayers) + 2
            json.dumps(found.plain(), allow_nan=False)
        if stack == "decoder":
            logits = own_logits(subject, reading)
            total = found.scores.sum(0) + found.bias
            np.testing.assert_allclose(total, logits.max(-1).values, rtol=1e-5, atol=1e-5)
            assert found.tokens == tuple(subject.target.pieces(logits.argmax(-1).tolist()))
            ids = [5] * len(logits)
            other = contributions(subject, reading, tokens=ids)
            np.testing.assert_allclose(
                other.scores.sum(0) + other.bias, logits[:, 5], rtol=1e-5, atol=1e-5
            )
        else:
            assert found.scores is None


def test_sizes_and_angles(toys):
    subject = toys.translator()
    reading = inspect.read(subject, "abc", "fg")
    found = contributions(subject, reading)
    inputs = inspect.tensors(subject, [reading])
    seen = inspect.capture(
        subject.model, inputs, ["decoder.1.cross.output", "decoder.1.self.stream"]
    )
    added, stream = (value[0].astype(np.float64) for value in seen.values())
    if next(iter(seen)).endswith("stream"):
        added, stream = stream, added
    place = found.sublayers.index("1.cross")
    np.testing.assert_allclose(found.sizes[place], np.sqrt((added**2).sum(-1)), rtol=1e-5)
    np.testing.assert_allclose(found.stream_sizes[place], np.sqrt((stream**2).sum(-1)), rtol=1e-5)
    cosine = (added * stream).sum(-1) / np.sqrt((added**2).sum(-1) * (stream**2).sum(-1))
    np.testing.assert_allclose(found.cosines[place], cosine, rtol=1e-5, atol=1e-5)


def test_scores_that_are_no_sums(toys):
    subject = toys.encoder()
    reading = inspect.read(subject, "ab")
    with pytest.raises(ModelError, match="no sums over its parts"):
        contributions(subject, reading, tokens=[1, 2])
    with pytest.raises(ModelError, match="no decoder"):
        contributions(subject, reading, "decoder")
    subject = toys.causal_lm()
    with pytest.raises(ConfigError, match="1 tokens for 3 rows"):
        contributions(subject, inspect.read(subject, "ab"), tokens=[1])


def test_parts_add_up_wherever_norms_and_residuals_are(toys):
    """Norms on both sides or nowhere, and a sub-layer that replaces the stream."""
    attention = {"kind": "attention", "num_heads": 4, "mask": {"kind": "causal"}}
    feedforward = {"kind": "feedforward", "width": 24}
    for changes in (
        {"norm_placement": "both", "norm": {"kind": "rms"}},
        {"norm_placement": "none"},
        {"norm_placement": "after", "residual": False},
        {"norm_placement": "after", "residual_scale": 0.5},
    ):
        sublayers = [
            {"name": "self_attention", "part": attention},
            {"name": "feedforward", "part": feedforward, **changes},
        ]
        subject = toys.causal_lm(decoder={"num_layers": 2, "block": {"sublayers": sublayers}})
        found = contributions(subject, inspect.read(subject, "abc de"))
        inputs = inspect.tensors(subject, [inspect.read(subject, "abc de")])
        states = inspect.capture(subject.model, inputs, ["decoder.output"])["decoder.output"][0]
        np.testing.assert_allclose(found.vectors.sum(0), states, rtol=1e-4, atol=1e-4)
        flow = inspect.block_flow(subject, inspect.read(subject, "abc de"))
        keys = [part.key for part in flow.parts]
        assert ("feedforward.norm" in keys) == (changes["norm_placement"] != "none")
        total = next(part for part in flow.parts if part.key == "feedforward.sum")
        assert len(total.reads) == (1 if changes.get("residual") is False else 2)
