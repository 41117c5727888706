"""The way through a block: every part is what its reads make of it, so the diagram is true."""

from __future__ import annotations

import json

import numpy as np
import pytest

from heedful import inspect
from heedful.errors import ConfigError, ModelError
from heedful.inspect.block_flow import block_flow
from heedful.inspect.residual_stream import contributions

EXPERTS = {"width": 8, "experts": {"num_experts": 3, "per_token": 2}}


def cases(toys):
    rms = {"norm": {"kind": "rms"}, "norm_placement": "pre"}
    yield "post", toys.translator(), "decoder"
    yield "post", toys.translator(), "encoder"
    yield "pre", toys.translator(norm_placement="pre", positions="t5"), "decoder"
    yield "pre", toys.causal_lm(), "decoder"
    routed = toys.stack(causal=True, block={"feedforward": EXPERTS, **rms})
    yield "pre", toys.causal_lm(decoder=routed), "decoder"
    yield "post", toys.encoder(), "encoder"
    yield "post", toys.translator(positions="alibi", activation="swiglu"), "encoder"


def normed(x, norm):
    """By the formula, in float64."""
    weight = norm.weight.detach().numpy()
    if hasattr(norm, "epsilon"):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.epsilon) * weight
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
    return centred / deviation * weight + norm.bias.detach().numpy()


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def expected(part, read, block, stack):
    """What a part should hold, from what it reads; None for what the maps of the block make."""
    values = [read[key] for key in part.reads]
    if part.role == "sum":
        return values[0] + values[1]
    if part.role == "norm":
        norms = {
            "self": block.self_attention_norm,
            "cross": block.cross_attention_norm,
            "feedforward": block.feedforward_norm,
            "final": stack.final_norm,
        }
        return normed(values[0], norms[part.key.partition(".")[0]])
    if part.role == "scores":
        query, key, *bias = values
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        scores = scores + (bias[0] if bias else 0)
        return np.where(np.isfinite(read[part.key]), scores, -np.inf)
    if part.role == "weights":
        return softmax(values[0])
    if part.role == "context":
        return values[0] @ values[1]
    if part.key == "output":
        return values[0]
    linear = {
        "self.query": ("self_attention", 0),
        "self.key": ("self_attention", 1),
        "self.value": ("self_attention", 2),
        "cross.query": ("cross_attention", 0),
    }.get(part.key)
    if linear:
        module = getattr(block, linear[0])
        weight, bias = module.projection.weight, module.projection.bias
        width = module.num_heads * module.head_width
        rows = slice(linear[1] * width, (linear[1] + 1) * width)
        made = values[0] @ weight.detach().numpy()[rows].T + bias.detach().numpy()[rows]
        return made.reshape(1, -1, module.num_heads, module.head_width).swapaxes(1, 2)
    if part.role == "output" and part.place in ("self", "cross"):
        module = getattr(block, f"{part.place}_attention").output
        flat = values[0].swapaxes(1, 2).reshape(1, -1, module.in_features)
        return flat @ module.weight.detach().numpy().T + module.bias.detach().numpy()
    return None


@pytest.mark.parametrize("number", range(7))
def test_every_part_is_made_of_what_it_reads(toys, number):
    placement, subject, stack_name = list(cases(toys))[number]
    model = subject.model
    reading = inspect.read(
        subject, "fed a", "bad" if hasattr(model, "encoder") and hasattr(model, "decoder") else None
    )
    stack = getattr(model, stack_name)
    for layer in range(len(stack.blocks)):
        found = block_flow(subject, reading, stack_name, layer)
        assert found.norm_first == (placement == "pre")
        spec = getattr(model.spec, stack_name)
        assert spec.block.norm_placement == placement
        addresses = [part.address for part in found.parts]
        values = inspect.capture(model, inspect.tensors(subject, [reading]), addresses)
        read = {part.key: values[part.address].astype(np.float64) for part in found.parts}
        checked = set()
        seen = set()
        for part in found.parts:
            assert set(part.reads) <= seen  # each after all that it reads
            seen.add(part.key)
            assert part.shape == read[part.key].shape
            assert len(part.axes) == len(part.shape)
            wanted = expected(part, read, stack.blocks[layer], stack)
            if wanted is not None:
                checked.add(part.role)
                np.testing.assert_allclose(read[part.key], wanted, rtol=1e-4, atol=1e-5)
            if part.sizes is not None:
                lengths = np.sqrt((read[part.key][0] ** 2).sum(-1))
                lengths = lengths if lengths.ndim == 1 else lengths.mean(0)
                np.testing.assert_allclose(part.sizes, lengths, rtol=1e-5)
                assert part.figures["mean length"] == pytest.approx(lengths.mean())
                assert len(part.tokens) == len(lengths)
        for part in found.parts:
            if part.role != "bias":
                assert part.vectors is not None
                of_heads = read[part.key][0]
                first = of_heads[0] if of_heads.ndim == 3 else of_heads
                np.testing.assert_array_equal(part.vectors, first)
        assert {"sum", "norm", "scores", "weights", "context", "output"} <= checked
        # Everything but what leaves is read by something.
        used = {key for part in found.parts for key in part.reads}
        assert seen - used == {found.parts[-1].key}
        keys = [part.key for part in found.parts]
        assert ("cross.memory" in keys) == (stack_name == "decoder" and "cross.query" in keys)
        assert (keys[-1] == "final.norm") == (
            spec.final_norm is not None and layer == len(stack.blocks) - 1
        )
        json.dumps(found.plain())


def test_norms_stand_where_the_spec_puts_them(toys):
    """Before a sub-layer a norm reads the stream and is off it; after one it is the stream."""
    for placement in ("post", "pre"):
        subject = toys.translator(norm_placement=placement)
        reading = inspect.read(subject, "fed", "bad")
        parts = {p.key: p for p in block_flow(subject, reading, "decoder", 0).parts}
        if placement == "pre":
            assert parts["cross.norm"].reads == ("self.sum",)
            assert not parts["cross.norm"].on_stream
            assert parts["cross.query"].reads == ("cross.norm",)
            assert parts["cross.sum"].reads == ("self.sum", "cross.output")
        else:
            assert parts["cross.norm"].reads == ("cross.sum",)
            assert parts["cross.norm"].on_stream
            assert parts["cross.query"].reads == ("self.norm",)
            assert parts["cross.sum"].reads == ("self.norm", "cross.output")
        assert parts["cross.key"].reads == ("cross.memory",)
        assert parts["cross.key"].tokens == reading.encoder.pieces
        assert parts["self.query"].about.startswith("The query of each token")
        assert "own position" in parts["self.weights"].about
        assert "every key" in parts["cross.weights"].about


def test_defaults_and_mistakes(toys):
    subject = toys.translator()
    reading = inspect.read(subject, "fed", "bad")
    usual = block_flow(subject, reading)
    assert (usual.stack, usual.layer) == ("decoder", 2)
    assert block_flow(toys.encoder(), inspect.read(toys.encoder(), "fed")).stack == "encoder"
    with pytest.raises(ConfigError, match="no layer with index 3"):
        block_flow(subject, reading, "decoder", 3)
    with pytest.raises(ConfigError, match="no layer with index -2"):
        block_flow(subject, reading, "decoder", -2)
    with pytest.raises(ModelError, match="no decoder"):
        block_flow(toys.encoder(), inspect.read(toys.encoder(), "fed"), "decoder")


def test_shares_add_up_and_are_projections(toys):
    for placement in ("post", "pre"):
        subject = toys.translator(norm_placement=placement)
        reading = inspect.read(subject, "fed", "bad")
        found = contributions(subject, reading, "decoder")
        inputs = inspect.tensors(subject, [reading])
        output = inspect.capture(subject.model, inputs, ["decoder.output"])["decoder.output"][0]
        for row, state in enumerate(output.astype(np.float64)):
            expected = found.vectors[:, row].astype(np.float64) @ state / (state @ state)
            np.testing.assert_allclose(found.shares[:, row], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.shares.sum(0), 1, rtol=1e-6)
