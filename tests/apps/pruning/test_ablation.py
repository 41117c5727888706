"""Parts taken away: exactly those, nothing left behind, and what it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful import inspect
from heedful.apps import pruning
from heedful.apps.evaluation.bootstrap import paired_ratios
from heedful.device import Precision
from heedful.engines.inference.prepare import prepare
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.block import Block
from heedful.nn.norms import RMSNorm

TEXTS, TARGETS = ["abc de", "fgh", "ij kl mnop"], ["ab", "cdefg", "hi jk"]


def inputs_of(subject):
    if subject.tokenizers is None:
        generator = np.random.default_rng(1)
        images = generator.normal(size=(2, 3, 12, 12)).astype(np.float32)
        return [inspect.see(subject, image) for image in images]
    paired = subject.model.spec.kind == "translator"
    return inspect.read_all(subject, TEXTS, TARGETS if paired else None)


def run(subject, readings):
    with torch.no_grad():
        return subject.model(*inspect.tensors(subject, readings))


@pytest.fixture(scope="module")
def family(toys):
    pre = {"norm_placement": "pre", "norm": "rms"}
    return {
        "post": toys.translator(),
        "pre": toys.translator(**pre, positions="rotary", num_kv_heads=2),
        "t5": toys.translator(positions="t5"),
        "alibi": toys.translator(positions="alibi"),
        "learned": toys.translator(positions="learned"),
        "lm": toys.causal_lm(),
        "encoder": toys.encoder(),
        "vision": toys.vision(),
    }


FAMILY = ["post", "pre", "t5", "alibi", "learned", "lm", "encoder", "vision"]


@pytest.mark.parametrize("name", FAMILY)
def test_every_part_does_something_and_comes_back_bit_for_bit(family, name):
    subject = family[name]
    readings = inputs_of(subject)
    before = run(subject, readings)
    modules = [id(module) for module in subject.model.modules()]
    random = torch.get_rng_state()
    means = pruning.mean_outputs(subject, readings)
    # What tells these apart from the first are their positions.
    few = name in ("t5", "alibi", "learned")
    everything = pruning.parts(subject.model, "**.positions" if few else "**")
    assert len(everything) >= (2 if few else 20)
    for address in everything:
        for how in ("off", "mean") if address in means else ("off",):
            with pruning.ablated(subject.model, address, how, means=means) as named:
                assert named == (address,)
                assert not torch.equal(run(subject, readings), before), (address, how)
        assert torch.equal(run(subject, readings), before), address
    assert [id(module) for module in subject.model.modules()] == modules
    assert torch.equal(torch.get_rng_state(), random)


def by_hand(subject, reading, address):
    """The stream of a post-norm encoder without one part, by the paper's formulas."""
    stack = subject.model.encoder
    inputs = inspect.tensors(subject, [reading])
    x = inspect.capture(subject.model, inputs, ["encoder.embedding"])["encoder.embedding"][0]
    x = torch.from_numpy(x).double()
    if address == "encoder.positions":
        x = x - subject.model.source_input.positions(inputs[1])[0].double()

    def linear(layer, x):
        return x @ layer.weight.double().T + layer.bias.double()

    def norm(layer, x, place):
        if f"{place}.norm" == address:
            return x
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt()
        return scaled * layer.weight.double() + layer.bias.double()

    for number, block in enumerate(stack.blocks):
        place = f"encoder.{number}.self"
        own = block.self_attention
        q, k, v = (
            (x @ w.double().T + b.double()).view(len(x), 4, 4).transpose(0, 1)
            for w, b in zip(
                own.projection.weight.chunk(3), own.projection.bias.chunk(3), strict=True
            )
        )
        scale = 1.0 if f"{place}.scale" == address else 0.5
        mixed = torch.softmax(scale * q @ k.mT, -1) @ v
        for head in range(4):
            if f"{place}.head.{head}" == address:
                mixed[head] = 0
        change = linear(own.output, mixed.transpose(0, 1).flatten(1))
        change = torch.zeros_like(change) if place == address else change
        x = norm(
            block.self_attention_norm,
            change if f"{place}.residual" == address else x + change,
            place,
        )
        place = f"encoder.{number}.feedforward"
        change = linear(block.feedforward.down, linear(block.feedforward.up, x).relu())
        change = torch.zeros_like(change) if place == address else change
        x = norm(
            block.feedforward_norm,
            change if f"{place}.residual" == address else x + change,
            place,
        )
    return x


def test_what_is_computed_without_a_part_is_what_the_formulas_say(family):
    subject = family["post"]
    reading = inputs_of(subject)[2]
    inputs = inspect.tensors(subject, [reading])
    with torch.no_grad():
        for address in ["", *pruning.parts(subject.model, "encoder.**")]:
            with pruning.ablated(subject.model, [address] if address else []):
                found = subject.model.encode(*inputs[:2]).states[0]
            expected = by_hand(subject, reading, address)
            torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_rotation_is_off_when_scores_do_not_know_positions(family):
    subject = family["pre"]
    reading = inspect.read(subject, "aaaaaa", "b")
    wanted = "encoder.0.self.weights"

    def seen():
        return inspect.capture(subject.model, inspect.tensors(subject, [reading]), [wanted])

    inner = slice(0, 6)
    assert np.ptp(seen()[wanted][0, 0, 0, inner]) > 1e-3
    with pruning.ablated(subject.model, "encoder.positions"):
        np.testing.assert_allclose(np.ptp(seen()[wanted][0, :, 0, inner], axis=-1), 0, atol=1e-6)


def test_means_are_those_of_real_tokens(family):
    subject = family["lm"]
    readings = inspect.read_all(subject, TEXTS)
    means = pruning.mean_outputs(subject, readings, batch_tokens=1000)
    rows = {"decoder.1.self.context": [], "decoder.0.feedforward.output": []}
    for reading in readings:  # one by one: no padding
        inputs = inspect.tensors(subject, [reading])
        for address, value in inspect.capture(subject.model, inputs, rows).items():
            rows[address].append(value[0])
    head = np.concatenate([value[2] for value in rows["decoder.1.self.context"]])
    whole = np.concatenate(rows["decoder.0.feedforward.output"])
    np.testing.assert_allclose(means["decoder.1.self.head.2"], head.mean(0), atol=1e-6)
    np.testing.assert_allclose(means["decoder.0.feedforward"], whole.mean(0), atol=1e-6)


def test_a_mean_stands_at_every_token(family):
    subject = family["post"]
    readings = inputs_of(subject)
    means = pruning.mean_outputs(subject, readings)
    parts = ["decoder.1.cross", "decoder.0.feedforward"]
    with pruning.ablated(subject.model, parts, "mean", means=means):
        inputs = inspect.tensors(subject, readings)
        found = inspect.capture(subject.model, inputs, [f"{part}.output" for part in parts])
    for part in parts:
        value = found[f"{part}.output"]
        np.testing.assert_allclose(value, np.broadcast_to(means[part], value.shape), atol=1e-6)


def test_an_exception_and_a_nested_context_leave_nothing_behind(family):
    subject = family["post"]
    readings = inputs_of(subject)
    before = run(subject, readings)
    with pytest.raises(RuntimeError), pruning.ablated(subject.model, "**"):
        raise RuntimeError
    assert torch.equal(run(subject, readings), before)
    first, second = "encoder.0.self.head.1", "encoder.0.self.head.3"
    with pruning.ablated(subject.model, [first, second]):
        both = run(subject, readings)
    with pruning.ablated(subject.model, first):
        with pruning.ablated(subject.model, second):
            assert torch.equal(run(subject, readings), both)
        one = run(subject, readings)
    assert not torch.equal(one, both)
    assert torch.equal(run(subject, readings), before)


def test_generation_is_ablated_too(family):
    subject = family["post"]
    plain = inspect.read(subject, "abc de").target
    with pruning.ablated(subject.model, "decoder.*.cross"):
        one, other = (inspect.read(subject, text).target for text in ("abc de", "fg hh"))
    assert one == other  # the source is not seen
    assert inspect.read(subject, "abc de").target == plain


def test_patterns_choose_parts_in_the_order_of_a_pass(family):
    model = family["post"].model
    found = pruning.parts(model, ["decoder.*.cross.head.2", "encoder.1.self"])
    assert found == ("encoder.1.self", *(f"decoder.{n}.cross.head.2" for n in range(3)))
    assert len(pruning.heads(model)) == 4 * (2 + 2 * 3)
    assert {p for p in pruning.parts(model) if ".head." in p} == set(pruning.heads(model))


def test_what_cannot_be_is_refused(family):
    subject = family["post"]
    model = subject.model
    with pytest.raises(ModelError, match=r"decoder\.1\.crss.*Near ones: decoder\.\d\.cross"):
        pruning.parts(model, "decoder.1.crss")
    with pytest.raises(ModelError, match="no part"), pruning.ablated(model, "decoder.3.cross"):
        pass
    own = "encoder.0.self"
    with pytest.raises(ConfigError, match="no mean"), pruning.ablated(model, own, "mean"):
        pass
    scale = "encoder.0.self.scale"
    with pytest.raises(ConfigError, match="scale"), pruning.ablated(model, scale, "zero"):
        pass
    with pytest.raises(ConfigError, match="'none'"), pruning.ablated(model, "**", "none"):
        pass
    with pytest.raises(DataError):
        pruning.mean_outputs(subject, [])
    with pytest.raises(DataError, match="right answers"):
        pruning.examples_of_text(subject, TEXTS)


@pytest.mark.parametrize("what", ["encoder.0.self", "decoder.1.cross.head.0"])
def test_attention_loaded_to_run_is_not_taken_apart(family, what):
    model = prepare(family["post"].model, Precision("fp32", "cpu"))
    parts = ["encoder.1.self.residual", what]
    with (
        pytest.raises(ModelError, match=r"loaded to run.*load_model") as refused,
        pruning.ablated(model, parts),
    ):
        pass
    assert refused.value.where == what
    assert not any(m.cut for m in model.modules() if isinstance(m, Block))


def test_norms_of_either_kind_are_handed_through(family):
    model = family["pre"].model
    with pruning.ablated(model, "**.norm"):
        assert not any(isinstance(m, RMSNorm | torch.nn.LayerNorm) for m in model.modules())


@pytest.mark.parametrize("name", ["post", "lm"])
def test_answers_are_the_probabilities_of_the_right_tokens(family, name):
    subject = family[name]
    paired = TARGETS if name == "post" else None
    examples = pruning.examples_of_text(subject, TEXTS, paired)
    answers = pruning.answer(subject, examples, batch_tokens=1000)
    for number, example in enumerate(examples):
        with torch.no_grad():
            states = subject.model(*inspect.tensors(subject, [example.reading]))[0]
            scores = subject.model.logits(states).double()
        ids = example.reading.decoder.ids
        right = [*ids[1:], subject.target.eos] if paired else ids[1:]
        rows = scores[: len(right)]
        chosen = rows.log_softmax(-1)[range(len(right)), right]
        assert answers.counts[number] == len(right)
        assert math.isclose(answers.losses[number], -chosen.sum(), rel_tol=1e-5)
        assert answers.right[number] == (rows.argmax(-1) == torch.tensor(right)).sum()


def test_labels_tags_images_and_hidden_tokens_are_examples_too(toys, family):
    labels = ("x", "y", "z")
    classifier = toys.encoder(({"kind": "sequence", "labels": labels, "source": "first"},))
    found = pruning.examples_of_text(classifier, TEXTS, ["y", "x", "z"])
    assert [example.targets for example in found] == [(1,), (0,), (2,)]
    assert pruning.answer(classifier, found).counts.tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="no label 'w'"):
        pruning.examples_of_text(classifier, TEXTS, ["y", "x", "w"])
    tagger = toys.encoder(({"kind": "token", "labels": labels},))
    from heedful.data.text_corpus import TaggedSentence

    (tagged,) = pruning.examples_of_tags(tagger, [TaggedSentence(["ab", "c"], ["z", "x"], [1, 2])])
    pieces = tagged.reading.encoder.pieces
    asked = [(p, labels[w]) for p, w in zip(pieces, tagged.targets, strict=True) if w >= 0]
    assert asked == [("a", "z"), ("▁", "x")]  # characters: a word begins with its space
    vision = family["vision"]
    images = np.zeros((2, 3, 12, 12), np.float32)
    seen = pruning.examples_of_images(vision, images, ["LABEL_2", "LABEL_0"])
    answers = pruning.answer(vision, seen)
    with torch.no_grad():
        states = vision.model(torch.from_numpy(images))
        chosen = vision.model.class_logits(states).log_softmax(-1)[[0, 1], [2, 0]]
    np.testing.assert_allclose(answers.losses, -chosen, rtol=1e-5)
    with pytest.raises(ModelError, match="no mask token"):
        pruning.examples_of_text(family["encoder"], TEXTS)


def test_effects_are_differences_with_paired_intervals(family):
    subject = family["post"]
    examples = pruning.examples_of_text(subject, TEXTS, TARGETS)
    bleu = pruning.Bleu(tokenize="char")
    ablations = ["decoder.0.cross", ["encoder.0.self", "encoder.1.self"]]
    found = pruning.effects(subject, examples, ablations, bleu=bleu, samples=50)
    whole = pruning.answer(subject, examples)
    for what, effect in zip(ablations, found, strict=True):
        with pruning.ablated(subject.model, what):
            without = pruning.answer(subject, examples)
            score = bleu.score(subject, examples)
        loss = effect.scores["loss"]
        assert math.isclose(loss.a.score, whole.loss)
        assert math.isclose(loss.b.score, without.loss)
        assert math.isclose(loss.difference.score, without.loss - whole.loss)
        assert loss.difference.low <= loss.difference.mean <= loss.difference.high
        assert effect.scores["accuracy"].b.score == without.accuracy
        assert math.isclose(effect.scores["bleu"].b.score, score)
    assert found[1].what == ("encoder.0.self", "encoder.1.self")
    with pytest.raises(ModelError, match="Only translators"):
        pruning.effects(family["lm"], pruning.examples_of_text(family["lm"], TEXTS), [], bleu=bleu)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 5)), min_size=1))
def test_ratios_of_resamples(rows):
    a, b, counts = zip(*rows, strict=True)
    found = paired_ratios("loss", a, b, counts, samples=200)
    assert math.isclose(found.a.score, sum(a) / sum(counts))
    assert math.isclose(found.difference.score, (sum(b) - sum(a)) / sum(counts), abs_tol=1e-12)
    generator = np.random.default_rng(12345)
    drawn = []
    for _ in range(200):
        chosen = generator.choice(len(rows), size=len(rows), replace=True)
        total = sum(counts[n] for n in chosen)
        drawn.append(sum(b[n] for n in chosen) / total - sum(a[n] for n in chosen) / total)
    low, high = np.quantile(drawn, (0.025, 0.975))
    np.testing.assert_allclose(
        [found.difference.low, found.difference.high], [low, high], atol=1e-9
    )
    better = np.mean([(1 + np.sign(round(-each, 12))) / 2 for each in drawn])
    assert math.isclose(found.wins, better, abs_tol=1e-9)
