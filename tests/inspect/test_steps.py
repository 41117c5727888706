"""One query through attention: each stage follows from the one before, and ends in the model's."""

from __future__ import annotations

import numpy as np
import pytest

from heedful import inspect
from heedful.errors import ConfigError, ModelError

HEAD = {"num_heads": 4, "mask": {"kind": "causal"}}
BIASES = {
    "none": {},
    "alibi": {"position_bias": {"kind": "alibi"}},
    "relative": {"position_bias": {"kind": "relative_keys", "max_distance": 3}},
    "grouped": {"num_kv_heads": 2},
    "rotary": {"rotary": {}, "softcap": 2.0, "scale": 0.7},
    "window": {"mask": {"kind": "window", "size": 2}},
}


def causal(toys, changes):
    attention = HEAD | changes
    stack = toys.stack(block={"self_attention": attention, "feedforward": {"width": 24}})
    return toys.causal_lm(decoder=stack)


def agree(subject, reading, part, layer, head, row):
    """Check every stage, and give the stages."""
    found = inspect.attention_steps(subject, reading, part, layer=layer, head=head, row=row)
    place = found.address
    whole = inspect.capture(subject.model, inspect.tensors(subject, [reading]), [f"{place}.*"])
    heads = whole[f"{place}.query"].shape[1] // whole[f"{place}.key"].shape[1]
    for name, value, at in (
        ("query", found.query, head),
        ("context", found.context, head),
        ("weights", found.weights, head),
        ("scores", found.scores, head),
    ):
        assert np.array_equal(value, whole[f"{place}.{name}"][0, at, row])
    assert np.array_equal(found.keys, whole[f"{place}.key"][0, head // heads])
    assert np.array_equal(found.values, whole[f"{place}.value"][0, head // heads])
    drawn = inspect.attention(subject, reading, part, layers=[layer], heads=[head], rows=[row])
    assert np.array_equal(found.weights, drawn.weights[0, 0, 0])
    assert found.columns == drawn.columns
    assert found.rows[row] == drawn.rows[0]

    added = 0 if found.bias is None else found.bias
    seen = found.visible
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose((found.scaled + added)[seen], found.scores[seen], **close)
    shares = found.exponentials / found.exponentials.sum()
    np.testing.assert_allclose(shares, found.weights, **close)
    np.testing.assert_allclose(found.parts.sum(0), found.context, **close)
    assert (found.weights[~seen] == 0).all()
    return found


@pytest.mark.parametrize("name", BIASES)
def test_stages_of_a_language_model(toys, name):
    subject = causal(toys, BIASES[name])
    reading = inspect.read(subject, "abc de fa")
    for row in (0, 4, 8):
        found = agree(subject, reading, "decoder", 1, 2, row)
        first = max(0, row - 1) if name == "window" else 0
        reach = row + 2 if name == "window" else row + 1
        assert found.visible.tolist() == [first <= key < reach for key in range(10)]
        if name == "alibi":  # slopes of 4 heads: 1/4, 1/16, 1/64 …
            np.testing.assert_allclose(found.bias, [-abs(row - k) / 64 for k in range(10)])
        assert (found.bias is not None) == (name in ("alibi", "relative"))
        assert found.rotary == (name == "rotary")
        assert found.factor == pytest.approx(0.7 if name == "rotary" else 0.5)
        assert found.softcap == (2.0 if name == "rotary" else None)


def test_stages_of_every_part(toys):
    for positions in ("sinusoidal", "t5"):
        subject = toys.translator(positions=positions)
        reading = inspect.read(subject, "abc de", "fgh")
        for part, layer in (("encoder", 0), ("decoder", 2), ("cross", 1)):
            found = agree(subject, reading, part, layer, 3, 2)
            assert (found.bias is not None) == (positions == "t5" and part != "cross")


def test_what_is_not_there_is_said(toys):
    subject = toys.encoder()
    reading = inspect.read(subject, "abc")
    with pytest.raises(ModelError, match="no cross attention"):
        inspect.attention_steps(subject, reading, "cross", layer=0, head=0, row=0)
    for wrong in ({"layer": 2}, {"head": 4}, {"row": 5}, {"row": -1}):
        asked = {"layer": 0, "head": 0, "row": 0} | wrong
        with pytest.raises(ConfigError, match=f"There is no {next(iter(wrong))}"):
            inspect.attention_steps(subject, reading, "encoder", **asked)
