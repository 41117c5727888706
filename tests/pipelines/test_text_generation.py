"""Generation: rows do not depend on each other, texts stop where asked, streams are the text."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack import Stack
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import AllOf, Causal, Window
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)
from heedful.pipelines.streamed_text import RunningText
from heedful.pipelines.text_generation import generate, stream
from heedful.search.search_settings import GenerationSettings
from heedful.search.step_model import Continuation

from ..examples import slow_examples

VOCABULARY, WINDOW, TABLE = 24, 3, 40
WAYS = {
    "greedy": {},
    "beam": {"beam": 3, "n_best": 3, "length_penalty": 2.0, "min_length": 3},
    "sampling": {"sampling": True, "n_best": 2, "temperature": 1.5, "top_p": 0.9, "seed": 7},
}
# What the ids of a toy tokenizer say: letters, parts of characters, several letters at once.
PIECES = [b"a", b"b", b" ", b"\n", b"\xe2", b"\x82", b"\xac", "é".encode(), b"\xc3", b"\xa9"]
PIECES += [b"ab", b"ba ", "€".encode(), b"", b"a\xe2\x82", b"\xacb", "日".encode(), b"\xe6\x97"]
PIECES += [b"\xa5", b"aa", b"bb", b"a b", b"x", b"."]


class ByteTokenizer:
    def decode(self, ids):
        return b"".join(PIECES[id] for id in ids).decode("utf-8", errors="replace")


def build(seed: int = 0, *, window: bool = False, learned: bool = False) -> CausalLM:
    torch.manual_seed(seed)
    mask = AllOf(parts=(Causal(), Window(size=WINDOW))) if window else Causal()
    positions = PositionSpec(kind="learned", max_length=TABLE) if learned else None
    block = BlockSpec.of(
        norm_placement="pre",
        self_attention=AttentionSpec(
            num_heads=2, mask=mask, rotary=None if learned else RotarySpec()
        ),
        feedforward=FeedForwardSpec(width=24),
    )
    model = CausalLM(
        CausalLMSpec(
            width=16,
            vocabulary=VOCABULARY,
            tied=False,
            embedding=EmbeddingSpec(positions=positions or PositionSpec(kind="none")),
            decoder=StackSpec.of(num_layers=2, block=block, final_norm=NormSpec()),
        )
    )
    with torch.no_grad():  # so that texts vary
        model.output_projection.weight.mul_(1.5)
    return model.eval()


@torch.no_grad()
def logits_after(model: CausalLM, ids: list[int]) -> torch.Tensor:
    return model.logits(model(torch.tensor([ids]), torch.arange(len(ids))[None]))[0, -1]


def textbook_greedy(model, prompt, *, longest, ends=(), shortest=0) -> list[int]:
    """Without a cache or a batch; several ends count together."""
    ids = list(prompt)
    while len(ids) - len(prompt) < longest:
        chances = logits_after(model, ids).softmax(-1)
        end = float(sum(chances[e] for e in ends))
        chances[list(ends)] = 0.0
        best = int(chances.argmax())
        if end > chances[best] and len(ids) - len(prompt) >= shortest:
            break
        ids.append(best)
    return ids[len(prompt) :]


def textbook_beam(model, prompt, *, width, longest) -> list[tuple[float, list[int]]]:
    """Of texts that never end; the best by their summed log-probability."""
    live = [(0.0, [])]
    for _ in range(longest):
        grown = []
        for score, ids in live:
            logs = logits_after(model, [*prompt, *ids]).double().log_softmax(-1)
            grown += [(score + float(logs[i]), [*ids, i]) for i in range(VOCABULARY)]
        live = sorted(grown, key=lambda g: -g[0])[:width]
    return live


@given(
    prompts=st.lists(st.lists(st.integers(0, 23), min_size=1, max_size=6), min_size=1, max_size=4),
    ends=st.lists(st.integers(0, 23), unique=True, max_size=3),
    shortest=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=slow_examples(20))
def test_greedy_is_the_textbook_s(prompts, ends, shortest, seed):
    model = build(seed)
    found = generate(model, prompts, ends=ends, max_length=8, min_length=shortest)
    for prompt, text in zip(prompts, found, strict=True):
        expected = textbook_greedy(model, prompt, longest=8, ends=ends, shortest=shortest)
        assert list(text.tokens) == expected
        assert text.ended == ("length" if len(expected) == 8 else "end")
        logs = [
            float(logits_after(model, [*prompt, *expected[:i]]).log_softmax(-1)[token])
            for i, token in enumerate(expected)
        ]
        assert text.token_scores == pytest.approx(logs, abs=1e-4)
        if text.ended == "length":  # being cut costs nothing
            assert text.score == pytest.approx(sum(logs), abs=1e-4)


def test_beam_is_the_textbook_s():
    model = build(3)
    prompts = [[5, 9, 2], [7]]
    found = generate(model, prompts, beam=4, n_best=4, max_length=6, length_penalty=0.0)
    for prompt, text in zip(prompts, found, strict=True):
        expected = textbook_beam(model, prompt, width=4, longest=6)
        assert [list(t.tokens) for t in text.n_best] == [ids for _, ids in expected]
        scores = [score for score, _ in expected]
        assert [t.score for t in text.n_best] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("cache", ["growing", "static", "ring"])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_does_not_depend_on_the_batch_nor_on_the_cache(way, cache):
    model = build(1, window=True)
    prompts = [[5, 9, 2, 8, 1, 7, 3], [7], [3, 4, 5], [1, 1, 2, 9, 8]]
    options = {**WAYS[way], "max_length": 12, "cache": cache, "stop": ("ab", "b")}
    together = partial(generate, model, tokenizer=ByteTokenizer(), ends=[4, 6], **options)
    found = together(prompts)
    assert len({text.tokens for text in found}) == 4
    for name, (prompt, expected) in enumerate(zip(prompts, found, strict=True)):
        (alone,) = together([prompt], first_name=name)
        same(alone, expected)
    for one, other in zip(together(prompts, batch_size=1), found, strict=True):
        same(one, other)
    plain = generate(
        model, prompts, ByteTokenizer(), ends=[4, 6], **{**options, "cache": "growing"}
    )
    for one, other in zip(plain, found, strict=True):
        same(one, other)


def same(a, b):
    assert [(t.tokens, t.text, t.ended) for t in a.n_best] == [
        (t.tokens, t.text, t.ended) for t in b.n_best
    ]
    for one, other in zip(a.n_best, b.n_best, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_a_ring_goes_on_past_its_window_in_constant_memory(monkeypatch):
    model = build(2, window=True)
    prompt = [5, 9, 2, 8, 1, 7, 3] * 40  # read in several chunks
    sizes = set()
    step = Stack.step

    def watched(self, *arguments):
        states, state = step(self, *arguments)
        sizes.update(cache.keys.shape[2] for caches in state.blocks for cache in caches if cache)
        return states, state

    monkeypatch.setattr(Stack, "step", watched)
    (ring,) = generate(model, [prompt], max_length=30)
    assert sizes == {WINDOW + 128}  # a chunk of 128, and the slot for padding
    (growing,) = generate(model, [prompt], max_length=30, cache="growing")
    assert max(sizes) > 300
    assert ring.tokens == growing.tokens
    # All that a token knows lies within the windows of the layers below it.
    assert textbook_greedy(model, prompt, longest=3) == list(ring.tokens[:3])


@given(
    seed=st.integers(0, 999),
    prompt=st.lists(st.integers(0, 23), min_size=1, max_size=5),
    place=st.tuples(st.integers(0, 12), st.integers(1, 4)),
    sampling=st.booleans(),
    end=st.integers(0, 23),
)
@settings(max_examples=slow_examples(40))
def test_stop_strings_end_the_text_and_streams_are_the_text(seed, prompt, place, sampling, end):
    model, tokenizer = build(seed % 5), ByteTokenizer()
    draws = {"sampling": True, "seed": seed, "temperature": 2.0} if sampling else {}
    run = partial(generate, model, [prompt], tokenizer, ends=[end], max_length=14, **draws)
    (whole,) = run()
    stop = whole.text[place[0] : sum(place)]
    options = {"stop": (stop, "never seen")} if stop and "\ufffd" not in stop else {}
    (cut,) = run(**options)
    if options:
        assert cut.text == whole.text[: whole.text.find(stop)]
        assert cut.ended == "stop"
        assert whole.tokens[: len(cut.tokens)] == cut.tokens
        # The last token is the one that completes the stop string.
        assert stop not in RunningText(tokenizer, prompt).full(cut.tokens[:-1])
    pieces = list(stream(model, prompt, tokenizer, ends=[end], max_length=14, **draws, **options))
    assert "".join(pieces) == cut.text
    assert "" not in pieces


def test_a_stream_never_cuts_a_character_and_gives_what_is_certain_at_once():
    euro = [1, 4, 5, 6, 0]  # b, three bytes of €, a
    text = RunningText(ByteTokenizer(), [0], stop=("ab", "€€"))
    grown = [text.ready(euro[:n]) for n in range(6)]
    # The euro sign is held back as it may be the first of two, the a as it may be of "ab".
    assert grown == ["", "b", "b", "b", "b", "b€"]
    plain = RunningText(ByteTokenizer(), [0])
    assert [plain.ready(euro[:n]) for n in range(6)] == ["", "b", "b", "b", "b€", "b€a"]
    assert plain.text(euro[:3]) == "b\ufffd"  # where generation ends there


def test_text_continues_the_prompt_s():
    class Words:
        """As SentencePiece: pieces bring their space, and a text's first one is dropped."""

        def decode(self, ids):
            return "".join([" one", " two", "s"][id] for id in ids).removeprefix(" ")

    assert RunningText(Words(), [0]).text([1, 2]) == " twos"
    assert RunningText(ByteTokenizer(), [4, 5]).text([6, 0]) == "€a"  # begun in the prompt
    assert RunningText(ByteTokenizer(), [0] * 50).text([1]) == "b"


def test_the_first_of_several_stop_strings_counts():
    assert RunningText(ByteTokenizer(), [0], stop=("b", " ")).text([22, 21, 23]) == "xa"


@torch.inference_mode()
def test_whether_to_stop_is_asked_about_the_prompt_that_a_row_continues():
    asked = []

    def stopped(row, ids):
        asked.append((row, ids))
        return False

    search = Continuation(build(), vocabulary=VOCABULARY, ends=[], limit=9, stopped=stopped)
    state = search.start(torch.tensor([[5], [6], [7]]), torch.zeros((3, 1), dtype=torch.int64))
    _, state = search.step(state, torch.full((3, 1), search.end))
    _, state = search.step(state, torch.tensor([[10], [11], [12]]))
    state = search.reorder(state, torch.tensor([[2, 2], [1, 1]]))  # the first prompt is done
    asked.clear()
    search.step(state, torch.tensor([[13, 14], [15, 16]]))
    assert asked == [(2, [12, 13]), (2, [12, 14]), (1, [11, 15]), (1, [11, 16])]


def test_a_stream_starts_before_all_is_computed(monkeypatch):
    model = build(1)
    steps = itertools.count()
    step = CausalLM.step

    def counted(self, state, tokens):
        next(steps)
        return step(self, state, tokens)

    monkeypatch.setattr(CausalLM, "step", counted)
    pieces = stream(model.train(), [5], ByteTokenizer(), max_length=30)
    assert model.training  # nothing happens before the first piece is asked for
    next(pieces)
    assert next(steps) < 15
    pieces.close()
    assert model.training


def test_samples_are_a_function_of_seed_and_number():
    model = build()
    draw = partial(generate, model, sampling=True, temperature=3.0, max_length=10)
    first, second = draw([[5], [5]])
    assert first.tokens != second.tokens
    assert draw([[5]], first_name=1)[0].tokens == second.tokens
    assert draw([[5]], seed=2)[0].tokens != first.tokens
    text = ByteTokenizer()
    streamed = stream(model, [5], text, name=1, sampling=True, temperature=3.0, max_length=10)
    assert "".join(streamed) == draw([[5]], text, first_name=1)[0].text


def test_positions_past_the_table_are_refused_before_anything_is_computed(monkeypatch):
    model = build(learned=True)
    (full,) = generate(model, [[5] * 30], max_length=10)
    assert len(full.tokens) == 10
    monkeypatch.setattr(CausalLM, "extend", None)
    with pytest.raises(ModelError, match=r"prompt 2: 31 tokens and 10 new .* 40 .* at most 9"):
        generate(model, [[5], [5] * 31], max_length=10)
    with pytest.raises(ModelError, match="less than 40"):
        stream(model, [5] * 40, ByteTokenizer(), max_length=1)


def test_what_cannot_be_asked():
    model = build()
    with pytest.raises(DataError, match="prompt 2: The prompt has no tokens"):
        generate(model, [[5], []])
    for wrong in (24, -1):
        with pytest.raises(DataError, match=f"no token {wrong}"):
            generate(model, [[5, wrong]])
    with pytest.raises(ConfigError, match="tokenizer"):
        generate(model, [[5]], stop=("a",))
    with pytest.raises(ConfigError, match="window"):
        generate(model, [[5]], cache="ring")
    with pytest.raises(ConfigError, match="coverage"):
        generate(model, [[5]], coverage_penalty=0.1)
    with pytest.raises(ConfigError, match="stop"):
        generate(model, [[5]], ByteTokenizer(), stop=("",))
    with pytest.raises(ConfigError, match="Only one"):
        stream(model, [5], ByteTokenizer(), beam=2)
    with pytest.raises(ConfigError, match="Only one"):
        stream(model, [5], ByteTokenizer(), sampling=True, n_best=2)
    assert generate(model, []) == []
    assert generate(model, [[5]], settings=GenerationSettings(max_length=3))[0].ended == "length"
