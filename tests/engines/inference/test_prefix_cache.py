"""Prefix caching: what is kept of earlier prompts changes the work, and never an answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.engines.inference.prefix_cache import BLOCK_TOKENS, PrefixCache
from heedful.engines.inference.prepare import prepare
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import AnyOf, Causal, Prefix
from heedful.nn.mixer_spec import SSRUSpec
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, FeedForwardSpec, PositionSpec, RotarySpec
from heedful.pipelines.text_generation import Generation, generate, stream

VOCABULARY = 6
BYTES_OF_A_BLOCK = 2 * 2 * 16 * BLOCK_TOKENS * 4
"""Two layers, keys and values, of width 16 in float32."""


def build(kind: str, seed: int = 0) -> CausalLM:
    """A model of random weights, whose kind names what is particular to it."""
    torch.manual_seed(seed)
    mask = AnyOf(parts=(Causal(), Prefix(length=20))) if kind == "prefix" else Causal()
    positions = PositionSpec(kind="learned", max_length=200) if kind == "learned" else None
    attention = AttentionSpec(
        num_heads=2, mask=mask, rotary=None if kind == "learned" else RotarySpec()
    )
    block = BlockSpec.of(
        norm_placement="pre",
        self_attention=SSRUSpec() if kind == "recurrent" else attention,
        feedforward=FeedForwardSpec(width=24),
    )
    model = CausalLM(
        CausalLMSpec(
            width=16,
            vocabulary=VOCABULARY,
            tied=False,
            embedding=EmbeddingSpec(positions=positions or PositionSpec(kind="none")),
            decoder=StackSpec.of(num_layers=2, block=block),
        )
    )
    with torch.no_grad():
        model.output_projection.weight.mul_(2.0)
    return model.eval()


def answers(model: CausalLM, prompts: list[list[int]], **options: Any) -> list[Generation]:
    with torch.inference_mode():
        return generate(model, prompts, ends=(0,), max_length=6, **options)


def check(found: list[Generation], expected: list[Generation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.tokens, one.ended) == (other.tokens, other.ended)
        assert one.token_scores == pytest.approx(other.token_scores, abs=1e-5)


# A prompt is a beginning that others have too, up to some place, and its own end.
PROMPTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 60), st.lists(st.integers(1, 5), max_size=20)),
    min_size=1, max_size=3,
)  # fmt: skip


@given(
    kind=st.sampled_from(["rotary", "learned", "prefix", "recurrent"]), native=st.booleans(),
    requests=st.lists(PROMPTS, min_size=1, max_size=3), blocks=st.sampled_from([0, 1, 3, 100]),
    way=st.sampled_from([{}, {"beam": 3, "n_best": 3}, {"sampling": True, "n_best": 2}]),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_answers_are_those_without_a_cache(
    kind: str, native: bool, requests: Any, blocks: int, way: dict[str, Any]
) -> None:
    model = build(kind)
    if native:
        model = prepare(model, "fp32", torch.device("cpu"), donate=True)
    cache = PrefixCache(blocks * BYTES_OF_A_BLOCK)
    shared = torch.randint(1, VOCABULARY, (3, 60), generator=torch.Generator().manual_seed(1))
    for request in requests:
        prompts = [[*shared[who, :size].tolist(), *own, 1] for who, size, own in request]
        found = answers(model, prompts, prefixes=cache, **way)
        check(found, answers(model, prompts, **way))
        assert cache.bytes <= cache.most_bytes
        for each, prompt in zip(found, prompts, strict=True):
            assert each.cached % BLOCK_TOKENS == 0
            assert 0 <= each.cached < len(prompt)
            if kind in ("prefix", "recurrent"):  # later tokens, or one state, decide
                assert each.cached == 0


def test_a_known_beginning_is_not_computed_again() -> None:
    model, cache, counts = build("rotary"), PrefixCache(1 << 20), []
    cache.observe = lambda asked, found: counts.append((asked, found))
    read: list[int] = []
    embed = model.input.forward

    def counted(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        read.append(ids.shape[1])
        return embed(ids, *rest)

    model.input.forward = counted  # type: ignore[method-assign]
    beginning = [1, 2, 3, 4, 5] * 8
    answers(model, [[*beginning, 1, 2]], prefixes=cache)
    read.clear()
    (second,) = answers(model, [[*beginning, 3, 3]], prefixes=cache)
    # 41 tokens are read before the first step, of which two blocks are known.
    assert read[0] == 41 - 2 * BLOCK_TOKENS
    assert second.cached == 2 * BLOCK_TOKENS
    assert counts == [(41, 0), (41, 32)]
    text = stream(
        model, [*beginning, 4], _Digits(), ends=(0,), max_length=6, prefixes=cache,
        within=torch.inference_mode,
    )  # fmt: skip
    assert "".join(text) == "".join(map(str, answers(model, [[*beginning, 4]])[0].tokens))
    assert text.cached == 2 * BLOCK_TOKENS


def test_a_stream_that_is_left_early_keeps_its_prompt() -> None:
    model, cache, prompt = build("rotary"), PrefixCache(1 << 20), [1, 2, 3] * 12
    text = stream(
        model, prompt, _Digits(), ends=(0,), max_length=6, prefixes=cache,
        within=torch.inference_mode,
    )  # fmt: skip
    next(text)
    text.close()
    (found,) = answers(model, [prompt], prefixes=cache)
    assert found.cached == 2 * BLOCK_TOKENS
    check([found], answers(model, [prompt]))


class _Digits:
    def decode(self, ids: Any) -> str:
        return "".join(map(str, ids))


def test_the_least_recently_used_beginning_is_dropped() -> None:
    model, cache = build("rotary"), PrefixCache(4 * BYTES_OF_A_BLOCK)
    one, two, three = ([token] * 33 for token in (1, 2, 3))
    for prompt in (one, two, one, three):
        answers(model, [prompt], prefixes=cache)
    assert cache.bytes == 4 * BYTES_OF_A_BLOCK
    assert [len(cache.find(each)) for each in (one, two, three)] == [2, 0, 2]


def test_another_model_finds_nothing() -> None:
    cache, prompt = PrefixCache(1 << 20), [1, 2, 3] * 12
    answers(build("rotary", 1), [prompt], prefixes=cache)
    model = build("rotary", 2)
    (found,) = answers(model, [prompt], prefixes=cache)
    assert found.cached == 0
    check([found], answers(model, [prompt]))


def test_threads_share_a_cache() -> None:
    model, cache = build("rotary"), PrefixCache(3 * BYTES_OF_A_BLOCK)
    prompts = [[token] * 40 + [1, other] for token in (1, 2, 3) for other in (1, 2, 3)]
    expected = answers(model, prompts)
    wrong: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for number in range(6):
                place = (first + number) % len(prompts)
                found = answers(model, [prompts[place]], prefixes=cache)
                check(found, [expected[place]])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.bytes <= cache.most_bytes
