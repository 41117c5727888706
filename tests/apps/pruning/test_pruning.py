"""Pruned models: what the ablated model computes, from fewer numbers; and the order of heads."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful import inspect
from heedful.apps import pruning
from heedful.apps.export.ctranslate2 import export_ctranslate2
from heedful.errors import ConfigError, ModelError
from heedful.interop.hugging_face import export_model
from heedful.models.checkpoint import load_model, save_model
from heedful.models.cost import count_parameters, decoding_cost, decoding_memory
from heedful.models.model_spec import TranslatorSpec
from heedful.models.stack_spec import StackSpec

TEXTS, TARGETS = ["abc de", "fgh", "ij kl mnop"], ["ab", "cdefg", "hi jk"]
KINDS = {
    "plain": {},
    "grouped": {"num_kv_heads": 2, "positions": "rotary", "norm_placement": "pre"},
    "one key head": {"num_kv_heads": 1},
    "t5": {"positions": "t5"},
    "alibi": {"positions": "alibi", "num_kv_heads": 2},
    "relative": {"positions": "relative_keys"},
    "transformer xl": {"positions": "transformer_xl"},
    "disentangled": {"positions": "disentangled"},
}


@pytest.fixture(scope="module")
def family(toys):
    made = {name: toys.translator(**changes) for name, changes in KINDS.items()}
    return made | {"lm": toys.causal_lm(), "encoder": toys.encoder()}


def inputs_of(subject):
    paired = subject.model.spec.kind == "translator"
    return inspect.tensors(subject, inspect.read_all(subject, TEXTS, TARGETS if paired else None))


@pytest.mark.parametrize("name", [*KINDS, "lm", "encoder"])
@settings(max_examples=4)
@given(data=st.data())
def test_a_pruned_model_is_the_ablated_one(family, name, data):
    subject = family[name]
    inputs = inputs_of(subject)
    everything = pruning.heads(subject.model)
    removed = data.draw(st.sets(st.sampled_from(everything)).map(sorted))
    smaller = pruning.pruned(subject, removed)
    with torch.no_grad(), pruning.ablated(subject.model, removed):
        expected = subject.model(*inputs)
        torch.testing.assert_close(smaller.model(*inputs), expected, atol=1e-5, rtol=1e-5)
        if subject.model.spec.kind == "translator":  # step by step, beams and caches too
            assert [r.target for r in inspect.read_all(subject, TEXTS)] == [
                r.target for r in inspect.read_all(smaller, TEXTS)
            ]
    assert set(pruning.heads(smaller.model)) == set(everything) - set(removed)
    built = sum(p.numel() for p in smaller.model.parameters())
    whole = sum(p.numel() for p in subject.model.parameters())
    assert built == count_parameters(smaller.model.spec)
    assert (built < whole) == bool(removed)


def test_pruning_twice_is_pruning_once(family):
    subject = family["alibi"]
    inputs = inputs_of(subject)
    first, then = ["encoder.0.self.head.1", "decoder.*.cross.head.0"], ["encoder.0.self.head.2"]
    twice = pruning.pruned(pruning.pruned(subject, first), then)
    once = pruning.pruned(subject, [*first, *then])
    assert twice.model.spec == once.model.spec
    with torch.no_grad():
        assert torch.equal(twice.model(*inputs), once.model(*inputs))


def test_what_is_cut_out(family):
    subject = family["grouped"]  # heads 0 and 1 share key head 0, heads 2 and 3 key head 1
    one = pruning.pruned(subject, ["encoder.0.self.head.0"]).model.encoder.blocks[0].self_attention
    assert (one.heads_left, one.key_heads_left) == (3, 2)
    both = pruning.pruned(subject, ["encoder.0.self.head.0", "encoder.0.self.head.1"])
    two = both.model.encoder.blocks[0].self_attention
    assert (two.heads_left, two.key_heads_left) == (2, 1)
    shapes = {name: tuple(value.shape) for name, value in two.state_dict().items()}
    assert shapes == {
        "query.weight": (8, 16),
        "query.bias": (8,),
        "key.weight": (4, 16),
        "key.bias": (4,),
        "value.weight": (4, 16),
        "value.bias": (4,),
        "output.weight": (16, 8),
        "output.bias": (16,),
    }
    kept = [block.self_attention.kept_heads for block in both.model.spec.encoder.blocks]
    assert kept == [(2, 3), None]


def test_without_heads_there_is_the_output_bias(family):
    subject = pruning.pruned(family["plain"], "encoder.0.self.head.*")
    inputs = inputs_of(subject)
    found = inspect.capture(subject.model, inputs, ["encoder.0.self.*"])
    bias = subject.model.encoder.blocks[0].self_attention.output.bias.detach().numpy()
    output = found["encoder.0.self.output"]
    np.testing.assert_array_equal(output, np.broadcast_to(bias, output.shape))
    assert not found["encoder.0.self.weights"].any()
    assert np.isneginf(found["encoder.0.self.scores"]).all()


def test_costs_follow(family):
    subject = family["grouped"]
    whole, lean = (
        subject.model.spec,
        pruning.pruned(subject, ["decoder.0.self.head.*", "decoder.1.cross.head.3"]).model.spec,
    )
    # A layer's self-attention is gone: keys and values of 2 heads of width 4 for each token.
    caches = [decoding_memory(spec, 10, 10).self_per_target_token for spec in (whole, lean)]
    assert caches[0] - caches[1] == 2 * 2 * 4 * 4
    last = [decoding_cost(spec, 10, 10, 1).last_step for spec in (whole, lean)]
    # Maps of 4 + 2 + 2 + 4 heads of width 4 there; a query head and its output in the other.
    assert last[0].weights - last[1].weights == 2 * 16 * 4 * (12 + 2)
    assert last[0].attention - last[1].attention == 4 * 4 * 10 * (4 + 1)


def test_the_directory_is_smaller_and_does_all_that_others_do(family, tmp_path):
    subject = family["plain"]
    removed = ["encoder.0.self.head.*", "encoder.1.self.head.*", "decoder.2.cross.head.1"]
    smaller = pruning.pruned(subject, removed)
    for name, each in (("whole", subject), ("small", smaller)):
        save_model(each.model, each.tokenizers, tmp_path / name)
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("whole", "small")]
    assert sizes[1] < sizes[0]
    loaded, pair = load_model(tmp_path / "small")
    again = inspect.Subject(loaded, pair)
    inputs = inputs_of(again)
    with torch.no_grad():
        assert torch.equal(loaded(*inputs), smaller.model(*inputs))
    import heedful

    texts = heedful.load(tmp_path / "small").translate(TEXTS, alignment=True)
    assert [str(t) for t in texts] == [r.target for r in inspect.read_all(smaller, TEXTS)]
    reading = inspect.read(again, "abc de", "fg")
    cross = inspect.attention(again, reading)
    with pruning.ablated(subject.model, removed):
        expected = inspect.attention(subject, reading).weights
    there = [head for head in range(4) if head != 1]
    np.testing.assert_allclose(cross.weights[2, there], expected[2, there], atol=1e-5)
    assert not cross.weights[2, 1].any()
    np.testing.assert_allclose(cross.mean().sum(-1), 1, atol=1e-5)
    own = inspect.attention(again, reading, "encoder")
    np.testing.assert_array_equal(inspect.rollout(own).weights, [np.eye(len(own.rows))] * 2)
    assert len(inspect.measure(again, [reading], "cross").heads) == 11
    inspect.align_words(again, [reading])
    inspect.contributions(again, reading)
    assert len(pruning.importance(again, pruning.examples_of_text(again, TEXTS, TARGETS))) == 23


def test_other_projects_have_no_place_for_unequal_heads(family, tmp_path):
    pytest.importorskip("ctranslate2")
    smaller = pruning.pruned(family["plain"], "encoder.0.self.head.1")
    save_model(smaller.model, smaller.tokenizers, tmp_path / "small")
    with pytest.raises(ModelError, match=r"encoder\.kept_heads"):
        export_ctranslate2(tmp_path / "small", tmp_path / "ct2", "float32")
    with pytest.raises(ModelError, match=r"fewer heads: encoder\.kept_heads"):
        export_model(tmp_path / "small", tmp_path / "hf")
    assert not (tmp_path / "ct2").exists()
    assert not (tmp_path / "hf").exists()


def test_models_saved_before_load_as_they_are(family, tmp_path):
    subject = family["plain"]
    save_model(subject.model, subject.tokenizers, tmp_path / "old")
    assert "kept_heads" not in (tmp_path / "old" / "config.json").read_text()
    loaded, _ = load_model(tmp_path / "old")
    assert loaded.spec == subject.model.spec
    assert pruning.heads(loaded) == pruning.heads(subject.model)


@pytest.mark.parametrize(("kept", "says"), [([1, 0], "ascending"), ([0, 4], "below 4")])
def test_heads_that_cannot_be_are_refused(family, kept, says):
    values = family["plain"].model.spec.encoder.plain()
    values["pattern"][0]["sublayers"][0]["part"]["kept_heads"] = kept
    with pytest.raises(ConfigError, match=says):
        StackSpec.parse(values)


@pytest.mark.parametrize("name", ["plain", "grouped"])
def test_importance_is_the_derivative_by_a_factor_on_each_head(family, name):
    subject = family[name]
    examples = pruning.examples_of_text(subject, TEXTS, TARGETS)
    found = pruning.importance(subject, examples)
    assert tuple(found) == pruning.heads(subject.model)
    model = subject.model.double()
    try:
        for address in list(found)[::5]:
            stack, layer, kind, _, head = address.split(".")
            attention = getattr(getattr(model, stack).blocks[int(layer)], f"{kind}_attention")
            columns = attention.output.weight.detach()[:, 4 * int(head) : 4 * int(head) + 4]
            expected = 0.0
            for example in examples:  # differences of the loss when the head's output is scaled
                losses = []
                for step in (1e-6, -1e-6):
                    columns *= 1 + step
                    states = model(*inspect.tensors(subject, [example.reading]))[0]
                    wanted = torch.tensor([w for w in example.targets if w >= 0])
                    scores = model.logits(states).detach()[: len(wanted)].log_softmax(-1)
                    losses.append(-scores[range(len(wanted)), wanted].sum().item())
                    columns /= 1 + step
                expected += abs(losses[0] - losses[1]) / 2e-6
            total = sum(example.num_answers for example in examples)
            assert math.isclose(found[address], expected / total, rel_tol=1e-3, abs_tol=1e-6)
    finally:
        model.float()


def test_importance_is_compared_within_a_layer():
    found = {"encoder.0.self.head.0": 3.0, "encoder.0.self.head.1": 4.0}
    found |= {"encoder.1.self.head.0": 0.01, "encoder.1.self.head.1": 0.0}
    assert pruning.by_importance(found) == [
        "encoder.1.self.head.1",
        "encoder.0.self.head.0",  # 0.6
        "encoder.0.self.head.1",  # 0.8
        "encoder.1.self.head.0",  # 1
    ]


def test_greedy_takes_the_head_that_costs_least_at_each_step(family):
    subject = family["lm"]
    examples = pruning.examples_of_text(subject, TEXTS)
    found = pruning.prune(subject, examples, heads_left=5)
    assert [point.heads_left for point in found.points] == [8, 7, 6, 5]
    removed = []
    for point in found.points[1:]:
        left = [head for head in pruning.heads(subject.model) if head not in removed]
        losses = {}
        for head in left:
            with pruning.ablated(subject.model, [*removed, head]):
                losses[head] = pruning.answer(subject, examples).loss
        assert point.removed == min(losses, key=losses.get)
        assert math.isclose(point.loss, min(losses.values()))
        removed.append(point.removed)
    assert found.removed(5) == tuple(removed)
    assert found.removed(7) == tuple(removed[:1])


def test_a_bound_ends_before_the_first_point_that_is_worse(family):
    subject = family["plain"]
    examples = pruning.examples_of_text(subject, TEXTS, TARGETS)
    whole = pruning.prune(subject, examples, "gradient")
    assert [point.removed for point in whole.points[1:]] == pruning.by_importance(
        pruning.importance(subject, examples)
    )
    assert whole.points[-1].heads_left == 0
    rises = [point.loss - whole.points[0].loss for point in whole.points]
    worse = next(n for n, rise in enumerate(rises) if rise > 0.05)
    bound = pruning.Bound("loss", 0.05)
    found = pruning.prune(subject, examples, "gradient", bound=bound)
    assert found.points == whole.points[: worse + 1]
    assert found.fewest(bound) == whole.fewest(bound) == whole.points[worse - 1]
    bleu = pruning.Bleu(tokenize="char", sentences=2)
    short = pruning.prune(subject, examples, "gradient", heads_left=30, bleu=bleu)
    assert all(point.bleu is not None for point in short.points)
    with pytest.raises(ConfigError, match="not measured"):
        pruning.prune(subject, examples, bound=pruning.Bound("bleu", 0.5))
    with pytest.raises(ConfigError, match="33 cannot be left"):
        pruning.prune(subject, examples, heads_left=33)
    with pytest.raises(ConfigError, match="no method"):
        pruning.prune(subject, examples, "random")
    with pytest.raises(ModelError, match="Only heads"):
        pruning.pruned(subject, "encoder.0.self")


def test_a_config_with_kept_heads_is_plain_json(family):
    spec = pruning.pruned(family["plain"], "decoder.1.self.head.2").model.spec
    assert TranslatorSpec.parse(json.loads(json.dumps(spec.plain()))) == spec
