"""Captures by address, attention as arrays with tokens, and that looking changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful import inspect
from heedful.errors import ConfigError, DataError, ModelError
from heedful.nn.capture import Capture
from heedful.pipelines.translation import TranslationPipeline

SUBLAYER = {"input", "output", "residual", "stream"}
ATTENTION = SUBLAYER | {"query", "key", "value", "scores", "weights", "context"}
FEEDFORWARD = SUBLAYER | {"inner"}
IMAGE = np.random.default_rng(0).normal(size=(3, 12, 12))


def readings(toys):
    translator, causal, encoder, vision = (
        toys.translator(),
        toys.causal_lm(),
        toys.encoder(),
        toys.vision(),
    )
    return {
        "translator": (translator, inspect.read(translator, "abc de", "fgh")),
        "causal": (causal, inspect.read(causal, "abc de")),
        "encoder": (encoder, inspect.read(encoder, "abc de")),
        "vision": (vision, inspect.see(vision, IMAGE)),
    }


def expected_addresses(stack, layers, *, cross=False):
    kinds = {"self": ATTENTION, "feedforward": FEEDFORWARD} | (
        {"cross": ATTENTION} if cross else {}
    )
    blocks = {
        f"{stack}.{n}.{kind}.{thing}"
        for n in range(layers)
        for kind, things in kinds.items()
        for thing in things
    }
    outputs = {f"{stack}.{n}.output" for n in range(layers)}
    return blocks | outputs | {f"{stack}.embedding", f"{stack}.output"}


def test_addresses_of_every_class(toys):
    found = {
        name: set(inspect.shapes(subject.model, inspect.tensors(subject, [reading])))
        for name, (subject, reading) in readings(toys).items()
    }
    one = expected_addresses("encoder", 2)
    assert found == {
        "translator": one | expected_addresses("decoder", 3, cross=True),
        "causal": expected_addresses("decoder", 2),
        "encoder": one,
        "vision": one,
    }


def test_shapes_on_the_way(toys):
    subject = toys.translator(num_kv_heads=2)
    inputs = inspect.tensors(subject, [inspect.read(subject, "abc de", "fgh")])
    found = inspect.shapes(subject.model, inputs)
    source, target = inputs[0].shape[1], inputs[2].shape[1]
    assert (source, target) == (7, 4)
    assert found["encoder.embedding"] == (1, source, 16)
    assert found["decoder.2.cross.query"] == (1, 4, target, 4)
    assert found["decoder.2.cross.key"] == (1, 2, source, 4)
    assert found["decoder.2.cross.weights"] == (1, 4, target, source)
    assert found["decoder.0.self.scores"] == (1, 4, target, target)
    assert found["decoder.1.feedforward.inner"] == (1, target, 32)
    assert found["decoder.2.output"] == (1, target, 16)
    assert next(iter(found)) == "encoder.embedding"


@torch.no_grad()
def test_looking_changes_no_bit(toys):
    for subject, reading in readings(toys).values():
        inputs = inspect.tensors(subject, [reading])
        plain = subject.model(*inputs)
        everything = Capture(["**"])
        assert torch.equal(subject.model(*inputs, capture=everything), plain)
        before = {name: t.clone() for name, t in subject.model.state_dict().items()}
        inspect.capture(subject.model, inputs, ["**"])
        assert all(torch.equal(t, before[n]) for n, t in subject.model.state_dict().items())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in subject.model.modules())
        stack = inputs and ("decoder" if hasattr(subject.model, "decoder") else "encoder")
        last = inspect.capture(subject.model, inputs, [f"{stack}.output"])[f"{stack}.output"]
        scale = getattr(subject.model.spec, "output_scale", None)
        assert scale is None
        assert np.array_equal(last, plain.numpy())


def test_a_model_in_training_is_looked_at_without_dropout(toys):
    subject = toys.translator(dropout=0.5, attention_dropout=0.5)
    reading = inspect.read(subject, "abc de")
    before = inspect.attention(subject, reading).weights
    subject.model.train()
    assert inspect.read(subject, "abc de").target == reading.target
    assert np.array_equal(inspect.attention(subject, reading).weights, before)
    assert all(module.training for module in subject.model.modules())


def test_what_is_captured_hangs_together(toys):
    """Weights are the softmax of the scores, the context mixes the values, streams are sums."""
    for subject, reading in readings(toys).values():
        inputs = inspect.tensors(subject, [reading])
        found = inspect.capture(subject.model, inputs, ["**"])
        places = [a.removesuffix(".weights") for a in found if a.endswith(".weights")]
        for place in places:
            scores = torch.from_numpy(found[f"{place}.scores"])
            weights = found[f"{place}.weights"]
            np.testing.assert_allclose(weights, scores.softmax(-1), rtol=1e-5, atol=1e-6)
            mixed = weights @ found[f"{place}.value"]
            np.testing.assert_allclose(found[f"{place}.context"], mixed, rtol=1e-5, atol=1e-5)
        stack, block = places[-1].split(".")[0], places[-1].rsplit(".", 1)[0]
        pre = subject.model.spec.kind == "causal_lm"
        assert np.array_equal(found[f"{block}.feedforward.stream"], found[f"{block}.output"])
        moved = not np.array_equal(
            found[f"{block}.feedforward.stream"], found[f"{block}.feedforward.residual"]
        )
        assert moved == (not pre)
        first = found[f"{stack}.embedding"] + found[f"{stack}.0.self.output"]
        np.testing.assert_allclose(found[f"{stack}.0.self.residual"], first, rtol=1e-5, atol=1e-5)
        if not pre:
            assert np.array_equal(found[f"{stack}.0.self.input"], found[f"{stack}.embedding"])


def test_scores_are_hidden_where_nothing_is_seen(toys):
    subject = toys.causal_lm()
    inputs = inspect.tensors(subject, [inspect.read(subject, "abcd")])
    scores = inspect.capture(subject.model, inputs, ["decoder.1.self.scores"])
    above = np.triu(np.ones((5, 5), bool), k=1)
    assert np.array_equal(np.isneginf(scores["decoder.1.self.scores"][0, 0]), above)


def test_wildcards(toys):
    subject, reading = readings(toys)["translator"]
    inputs = inspect.tensors(subject, [reading])

    def met(*patterns):
        return list(inspect.capture(subject.model, inputs, patterns))

    assert met("encoder.*.output") == ["encoder.0.output", "encoder.1.output"]
    assert met("encoder.*.*.weights", "decoder.2.output") == [
        "encoder.0.self.weights",
        "encoder.1.self.weights",
        "decoder.2.output",
    ]
    assert met("**.cross.key") == [f"decoder.{n}.cross.key" for n in range(3)]
    assert len(met("**")) == len(inspect.shapes(subject.model, inputs))


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("decoder.1.cros.weights", "decoder.1.cross.weights"),
        ("encoder.1.self.wieghts", "encoder.1.self.weights"),
        ("encoder.7.*", "Near ones"),
        ("?!", "`shapes` lists"),
    ],
)
def test_unknown_addresses_name_near_ones(wrong, near, toys):
    subject, reading = readings(toys)["translator"]
    with pytest.raises(ModelError) as caught:
        inspect.capture(subject.model, inspect.tensors(subject, [reading]), ["**.key", wrong])
    assert repr(wrong) in str(caught.value)
    assert near in str(caught.value)


def test_maps_have_tokens(toys, monkeypatch):
    subject = toys.translator()
    reading = inspect.read(subject, "abc", "fg")
    cross = inspect.attention(subject, reading)
    assert cross.part == "cross"
    assert cross.weights.shape == (3, 4, 3, 4)
    assert (cross.columns[-1], cross.rows[-1]) == tuple(
        subject.source.token(id) for id in (subject.source.eos, subject.target.eos)
    )
    assert "".join(cross.columns[:-1]) == "abc"
    assert "".join(cross.rows[:-1]) == "fg"
    own = inspect.attention(subject, reading, "decoder")
    assert own.rows == own.columns == (subject.target.token(subject.target.bos), *"fg")
    np.testing.assert_allclose(cross.weights.sum(-1), 1, rtol=1e-5)
    some = inspect.attention(subject, reading, layers=[2, 0], heads=[3], rows=[1])
    assert np.array_equal(some.weights, cross.weights[[2, 0]][:, [3]][:, :, [1]])
    assert some.rows == (cross.rows[1],)
    assert some.plain()["layers"] == [2, 0]
    monkeypatch.setattr("heedful.inspect.attention_maps.MOST_CELLS", 3 * 4)
    inspect.attention(subject, reading, layers=[0], rows=[0], heads=[1, 2, 3])
    with pytest.raises(ConfigError, match=r"144 weights .* 12 .*Choose layers, heads or rows"):
        inspect.attention(subject, reading)
    assert inspect.parts_of(subject.model) == ("encoder", "decoder", "cross")


def test_the_models_own_output_is_that_of_translate(toys):
    subject = toys.translator()
    pipeline = TranslationPipeline(subject.model, subject.tokenizers)
    texts = ["abc de", "f", "ponm", "abc de abc"]
    plain = pipeline.translate(texts)
    seen = inspect.read_all(subject, texts)
    for each in seen:
        inspect.attention(subject, each)
    assert [each.target for each in seen] == [str(t) for t in plain]
    assert [each.predicted.pieces[:-1] for each in seen] == [t.tokens for t in plain]
    assert pipeline.translate(texts) == plain
    # Attention of a hypothesis is that of its re-scoring, as alignments use it.
    own = inspect.attention(subject, seen[0], "cross").weights
    inputs = inspect.tensors(subject, seen[:1])
    again = subject.model.cross_attention(*inputs)[:, 0]
    np.testing.assert_allclose(own, again.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_language_model_may_continue(toys):
    subject = toys.causal_lm()
    alone = inspect.read(subject, "abc")
    assert alone.target is None
    assert alone.decoder.pieces[1:] == tuple("abc")
    given = inspect.read(subject, "abc", "de")
    assert given.decoder.pieces[1:] == tuple("abcde")
    from heedful.pipelines.text_generation import GenerationPipeline
    from heedful.search.search_settings import GenerationSettings

    settings = GenerationSettings(min_length=2, max_length=5)
    own = inspect.read(subject, "abc", search=settings)
    made = GenerationPipeline(subject.model, subject.source).generate(["abc"], settings=settings)
    assert own.target == made[0].text
    assert own.decoder.ids == (*alone.decoder.ids, *made[0].tokens)
    assert 2 <= len(made[0].tokens) <= 5


def test_neighbours_in_a_batch_change_nothing(toys):
    subject = toys.translator()
    seen = inspect.read_all(subject, ["abc", "abc de fgh"], ["de", "fghijk"])
    both = inspect.capture(subject.model, inspect.tensors(subject, seen), ["**.weights"])
    for address, weights in both.items():
        alone = inspect.capture(subject.model, inspect.tensors(subject, seen[:1]), [address])
        rows, columns = alone[address].shape[2:]
        np.testing.assert_allclose(
            weights[0, :, :rows, :columns], alone[address][0], rtol=1e-5, atol=1e-6
        )
        assert not weights[0, :, :, columns:].any()


def test_what_cannot_be_looked_at(toys):
    translator, causal, encoder, vision = (s for s, _ in readings(toys).values())
    for empty in ("", "  \n"):
        with pytest.raises(DataError, match="no text to look at"):
            inspect.read(translator, empty)
    with pytest.raises(DataError, match=r"100001 tokens .* 32 .*Give a shorter text|100000 tokens"):
        inspect.read(translator, "a" * 100_000)
    with pytest.raises(DataError, match="more than the 24"):
        inspect.read(causal, "a" * 100)
    with pytest.raises(DataError, match="more than the 24"):
        inspect.read(encoder, "a" * 100)
    with pytest.raises(DataError, match="several lines"):
        inspect.read(translator, "a\nb")
    with pytest.raises(DataError, match="1 targets for 2"):
        inspect.read_all(translator, ["a", "b"], ["c"])
    with pytest.raises(ModelError, match=r"no cross attention.*It has: decoder"):
        inspect.attention(causal, inspect.read(causal, "a"), "cross")
    with pytest.raises(ConfigError, match=r"no attention called 'middle'"):
        inspect.attention(causal, inspect.read(causal, "a"), "middle")
    with pytest.raises(ConfigError, match=r"no layer with index 2.*0 to 1"):
        inspect.attention(causal, inspect.read(causal, "a"), layers=[2])
    with pytest.raises(ConfigError, match=r"no head with index -1"):
        inspect.attention(causal, inspect.read(causal, "a"), heads=[-1])
    with pytest.raises(ModelError, match="takes no text"):
        inspect.read(vision, "a")
    with pytest.raises(ModelError, match="takes no images"):
        inspect.see(causal, IMAGE)
    with pytest.raises(ModelError, match="how two texts"):
        inspect.read(encoder, "a", "b")
    with pytest.raises(DataError, match="Unicode"):
        inspect.read(causal, "a\ud800")
    assert inspect.read(translator, "a\x00b\u202e😀").encoder is not None
