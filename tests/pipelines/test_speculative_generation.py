"""Speculative decoding: drafts of any quality change the speed, and never a token."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError, ModelError
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import AllOf, Causal, Window
from heedful.nn.mixer_spec import SSRUSpec
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, FeedForwardSpec, PositionSpec, RotarySpec
from heedful.pipelines.speculative_generation import PromptLookup, RewindableModel, speculate
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.search.search_settings import GenerationSettings
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

KINDS = ("rotary", "window", "learned")
TABLE = 40


@functools.cache
def letters(text: str = "ab cde") -> TextTokenizer:
    return train_tokenizer(TokenizerSpec(kind="characters", vocabulary_size=20), [text])


def build(kind: str, seed: int, noise: float = 0.0, part: Any = None) -> GenerationPipeline:
    """A model of random weights; with noise, one that often agrees with it."""
    torch.manual_seed(seed)
    mask = AllOf(parts=(Causal(), Window(size=3))) if kind == "window" else Causal()
    learned = PositionSpec(kind="learned", max_length=TABLE)
    attention = AttentionSpec(
        num_heads=2, mask=mask, rotary=None if kind == "learned" else RotarySpec()
    )
    block = BlockSpec.of(
        norm_placement="pre",
        self_attention=part or attention,
        feedforward=FeedForwardSpec(width=24),
    )
    spec = CausalLMSpec(
        width=16,
        vocabulary=letters().size,
        tied=False,
        embedding=EmbeddingSpec(
            positions=learned if kind == "learned" else PositionSpec(kind="none")
        ),
        decoder=StackSpec.of(num_layers=2, block=block),
    )
    model = CausalLM(spec)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        model.output_projection.weight.mul_(1.5)
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * noise)
    return GenerationPipeline(model.eval(), letters())


@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 50), noise=st.sampled_from([0.0, 0.05, 1.0]),
    drafting=st.sampled_from([{"lookup": 1}, {"lookup": 3}, {"draft": True}]),
    prompts=st.lists(st.text("ab cde", max_size=9), min_size=1, max_size=2),
    draft_tokens=st.integers(1, 7), shortest=st.integers(0, 12),
    stop=st.sampled_from([(), ("ba",), ("e", "dc")]),
)  # fmt: skip
@example(
    kind="rotary", seed=48, noise=0.0, drafting={"draft": True}, prompts=[""], draft_tokens=1,
    shortest=3, stop=(),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_tokens_are_those_of_greedy_search(
    kind: str, seed: int, noise: float, drafting: Any, prompts: list[str], draft_tokens: int,
    shortest: int, stop: tuple[str, ...],
) -> None:  # fmt: skip
    model = build(kind, seed)
    wanted = GenerationSettings(max_length=25, min_length=shortest, stop=stop)
    if "draft" in drafting:
        drafting = {"draft": build(kind, seed, noise)}
    expected = model.generate(prompts, settings=wanted)
    found, numbers = speculate(
        model, prompts, settings=wanted, draft_tokens=draft_tokens, **drafting
    )
    for one, other in zip(found, expected, strict=True):
        assert (one.tokens, one.text, one.ended) == (other.tokens, other.text, other.ended)
        assert one.score == pytest.approx(other.score, abs=1e-3)
        assert one.normalized_score == pytest.approx(other.normalized_score, abs=1e-3)
        assert one.token_scores == pytest.approx(other.token_scores, abs=1e-4)
    assert 0 <= numbers.accepted <= numbers.drafted
    written = sum(len(one.tokens) for one in found)
    assert numbers.passes >= written - numbers.accepted
    if noise == 0.0 and "draft" in drafting and not stop:
        assert numbers.accepted == numbers.drafted or any(one.ended == "end" for one in found)


@given(
    kind=st.sampled_from(KINDS),
    steps=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=6),
    seed=st.integers(0, 9),
)
@settings(max_examples=30, deadline=None)
def test_forgotten_tokens_leave_no_trace(
    kind: str, steps: list[tuple[int, int]], seed: int
) -> None:
    pipeline = build(kind, seed)
    generator = torch.Generator().manual_seed(seed)
    with pipeline.computing():
        reader = RewindableModel(pipeline.engine)
        for count, forgotten in steps:
            ids = torch.randint(0, letters().size, (count,), generator=generator).tolist()
            before = list(reader.ids)
            found = reader.read(ids)
            whole = pipeline.model(torch.tensor([[*before, *ids]]))
            torch.testing.assert_close(
                found, pipeline.model.logits(whole)[0, len(before) :], atol=1e-4, rtol=1e-4
            )
            reader.forget(min(forgotten, len(reader.ids)))


def test_a_lookup_repeats_what_followed() -> None:
    lookup = PromptLookup(2)
    assert lookup.draft([1, 2, 3, 4, 1, 2], 2) == [3, 4]
    assert lookup.draft([1, 2, 3, 4, 5, 2], 9) == [3, 4, 5, 2, 3, 4, 5, 2, 3]
    assert lookup.draft([7, 1, 2, 8, 1, 2, 9, 1, 2], 1) == [9]
    assert lookup.draft([1, 2, 3], 4) == lookup.draft([1], 4) == []


def test_what_cannot_be_is_refused() -> None:
    model = build("learned", 1)
    with pytest.raises(ConfigError, match="no such setting"):
        speculate(model, ["a"], settings=GenerationSettings(sampling=True), lookup=2)
    with pytest.raises(ConfigError, match="beam"):
        speculate(model, ["a"], settings=GenerationSettings(beam=2), lookup=2)
    with pytest.raises(ConfigError, match="one of them"):
        speculate(model, ["a"], lookup=2, draft=model)
    with pytest.raises(ModelError, match="positions"):
        speculate(model, ["a"], settings=GenerationSettings(max_length=TABLE), lookup=2)
    other = GenerationPipeline(build("learned", 1).model, letters("xyzab "))
    with pytest.raises(ModelError, match="vocabulary"):
        speculate(model, ["a"], draft=other)
    recurrent = build("rotary", 1, part=SSRUSpec())
    with pytest.raises(ModelError, match="cannot be taken back"):
        speculate(recurrent, ["a"], lookup=2)
