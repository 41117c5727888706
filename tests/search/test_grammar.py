"""Grammars: whatever a model prefers, sequences are records."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ConfigError
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField

FIELDS = ("kind:3:1", "notes:5:any", "pixels:4:2x2")
SHAPE = TranslatorShape(width=16, decoder_layers=1, num_heads=2, feedforward=16, dropout=0.0)


def pipeline(*texts: str, seed: int) -> GenerationPipeline:
    """A model of random weights, which knows nothing of fields."""
    fields = FieldTokenizer([TokenField.read(text) for text in texts])
    torch.manual_seed(seed)
    return GenerationPipeline(CausalLM(causal_lm_spec(SHAPE, fields.size, 40)).eval(), fields)


@pytest.mark.filterwarnings("ignore::heedful.pipelines.text_pipeline.LongerThanTraining")
@given(
    seed=st.integers(0, 3),
    prompts=st.lists(
        st.sampled_from(['{}', '{"kind": 2}', '{"kind": 1, "notes": [4, 0]}', ""]), min_size=1,
        max_size=3,
    ),
    sampling=st.booleans(),
)  # fmt: skip
def test_random_weights_write_records(seed: int, prompts: list[str], sampling: bool) -> None:
    model = pipeline(*FIELDS, seed=seed)
    fields = model.tokenizer
    assert isinstance(fields, FieldTokenizer)
    for prompt, found in zip(prompts, model.generate(prompts, sampling=sampling), strict=True):
        ids = fields.encode_prompt(prompt) + list(found.tokens)
        place = 0
        for id in ids:
            state = fields.states[place]
            assert any(first <= id < last for first, last in state.allowed)
            place += state.end in (None, id)
        # Cut at the longest length, or ended: a whole record reads again.
        if found.ended == "end":
            assert fields.encode(found.text) == ids


def test_records_are_no_text() -> None:
    model = pipeline("pixels:4:2", seed=1)
    with pytest.raises(ConfigError, match="stop"):
        model.generate(["[3]"], stop=("]",))
    with pytest.raises(ConfigError, match="stream"):
        model.stream("[3]")


def test_a_beam_writes_records() -> None:
    model = pipeline("pixels:4:2x2", seed=1)
    (found,) = model.generate(["[3]"], beam=3, n_best=3)
    texts = [each.text for each in found.n_best]
    assert len(set(texts)) == 3
    assert all(text.startswith('{"pixels": [[3, ') for text in texts)


def test_probabilities_are_those_of_what_is_left() -> None:
    """The scores of all continuations of a place sum to one."""
    model = pipeline("pixels:4:2", seed=2)
    found = model.generate(["[3]"], beam=4, n_best=4, length_penalty=0)
    total = sum(torch.tensor(each.score).exp() for each in found[0].n_best)
    torch.testing.assert_close(float(total), 1.0)
