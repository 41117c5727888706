"""Who hears whom: a silent token changes what a mixer gives, with weights and without."""

from __future__ import annotations

import numpy as np
import pytest

from heedful import inspect
from heedful.errors import ConfigError, ModelError

TEXT, SECOND = "abc dag hip", "kind of"
PLAIN = {"norm_placement": "before"}
UNSET = {"num_heads": 8, "feedforward": 2048}  # the defaults: recurrent layers have no heads


def average(toys):
    part = {"kind": "average_attention", "feedforward": 0, "gate": False}
    layer = {"name": "mixer", **PLAIN, "part": part}
    network = {"name": "feedforward", **PLAIN, "part": {"kind": "feedforward", "width": 24}}
    block = {"sublayers": [layer, network]}
    return toys.causal_lm(decoder={"num_layers": 2, "pattern": [block]})


def test_an_average_hears_every_token_by_its_share(toys):
    subject = average(toys)
    reading = inspect.read(subject, TEXT)
    inputs = inspect.tensors(subject, [reading])
    found = inspect.capture(subject.model, inputs, ["decoder.1.mixer.*"])
    x = found["decoder.1.mixer.input"][0].astype(np.float64)
    heard = inspect.influence(subject, reading)
    assert (heard.address, heard.kind, heard.tokens) == (
        "decoder.1.mixer",
        "average_attention",
        reading.tokens("decoder").pieces,
    )
    for i in range(len(x)):
        whole = np.linalg.norm(x[: i + 1].mean(0))
        shares = np.linalg.norm(x, axis=1) / (i + 1) / whole
        np.testing.assert_allclose(heard.changes[i, : i + 1], shares[: i + 1], rtol=1e-4)
        assert not heard.changes[i, i + 1 :].any()
    before, after = heard.by_distance
    assert before[2] == pytest.approx(np.mean([heard.changes[i, i - 2] for i in range(2, len(x))]))
    assert after[0] == before[0]
    assert not after[1:].any()


@pytest.mark.parametrize(
    ("options", "stack"),
    [
        ({"positions": "t5"}, "encoder"),
        ({"mixer": "mamba"}, "decoder"),
        ({"encoder_mixer": "linformer"}, "encoder"),
        (UNSET | {"recurrent": {"cell": "gru", "direction": "backward"}}, "encoder"),
        (UNSET | {"recurrent": {"attention": "dot", "readout": "tanh"}}, "decoder"),
        (UNSET | {"convolution": {}}, "decoder"),
    ],
)
def test_the_mixer_alone_gives_what_it_gives_in_the_model(toys, monkeypatch, options, stack):
    subject = toys.translator(**options)
    reading = inspect.read(subject, TEXT, SECOND)
    heard = inspect.influence(subject, reading, stack, 0)
    block, place = subject.model.stacks()[stack].blocks[0], f"{heard.address}.output"
    part = next(each for each in block.parts() if hasattr(each, "work"))
    name = "step" if hasattr(part, "read") else "forward"
    inputs = inspect.tensors(subject, [reading])
    whole = inspect.capture(subject.model, inputs, [place])[place][0]
    silent, call = 3, getattr(part, name)

    def without(x, *arguments):
        x = x.clone()
        x[:, silent] = 0.0
        return call(x, *arguments)

    monkeypatch.setattr(part, name, without)
    changed = inspect.capture(subject.model, inputs, [place])[place][0]
    expected = np.linalg.norm(changed - whole, axis=1) / np.linalg.norm(whole, axis=1)
    np.testing.assert_allclose(heard.changes[:, silent], expected, rtol=1e-3, atol=1e-5)
    assert expected.max() > 0.01


def test_what_no_token_can_hear_is_0(toys):
    subject = toys.translator(**UNSET, convolution={"kernel_width": 3})
    reading = inspect.read(subject, TEXT, SECOND)
    for stack, near in (("encoder", (-1, 0, 1)), ("decoder", (-2, -1, 0))):
        changes = inspect.influence(subject, reading, stack).changes
        places = np.arange(len(changes))
        offset = places[None] - places[:, None]  # from the row's token to the column's
        assert ((changes > 0) == np.isin(offset, near)).all()
    convolved = toys.translator(mixer="s4d")  # by Fourier transforms, whose rounding goes anywhere
    changes = inspect.influence(convolved, reading, "decoder").changes
    assert ((changes > 0) == np.tri(len(changes), dtype=bool)).all()


def test_long_texts_are_measured_in_parts(toys, monkeypatch):
    subject = average(toys)
    reading = inspect.read(subject, TEXT)
    once = inspect.influence(subject, reading).changes
    monkeypatch.setattr("heedful.inspect.silent_tokens._TOKENS_AT_ONCE", 25)
    np.testing.assert_allclose(inspect.influence(subject, reading).changes, once, atol=1e-6)


def test_what_has_no_influence_is_said(toys):
    network = {"name": "feedforward", **PLAIN, "part": {"kind": "feedforward", "width": 24}}
    pattern = [{"sublayers": [network]}]
    subject = toys.causal_lm(decoder={"num_layers": 1, "pattern": pattern})
    reading = inspect.read(subject, TEXT)
    with pytest.raises(ModelError, match="no token hears another"):
        inspect.influence(subject, reading)
    with pytest.raises(ConfigError, match="no layer with index 4"):
        inspect.influence(average(toys), reading, layer=4)
    with pytest.raises(ModelError, match="no encoder"):
        inspect.influence(average(toys), reading, "encoder")
