"""A causal language model that is read as an encoder, and heads on last states."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import ConfigError
from heedful.models.build import build_model
from heedful.models.decoder_as_encoder import load_reader
from heedful.models.encoder import last_states
from heedful.models.encoder_spec import SequenceHeadSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec
from heedful.models.spec_overrides import contradictions
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

HEAD = SequenceHeadSpec(labels=("a", "b"), source="first")


def shape(**options: object) -> TranslatorShape:
    small = {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 2}
    return TranslatorShape.parse({**small, "feedforward": 32, "dropout": 0.0, **options})


@pytest.mark.parametrize("tied", ["all", "none"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_states_are_those_of_the_language_model(tied: str, positions: str) -> None:
    torch.manual_seed(1)
    tokenizer = train_tokenizer(TokenizerSpec(vocabulary_size=40), ["a cat sat on a mat"] * 3)
    options = shape(share_embeddings=tied, positions=positions)
    model = build_model(causal_lm_spec(options, tokenizer.size, 12)).eval()
    encoder, pair = load_reader(model, TokenizerPair(tokenizer, tokenizer))
    assert pair is not None
    assert pair.source.first == (tokenizer.bos,)
    ids = torch.randint(4, tokenizer.size, (2, 7))
    positions_of = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, -1, -1, -1]])
    theirs, ours = model(ids, positions_of), encoder(ids, positions_of)
    assert torch.equal(theirs[0], ours[0])
    assert torch.equal(theirs[1, :4], ours[1, :4])


def test_last_states_are_found_with_padding_on_either_side() -> None:
    states = torch.arange(8.0).view(2, 4, 1)
    positions = torch.tensor([[0, 1, 2, -1], [-1, -1, 0, 1]])
    assert last_states(states, positions).flatten().tolist() == [2.0, 7.0]


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({}, "first"),
        ({"mask": "window(4)"}, "first"),
        ({"mask": "causal"}, "last"),
        ({"mask": "causal & window(3)"}, "last"),
    ],
)
def test_a_head_reads_a_token_that_sees_the_whole_text(
    options: dict[str, object], source: str
) -> None:
    spec = encoder_spec(shape(**options), 20, 12, (HEAD,))
    (head,) = spec.heads
    assert head.source == source  # type: ignore[union-attr]
    model = build_model(spec).eval()
    positions = torch.arange(6)[None]
    ids = torch.tensor([[4, 5, 6, 7, 8, 9]])
    other = torch.tensor([[4, 5, 6, 10, 8, 9]])
    before, after = (model.sequence_logits(model(x, positions), positions) for x in (ids, other))
    assert not torch.equal(before, after)


def test_a_trained_encoder_is_not_made_causal() -> None:
    spec = encoder_spec(shape(), 20, 12, (HEAD,))
    assert contradictions(shape(mask="causal"), spec) == [
        "model.mask is causal, and the model's tokens see later ones"
    ]
    causal = encoder_spec(shape(mask="causal"), 20, 12, (HEAD,))
    assert not contradictions(shape(mask="causal"), causal)


def test_a_head_over_last_states_is_linear() -> None:
    spec = encoder_spec(shape(mask="causal"), 20, 12, (HEAD,))
    names = {name for name, _ in build_model(spec).heads["sequence"].named_parameters()}
    assert names == {"output.weight", "output.bias"}
    with pytest.raises(ConfigError):
        SequenceHeadSpec.parse({"labels": ["a"], "source": "middle"})
