"""The questions that every kind of spec answers, compared with the models built from them."""

from __future__ import annotations

import pytest

from heedful.models.build import build_model
from heedful.models.encoder_spec import EncoderSpec, MaskedLMHeadSpec
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.model_spec import ModelSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec, translator_spec

SHAPE = TranslatorShape(
    width=16, encoder_layers=1, decoder_layers=2, num_heads=2, feedforward=8, positions="learned"
)
PAIRS = translator_spec(SHAPE, 20, 20)
TEXTS = causal_lm_spec(SHAPE, 20, 12)
MASKED = encoder_spec(SHAPE, 20, 12, (MaskedLMHeadSpec(),))
IMAGES = VisionSpec(width=16, image_size=8, patch_size=4, encoder=MASKED.encoder, num_classes=3)

KINDS: dict[str, ModelSpec] = {
    "all shared": PAIRS,
    "inputs shared": PAIRS.model_copy(update={"share_embeddings": "inputs"}),
    "target shared": PAIRS.model_copy(update={"share_embeddings": "target"}),
    "none shared": PAIRS.model_copy(update={"share_embeddings": "none"}),
    "causal": TEXTS,
    "causal, untied": TEXTS.model_copy(update={"tied": False}),
    "masked": MASKED,
    "masked, untied": MASKED.model_copy(update={"heads": (MaskedLMHeadSpec(tied=False),)}),
    "encoder": MASKED.model_copy(update={"heads": ()}),
    "images": IMAGES,
}


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS.keys())
def test_ties_are_those_of_the_built_model(spec: ModelSpec) -> None:
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in build_model(spec).state_dict().items():
        if tensor.data_ptr() in first:
            aliases[name] = first[tensor.data_ptr()]
        first.setdefault(tensor.data_ptr(), name)
    assert spec.ties() == aliases


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS.keys())
def test_stacks_and_generation_are_those_of_the_built_model(spec: ModelSpec) -> None:
    model = build_model(spec)
    assert list(spec.stacks()) == [n for n in ("encoder", "decoder") if hasattr(model, n)]
    assert spec.generates == hasattr(model, "step")
    assert spec.with_stacks(spec.stacks()) == spec


def test_vocabularies_are_answered_and_set_by_side() -> None:
    apart = translator_spec(SHAPE.model_copy(update={"share_embeddings": "none"}), 7, 9)
    assert apart.vocabularies() == {"source": 7, "target": 9}
    assert apart.predicted_vocabulary == 9
    assert TEXTS.vocabularies() == MASKED.vocabularies() == {"source": 20, "target": 20}
    assert IMAGES.vocabularies() == {}
    assert IMAGES.predicted_vocabulary == 1
    assert apart.with_vocabularies(source=8, target=9).source_vocabulary == 8
    assert TEXTS.with_vocabularies(source=1, target=30).vocabulary == 30


def test_learned_positions_limit_a_text_and_the_token_that_ends_a_pair_takes_one() -> None:
    assert PAIRS.longest_text == 256
    assert TEXTS.longest_text == 13
    assert IMAGES.longest_text is None
    sinusoidal = SHAPE.model_copy(update={"positions": "sinusoidal"})
    assert translator_spec(sinusoidal, 20, 20).longest_text is None


def test_other_stacks_are_checked_against_the_rest() -> None:
    with pytest.raises(Exception, match="needs cross_attention"):
        PAIRS.with_stacks({"decoder": PAIRS.encoder})


def test_predictions_and_the_names_of_their_labels() -> None:
    def with_heads(*heads: object) -> EncoderSpec:
        return EncoderSpec.parse({**MASKED.plain(), "heads": [*heads], "pooler": True})

    masked = {"kind": "masked_lm"}
    texts = {"kind": "sequence", "labels": ["good", "bad"]}
    tokens = {"kind": "token", "labels": ["noun", "verb"]}
    assert (PAIRS.predicts, TEXTS.predicts, MASKED.predicts) == (
        "next_token",
        "next_token",
        "masked_token",
    )
    assert (IMAGES.predicts, IMAGES.class_names) == ("label", ("LABEL_0", "LABEL_1", "LABEL_2"))
    assert IMAGES.model_copy(update={"num_classes": None}).predicts is None
    assert with_heads().predicts is None
    assert with_heads(masked).class_names == TEXTS.class_names == ()
    both = with_heads(masked, tokens)
    assert (both.predicts, both.class_names) == ("token_label", ("noun", "verb"))
    three = with_heads(masked, tokens, texts)
    assert (three.predicts, three.class_names) == ("label", ("good", "bad"))


def test_a_pattern_repeats_over_the_layers() -> None:
    stack = translator_spec(TranslatorShape(width=16, num_heads=2), 20, 20).encoder
    local, whole = (stack.block.replace(dropout=dropout) for dropout in (0.1, 0.2))
    stack = stack.model_copy(update={"num_layers": 5, "pattern": (local, local, whole)})
    assert stack.blocks == (local, local, whole, local, local)
