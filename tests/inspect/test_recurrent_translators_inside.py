"""Looking into recurrent translators and convolutions, by the same calls as into Transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful import inspect
from heedful.apps import pruning
from heedful.errors import ModelError

RECURRENT = {"recurrent": {"attention": "general", "feeding": "output", "readout": "tanh"}}
FIXED = {"recurrent": {"cell": "gru", "feeding": "context"}}
CONVOLUTIONS = {"convolution": {}}


def translator(toys, options):
    return toys.translator(num_heads=8, feedforward=2048, **options)  # the defaults: unset


@pytest.mark.parametrize("options", [RECURRENT, CONVOLUTIONS])
def test_attention_is_shown_and_looking_changes_nothing(toys, options):
    subject = translator(toys, options)
    reading = inspect.read(subject, "abc dag", "hip")
    shown = inspect.attention(subject, reading)
    layers = 1 if "recurrent" in options else 3
    assert (shown.part, shown.layers, shown.heads) == ("cross", tuple(range(layers)), (0,))
    np.testing.assert_allclose(shown.weights.sum(-1), 1, atol=1e-5)
    inputs = inspect.tensors(subject, [reading])
    with torch.inference_mode():
        plain = subject.model(*inputs)
    found = inspect.capture(subject.model, inputs, ["decoder.*.cross.context", "decoder.output"])
    np.testing.assert_array_equal(found["decoder.output"], plain.numpy())
    states = inspect.capture(subject.model, inputs, ["encoder.output"])["encoder.output"]
    if "recurrent" in options:
        expected = shown.weights[0, 0] @ states[0]
        np.testing.assert_allclose(found["decoder.0.cross.context"][0, 0], expected, atol=1e-5)


@pytest.mark.parametrize("options", [RECURRENT, CONVOLUTIONS])
def test_words_are_aligned_and_parts_taken_away(toys, options):
    subject = translator(toys, options)
    readings = inspect.read_all(subject, ["abc dag", "ha"], ["hip", "ab cd"])
    assert inspect.word_attention(subject, readings)[0].weights.shape[-1] == 2
    address = "decoder.0.cross"
    assert address in pruning.parts(subject.model)
    inputs = inspect.tensors(subject, readings[:1])
    with pruning.ablated(subject.model, address):
        output = inspect.capture(subject.model, inputs, [f"{address}.output"])[f"{address}.output"]
    assert not output.any()
    step = inspect.next_token(subject, "abc", subject.target.encode("ab"))
    assert step.memory_bytes > 0
    assert step.cache_sizes[-1].bytes == step.cache_sizes[0].bytes  # states do not grow


def test_a_fixed_vector_has_no_attention_and_says_so(toys):
    subject = translator(toys, FIXED)
    reading = inspect.read(subject, "abc dag", "hip")
    with pytest.raises(ModelError, match="No layer of this model has attention weights"):
        inspect.attention(subject, reading)
    assert "decoder.0.cross" in pruning.parts(subject.model)
