"""Paths against searches of the graphs they are in; measured gradients against differences."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful import inspect
from heedful.apps.path_lengths import (
    KINDS,
    costs,
    model_reach,
    network,
    recurrent_reach,
    transformer_reach,
)
from heedful.errors import ConfigError, ModelError
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.stack import Stack
from heedful.nn.mixers.recurrent import RecurrentEncoder

STEP = 1e-5


def links_by_hand(kind, length, window, kernel, level):
    """[from, to]: whether a token of one level reads one of the level below."""
    back = np.arange(length)[None] - np.arange(length)[:, None]  # to - from
    return {
        "attention": np.ones((length, length), bool),
        "window": abs(back) < window,
        "convolution": (back >= 0) & (back < kernel),
        "dilated": np.isin(back, [place * kernel**level for place in range(kernel)]),
    }[kind]


def layers_needed(kind, length, window, kernel):
    """How many layers until the last token has seen every other one."""
    reached = np.eye(length, dtype=bool)
    for level in range(length + 1):
        if reached[:, -1].all():
            return level
        reached = reached @ links_by_hand(kind, length, window, kernel, level)
    raise AssertionError(kind)


@given(st.integers(1, 30), st.integers(2, 6), st.integers(2, 5))
@settings(max_examples=60)
def test_paths_are_those_of_the_networks(length, window, kernel):
    found = {c.kind: c for c in costs([length, 2], window=window, kernel=kernel)}
    assert found["recurrent"].path.tolist() == [length - 1, 1]
    for kind in KINDS:
        drawn = network(kind, length, window=window, kernel=kernel)
        path = int(found[kind].path[0])
        assert len(drawn.route) == path + 1
        assert drawn.route[0] == (0, 0)
        assert drawn.route[-1] == (drawn.levels - 1, length - 1)
        links = set(drawn.links)
        assert len(links) == len(drawn.links)
        assert all(pair in links for pair in zip(drawn.route, drawn.route[1:], strict=False))
        if kind == "recurrent":
            continue
        assert path == layers_needed(kind, length, window, kernel)
        by_hand = {
            ((level, int(before)), (level + 1, int(after)))
            for level in range(path)
            for before, after in np.argwhere(links_by_hand(kind, length, window, kernel, level))
        }
        assert links == by_hand


def test_costs_are_those_of_the_table():
    """The numbers of the page on complexity, which are worked out by hand there."""
    found = {c.kind: c for c in costs([25, 512, 4096], width=512, kernel=3)}
    assert found["attention"].operations.tolist() == [320_000, 134_217_728, 8_589_934_592]
    assert found["recurrent"].operations.tolist() == [6_553_600, 134_217_728, 1_073_741_824]
    assert found["convolution"].operations.tolist() == [19_660_800, 402_653_184, 3_221_225_472]
    paths = {c.kind: c.path.tolist() for c in costs([100, 200, 512], kernel=3)}
    assert paths["recurrent"] == [99, 199, 511]
    assert paths["convolution"] == [50, 100, 256]
    assert paths["dilated"] == [5, 5, 6]
    assert paths["attention"] == [1, 1, 1]
    # Exact where logarithms are rounded: 3^5 tokens take 5 layers, one more takes 6.
    assert costs([243, 244], kernel=3)[-1].path.tolist() == [5, 6]
    json.dumps([each.plain() for each in costs([3])])


@given(st.integers(1, 40), st.integers(2, 9), st.integers(1, 4))
@settings(max_examples=30)
def test_windows_count_each_pair_once(length, window, layers):
    near = costs([length], width=7, window=window, num_layers=layers)[2]
    pairs = sum(abs(i - j) < window for i in range(length) for j in range(length))
    assert near.operations.tolist() == [layers * pairs * 7]


def test_steps_that_wait_for_one_another():
    """Layer l at token t waits for the layer below and, if recurrent, for the token before."""
    for length, layers in [(1, 1), (5, 1), (6, 3), (2, 4)]:
        when = np.zeros((layers + 1, length + 1), int)
        for layer in range(1, layers + 1):
            for token in range(1, length + 1):
                when[layer, token] = 1 + max(when[layer - 1, token], when[layer, token - 1])
        found = {c.kind: int(c.steps[0]) for c in costs([length], num_layers=layers)}
        assert found["recurrent"] == when[-1, -1]
        assert {found[kind] for kind in KINDS if kind != "recurrent"} == {layers}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 0}, "length of 0"),
        ({"window": 1}, "window of 1"),
        ({"kernel": 1}, "kernel of 1"),
    ],
)
def test_what_connects_nothing_is_refused(changes, message):
    asked = {"length": 4, **changes}
    with pytest.raises(ConfigError, match=message):
        network("dilated", **asked)
    with pytest.raises(ConfigError, match=message):
        costs([asked.pop("length")], **asked)


def test_long_networks_are_not_listed():
    with pytest.raises(ConfigError, match="at most 128"):
        network("attention", 129)


# Measured


def differences(states_of, x):
    """[L] by distance: the Jacobian's norms from small changes of every number of x [L, D]."""
    squares = np.zeros(len(x))
    for token in range(x.shape[0]):
        for channel in range(x.shape[1]):
            change = torch.zeros_like(x)
            change[token, channel] = STEP
            difference = (states_of(x + change) - states_of(x - change))[-1] / (2 * STEP)
            squares[token] += float(difference.square().sum())
    return np.sqrt(squares)[::-1]


def seeded(length, width, seed, build):
    x = torch.randn((length, width), generator=torch.Generator().manual_seed(seed)).double()
    torch.manual_seed(seed)
    return x, build().double()


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@torch.no_grad()
def test_recurrent_gradients_are_the_differences(cell):
    found = recurrent_reach(
        cell, 6, width=4, num_layers=2, keep_bias=2.0, seeds=(3, 8), directions=4
    )
    for sample, seed in enumerate((3, 8)):
        x, encoder = seeded(6, 4, seed, lambda: RecurrentEncoder(4, 2, cell, keep_bias=2.0))
        expected = differences(lambda x, e=encoder: e(x[None], torch.arange(6)[None])[0], x)
        np.testing.assert_allclose(found.norms[sample], expected, rtol=1e-5)
    np.testing.assert_allclose(found.mean, found.norms.mean(0))
    np.testing.assert_allclose(found.relative, (found.norms / found.norms[:, :1]).mean(0))


@pytest.mark.parametrize("placement", ["post", "pre"])
@torch.no_grad()
def test_transformer_gradients_are_the_differences(placement):
    from heedful.nn.mixer import Context
    from heedful.nn.positions import Positions

    shape = TranslatorShape(
        width=8, num_heads=2, feedforward=16, encoder_layers=2, norm_placement=placement, window=2
    )
    found = transformer_reach(5, shape, seeds=(4,), directions=8)
    x, stack = seeded(5, 8, 4, lambda: Stack(8, translator_spec(shape, 1, 1).encoder, "encoder"))
    stack.eval()
    places = torch.arange(5)[None]
    angles = torch.arange(5)[:, None] / 10_000 ** (torch.arange(0, 8, 2) / 8)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    context = Context(Positions.of_self(places))
    expected = differences(lambda x: stack((x + waves)[None], context)[0], x)
    np.testing.assert_allclose(found.norms[0], expected, rtol=1e-5, atol=1e-9)
    # Two layers that see one token on each side feel nothing at a distance of three.
    assert found.norms[0, 2] > 1e-6
    assert not found.norms[0, 3:].any()


@torch.no_grad()
def differences_of_model(subject, reading, stack, module):
    """The same for a model: what its input module gives is changed on the way."""
    inputs = inspect.tensors(subject, [reading])
    shape = inspect.capture(subject.model, inputs, [f"{stack}.embedding"])[f"{stack}.embedding"]

    def states_of(change):
        handle = module.register_forward_hook(lambda _m, _i, embedded: embedded + change)
        try:
            return torch.from_numpy(
                inspect.capture(subject.model, inputs, [f"{stack}.output"])[f"{stack}.output"]
            )[0]
        finally:
            handle.remove()

    return differences(states_of, torch.zeros(shape.shape[1:], dtype=torch.float64))


@pytest.mark.parametrize("kind", ["translator", "causal_lm", "encoder"])
def test_gradients_of_models_are_the_differences(toys, kind):
    # Root-mean-square norms work in float32, whose differences are too rough.
    block = {"norm_placement": "pre"}
    stack = toys.stack(causal=True, block=block, final_norm={})
    subject = getattr(toys, kind)(**{"decoder": stack} if kind == "causal_lm" else {})
    subject.model.double()
    for parameter in subject.model.parameters():
        parameter.grad = None
    model, target = subject.model, "b" if kind == "translator" else None
    reading = inspect.read(subject, "fe", target)
    sides = {
        "translator": {"encoder": "source_input", None: "target_input"},
        "causal_lm": {"decoder": "input"},
        "encoder": {"encoder": "input"},
    }[kind]
    for stack, module in sides.items():
        name = stack or "decoder"
        found = model_reach(subject, [reading], stack, directions=99)
        expected = differences_of_model(subject, reading, name, getattr(model, module))
        np.testing.assert_allclose(found.norms[0], expected, rtol=1e-5)
        assert found.name == name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_few_directions_estimate_the_norm():
    """Over many draws of networks, the mean square of the estimates is that of the norms."""
    settings = {"width": 12, "num_layers": 1, "seeds": range(60)}
    exact = recurrent_reach("gru", 3, directions=12, **settings).norms
    rough = recurrent_reach("gru", 3, directions=3, **settings).norms
    ratio = np.square(rough).mean(0) / np.square(exact).mean(0)
    np.testing.assert_allclose(ratio, 1, atol=0.15)
    assert not np.allclose(rough, exact)


def test_texts_of_different_lengths_stand_side_by_side(toys):
    subject = toys.encoder()
    found = model_reach(subject, inspect.read_all(subject, ["fed", "a"]), directions=4)
    alone = model_reach(subject, [inspect.read(subject, "a")], directions=4)
    short = alone.norms.shape[1]
    np.testing.assert_allclose(found.norms[1, :short], alone.norms[0], rtol=1e-5)
    assert np.isnan(found.norms[1, short:]).all()
    np.testing.assert_allclose(found.mean[short:], found.norms[0, short:])
    assert math.isfinite(sum(found.plain()["relative"]))


def test_images_have_a_reach_too(toys):
    subject = toys.vision()
    image = np.random.default_rng(0).normal(size=(3, 12, 12))
    assert model_reach(subject, [inspect.see(subject, image)]).norms.shape == (1, 10)


def test_what_cannot_be_measured(toys):
    subject = toys.encoder()
    with pytest.raises(ModelError, match="no decoder"):
        model_reach(subject, [inspect.read(subject, "fed")], "decoder")
    with pytest.raises(ConfigError, match="nothing to measure"):
        model_reach(subject, [])


def test_drawing_weights_leaves_the_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    recurrent_reach("rnn", 2, width=2, num_layers=1, seeds=(1,))
    assert torch.equal(torch.rand(3), expected)
