"""The encoder of text: padding and neighbours do not matter, heads read what they say they do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.config import merge
from heedful.errors import ConfigError, ModelError
from heedful.models.build import canonical_weights, load_weights
from heedful.models.encoder import EncoderModel, first_states
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.preset_files import published_parameters, read_preset_spec
from heedful.nn.capture import Capture

from ..on_processor import either_way

VOCABULARY = 20
HEADS = [
    {"kind": "masked_lm"},
    {"kind": "next_sentence"},
    {"kind": "sequence", "labels": ["a", "b", "c"]},
    {"kind": "token", "labels": ["x", "y"]},
    {"kind": "span"},
]
BASE = {
    "width": 16,
    "vocabulary": VOCABULARY,
    "embedding": {
        "scale": False,
        "num_segments": 2,
        "positions": {"kind": "learned", "max_length": 12},
        "norm": {},
    },
    "encoder": {
        "num_layers": 2,
        "block": {"self_attention": {"num_heads": 4}, "feedforward": {"width": 24}},
    },
    "pooler": True,
    "heads": HEADS,
}
PRE_NORM = {"norm_placement": "pre", "norm": {"kind": "rms"}}
CHANGES = {
    "learned": {},
    "unused rows, labels from the first state": {
        "embedding": {"positions": {"unused_rows": 2}},
        "heads": [*HEADS[:2], {**HEADS[2], "source": "first"}, *HEADS[3:]],
    },
    "rotary, pre-norm, RMS": {
        "embedding": {"positions": {"kind": "none"}},
        "encoder": {
            "block": {**PRE_NORM, "self_attention": {"rotary": {}}},
            "final_norm": {"kind": "rms"},
        },
    },
    "window": {"encoder": {"block": {"self_attention": {"mask": {"kind": "window", "size": 2}}}}},
}


def spec_of(*changes) -> EncoderSpec:
    return EncoderSpec.parse(merge(BASE, *changes))


def build(*changes, seed: int = 0) -> EncoderModel:
    torch.manual_seed(seed)
    model = EncoderModel(spec_of(*changes)).eval()
    with torch.no_grad():  # biases that are not zero
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch_of(lengths: list[int], size: int, *, left: bool, seed: int = 0):
    """Ids, positions and segments [B, size] of the same texts on either side."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        ids = torch.randint(0, VOCABULARY, (length,), generator=draw)
        segments = torch.randint(0, 2, (length,), generator=draw)
        text = torch.stack([ids, torch.arange(length), segments])
        padding = torch.tensor([[0], [-1], [0]]).expand(3, size - length)
        rows.append(torch.cat([padding, text] if left else [text, padding], dim=1))
    return torch.stack(rows).unbind(1)


def everything(model: EncoderModel, ids, positions, segments):
    """Outputs of each token and outputs of each text."""
    states = model(ids, positions, segments)
    per_token = [
        states,
        model.masked_lm_logits(states),
        model.token_logits(states),
        model.span_logits(states),
    ]
    whole = [
        model.pooled(states, positions),
        model.next_sentence_logits(states, positions),
        model.sequence_logits(states, positions),
    ]
    return per_token, whole


@pytest.mark.parametrize("name", CHANGES)
@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    extra=st.integers(0, 3),
    left=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=10)
@torch.no_grad()
def test_a_text_does_not_depend_on_neighbours_or_padding(name, lengths, extra, left, seed):
    model = build(CHANGES[name], seed=seed)
    size = max(lengths) + extra
    ids, positions, segments = batch_of(lengths, size, left=left, seed=seed)
    per_token, whole = everything(model, ids, positions, segments)
    for row in range(len(lengths)):
        real = positions[row] >= 0
        one = (ids[row, real][None], positions[row, real][None], segments[row, real][None])
        alone_per_token, alone_whole = everything(model, *one)
        for batched, alone in zip(per_token, alone_per_token, strict=True):
            torch.testing.assert_close(batched[row, real], alone[0], rtol=1e-5, atol=1e-5)
        for batched, alone in zip(whole, alone_whole, strict=True):
            torch.testing.assert_close(batched[row], alone[0], rtol=1e-5, atol=1e-5)


def test_the_first_state_is_that_of_the_first_token():
    states = torch.arange(12.0).view(2, 6, 1)
    positions = torch.tensor([[-1, -1, 0, 1, 2, 3], [0, 1, -1, -1, -1, -1]])
    assert first_states(states, positions).flatten().tolist() == [2.0, 6.0]


@torch.no_grad()
def test_labels_of_a_text_come_from_where_the_spec_says():
    batch = batch_of([5, 3], 6, left=False)
    for source, moved in (("pooled", True), ("first", False)):
        model = build({"heads": [{"kind": "sequence", "labels": ["a", "b"], "source": source}]})
        states = model(*batch)
        before = model.sequence_logits(states, batch[1])
        model.pooler.dense.weight.mul_(-1)
        assert torch.equal(before, model.sequence_logits(states, batch[1])) is not moved


@torch.no_grad()
def test_segments_are_told_apart_and_the_first_is_meant_without():
    model = build()
    ids, positions, _ = batch_of([5, 3], 6, left=True)
    without = model(ids, positions)
    assert torch.equal(without, model(ids, positions, torch.zeros_like(ids)))
    assert not torch.allclose(without, model(ids, positions, torch.ones_like(ids)))


@torch.no_grad()
def test_looking_at_every_layer_changes_nothing():
    model = build()
    batch = batch_of([5, 3], 6, left=True)
    wanted = ["encoder.0.output", "encoder.1.output", "encoder.0.self.weights"]
    capture = Capture(wanted)
    states = model(*batch, capture=capture)
    assert torch.equal(states, model(*batch))
    assert capture.found.keys() == set(wanted)
    assert torch.equal(capture.found["encoder.1.output"], states)
    assert not torch.allclose(capture.found["encoder.0.output"], states)


@either_way
def test_every_parameter_learns_from_its_heads(trained):
    model = build(CHANGES["unused rows, labels from the first state"]).train()
    # As long as the table, so that each position's row is used.
    batch = batch_of([12, 12, 7, 9], 12, left=False)
    with trained(model):
        per_token, whole = everything(model, *batch)
        outputs = [*per_token, *whole]
        sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_a_tied_table_is_stored_once():
    def count(tied: bool) -> int:
        heads = [{"kind": "masked_lm", "tied": tied}]
        return sum(tensor.numel() for tensor in canonical_weights(build({"heads": heads})).values())

    assert count(False) - count(True) == VOCABULARY * 16


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_stored_weights_give_the_same_model(tied):
    heads = [{"kind": "masked_lm", "tied": tied}, *HEADS[1:]]
    model, other = build({"heads": heads}), build({"heads": heads}, seed=1)
    stored = {name: tensor.clone() for name, tensor in canonical_weights(model).items()}
    load_weights(other, stored, where="here")
    batch = batch_of([5, 3], 6, left=False)
    for a, b in zip(everything(model, *batch), everything(other, *batch), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_heads_drop_in_training_only(kind):
    heads = [{"kind": kind, "labels": ["a", "b"], "dropout": 0.5}]
    model = build({"heads": heads})
    ids, positions, segments = batch_of([5, 3], 6, left=False)
    states = model(ids, positions, segments)

    def logits() -> torch.Tensor:
        if kind == "token":
            return model.token_logits(states)
        return model.sequence_logits(states, positions)

    assert torch.equal(logits(), logits())
    model.train()
    assert not torch.equal(logits(), logits())


def test_a_head_it_has_not_is_named():
    model = build({"heads": [{"kind": "token", "labels": ["a"]}], "pooler": False})
    states, positions = torch.zeros(1, 2, 16), torch.arange(2)[None]
    asked = {
        "masked_lm": lambda: model.masked_lm_logits(states),
        "next_sentence": lambda: model.next_sentence_logits(states, positions),
        "sequence": lambda: model.sequence_logits(states, positions),
        "span": lambda: model.span_logits(states),
    }
    for kind, ask in asked.items():
        with pytest.raises(ModelError, match=f"no {kind} head") as caught:
            ask()
        assert "token" in str(caught.value)
    with pytest.raises(ModelError, match="no pooler"):
        model.pooled(states, positions)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pooler": False}, "next_sentence head over the pooled state needs pooler"),
        ({"pooler": False, "heads": HEADS[2:]}, "sequence head over the pooled state needs pooler"),
        ({"heads": [HEADS[4], HEADS[4]]}, "two heads are of the same kind"),
        ({"heads": [{"kind": "token", "labels": []}]}, "labels"),
        ({"heads": [{"kind": "masked_lm", "activation": "geglu"}]}, "activation"),
        ({"width": 18}, "width 18 is not a multiple of num_heads 4"),
        (
            {"encoder": {"block": {"cross_attention": {"num_heads": 4}}}},
            "no memory to cross-attend to",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parts_that_do_not_fit_together_are_refused(change, told):
    with pytest.raises(ConfigError, match=told):
        spec_of(change)
    assert not spec_of({"pooler": False, "heads": HEADS[3:]}).pooler


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("bert-base", 109_482_240),
        ("bert-large", 335_141_888),
        ("roberta-base", 124_645_632),
        ("roberta-large", 355_359_744),
    ],
)
def test_presets_have_as_many_parameters_as_what_was_published(name, count):
    with torch.device("meta"):
        model = EncoderModel(read_preset_spec(name))
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert published_parameters(name) == count
