"""Sentences that join others get what they get in a batch of their own."""

from __future__ import annotations

import string
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.batches import pad
from heedful.decode.ensemble import Ensemble
from heedful.decode.feed import Feed, decoded
from heedful.decode.pipeline import TranslationPipeline
from heedful.decode.precision import keep_in
from heedful.decode.protocol import Specials
from heedful.decode.search import Search, Sources, search
from heedful.decode.settings import SearchSettings
from heedful.device import resolve_precision
from heedful.errors import RunError
from heedful.models.shape import TranslatorShape
from heedful.models.translator import Translator
from heedful.text.pair import train_pair
from heedful.text.spec import TokenizerSpec

SPECIALS = Specials(pad=0, bos=1, eos=2)
VOCABULARY = 13
SHAPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "learned": {"positions": "learned", "max_length": 40},
    "modern": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "num_kv_heads": 2},
    "alibi": {"positions": "alibi", "norm_placement": "pre"},
    "t5": {"positions": "t5"},
    "relative": {"positions": "relative_keys"},
    "window": {"window": 3},
}
SENTENCE = st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=7)
BATCHES = st.lists(st.lists(SENTENCE, min_size=1, max_size=3), min_size=2, max_size=4)
CHOSEN = st.builds(
    lambda beam, n_best, **others: SearchSettings(beam=beam, n_best=min(n_best, beam), **others),
    beam=st.integers(1, 4),
    n_best=st.integers(1, 3),
    no_repeat_ngram=st.sampled_from([0, 2]),
    min_length=st.sampled_from([0, 3]),
    max_length=st.sampled_from([None, 5]),
    coverage_penalty=st.sampled_from([0.0, 0.3]),
    length_penalty=st.sampled_from([0.0, 1.0]),
)


def random_model(shape: str, seed: int) -> Translator:
    """In float64, where near ties do not hang on the order of sums."""
    torch.manual_seed(seed)
    dials = {"width": 16, "num_heads": 4, "feedforward": 32, "encoder_layers": 1} | SHAPES[shape]
    model = Translator(TranslatorShape(decoder_layers=2, **dials).expand(VOCABULARY, VOCABULARY))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def same(one, other):
    for first, second in zip(one, other, strict=True):
        assert [h.tokens for h in first] == [h.tokens for h in second]
        assert [h.finished for h in first] == [h.finished for h in second]
        for a, b in zip(first, second, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-5)
            assert a.normalized_score == pytest.approx(b.normalized_score, abs=1e-5)
            assert a.token_scores == pytest.approx(b.token_scores, abs=1e-5)


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    batches=BATCHES,
    chosen=CHOSEN,
    together=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60)
def test_who_joins_when_changes_nothing(shape, batches, chosen, together, data):
    model: Any = random_model(shape, 0)
    if together:
        model = Ensemble([model, random_model("paper", 1)])
    prefixes = [
        [data.draw(st.lists(st.integers(3, 6), max_size=3)) for _ in batch] for batch in batches
    ]
    searching = Search(model, chosen, SPECIALS, longest=12)
    found, waiting, begun = {}, list(range(len(batches))), []
    while waiting or searching.alive:
        if waiting and (not searching.alive or data.draw(st.booleans())):
            number = waiting.pop(0)
            sources = Sources(*pad(batches[number], 0, last=2), prefixes[number])
            searching.add(sources)
            begun.append(sources)
        for sources, hypotheses in searching.step():
            number = next(i for i, each in enumerate(begun) if each is sources)
            assert number not in found
            found[number] = hypotheses
    for number, batch in enumerate(batches):
        alone = search(
            model,
            *pad(batch, 0, last=2),
            chosen,
            specials=SPECIALS,
            prefixes=prefixes[number],
            longest=12,
        )
        same(found[number], alone)


WORDS = [
    "ab",
    "cd efg",
    "h",
    "",
    "bad cab fed",
    "a bee",
    "face",
    "dead beef",
    "g",
    "hag fed",
    "abc",
]
TEXTS = [f"{one} {other}"[: 3 + i % 9] for i, one in enumerate(WORDS) for other in WORDS[::3]][:30]


@pytest.fixture(scope="module", params=["modules", "kernels"])
def translator(request) -> TranslationPipeline:
    pair = train_pair(TokenizerSpec(kind="characters"), [string.ascii_lowercase], ["abcd"])
    torch.manual_seed(6)
    shape = TranslatorShape(
        width=32, encoder_layers=1, decoder_layers=2, num_heads=2, feedforward=32, max_length=60
    )
    model = Translator(shape.expand(pair.source.size, pair.target.size)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    if request.param == "kernels":
        keep_in(model, resolve_precision("fp32", torch.device("cpu"), width=32, exact=True))
    return TranslationPipeline(model, pair)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 1},
        {"n_best": 3},
        {"alignment": True},
        {"no_repeat_ngram": 2},
        {"sampling": True},
    ],
)
@pytest.mark.parametrize("size", [{"batch_size": 6}, {"batch_tokens": 300}])
def test_translations_are_those_of_batches(translator, options, size):
    done: list[tuple[int, int]] = []
    asked = {"max_length": 15, **options, **size}
    expected = translator.translate(TEXTS, **asked)
    found = translator.translate(
        TEXTS, continuous_batching=True, progress=lambda *t: done.append(t), **asked
    )
    assert [t.tokens for t in found] == [t.tokens for t in expected]
    assert [t.score for t in found] == pytest.approx([t.score for t in expected], abs=1e-5)
    assert [list(map(str, t.others)) for t in found] == [list(map(str, t.others)) for t in expected]
    for one, other in zip(found, expected, strict=True):
        if other.alignment is not None:
            for row, known in zip(one.alignment.matrix, other.alignment.matrix, strict=True):
                assert row == pytest.approx(known, abs=1e-5)
    segments = sum(bool(text.strip()) for text in TEXTS)
    assert done[-1] == (segments, segments)
    assert done == sorted(set(done))


def test_they_do_join(translator, monkeypatch):
    joined = []
    join = translator.model.join
    monkeypatch.setattr(translator.model, "join", lambda *s: joined.append(1) or join(*s))
    translator.translate(TEXTS, max_length=15, batch_size=8)
    assert not joined
    translator.translate(TEXTS, max_length=15, batch_size=8, continuous_batching=True)
    assert joined


@pytest.mark.parametrize("beam", [1, 3])
def test_a_long_stream_takes_no_more_and_more_room(monkeypatch, beam):
    model = random_model("paper", 0)
    lengths = torch.randint(1, 8, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    sentences = [[3 + (i * 7 + n) % 10 for n in range(length)] for i, length in enumerate(lengths)]
    slots, sources, alive, kept = [], [], [], []
    step = model.step

    def watched(state, tokens):
        slots.append(state.lineage.positions.shape[1])
        sources.append(state.memory_positions.shape[1])
        alive.append(tokens.shape[0])
        return step(state, tokens)

    monkeypatch.setattr(model, "step", watched)
    chosen = SearchSettings(beam=beam)
    search_ = Search(model, chosen, SPECIALS, longest=30)

    class Counting:
        alive = property(lambda self: search_.alive)

        def __init__(self):
            self.numbers = {}

        def add(self, numbers):
            given = Sources(*pad([sentences[i] for i in numbers], 0, last=2))
            self.numbers[id(given)] = numbers
            kept.append(given)
            search_.add(given)

        def step(self):
            return [(self.numbers[id(given)], found) for given, found in search_.step()]

    counting = Counting()
    feed = Feed(range(300), lambda _: 8, joins=True)
    found = [n for numbers, _ in decoded(feed, lambda: counting) for n in numbers]
    assert sorted(found) == list(range(300))
    assert max(alive) == 8
    assert len(alive) > 300
    assert max(slots) <= 4 * beam * 31  # twice what 31 steps need, before it is looked at again
    assert max(sources) <= 8
    assert not search_.alive
    assert not search_._going


@pytest.mark.parametrize(("method", "most"), [("start", 3), ("step", 4), ("join", 0)])
def test_nothing_is_lost_where_memory_runs_out(translator, monkeypatch, method, most):
    expected = translator.translate(TEXTS, max_length=15)
    real, said, failed = getattr(translator.model, method), [], []

    def gated(state, tokens, *others):
        rows = len(tokens) if isinstance(tokens, torch.Tensor) else len(tokens.lengths)
        if rows > most and len(failed) < 9:
            failed.append(rows)
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(state, tokens, *others)

    monkeypatch.setattr(translator.model, method, gated)
    done = []
    found = translator.translate(
        TEXTS,
        max_length=15,
        batch_size=8,
        continuous_batching=True,
        warn=said.append,
        progress=lambda *told: done.append(told[0]),
    )
    assert failed
    assert len([text for text in said if "Out of memory" in text]) == len(failed)
    assert [t.tokens for t in found] == [t.tokens for t in expected]
    assert done[-1] == sum(bool(text.strip()) for text in TEXTS)


def test_threads_share_a_feed(translator):
    before = torch.get_num_threads()
    expected = translator.translate(TEXTS, max_length=15, batch_size=4)
    torch.set_num_threads(3)
    try:
        found = translator.translate(TEXTS, max_length=15, batch_size=4, continuous_batching=True)
    finally:
        torch.set_num_threads(before)
    assert [t.tokens for t in found] == [t.tokens for t in expected]


def test_what_a_feed_gives():
    said: list[str] = []
    feed = Feed(range(20), lambda n: 8 if n < 10 else 12, joins=True, warn=said.append, place=str)
    assert feed.take() == list(range(8))
    assert feed.take(alive=7, among=[0]) == []
    assert feed.take(alive=6, among=[0]) == [8, 9]
    assert feed.take(alive=6, among=[0]) == [10, 11]  # the longest alive decides
    feed.give_back([8, 9, 10, 11])  # four of eight were too many
    assert "Out of memory with 4 items" in said[0]
    assert feed.take() == [8, 9]
    assert feed.take(alive=2, among=[8]) == []
    assert feed.take() == [10, 11, 12]
    with pytest.raises(RunError, match="one text"):
        feed.give_back([10])
    alone = Feed(range(4), lambda _: 3)
    assert alone.take() == [0, 1, 2]
    assert alone.take(alive=1, among=[0]) == []
    assert alone.take() == [3]
    assert alone.take() == []
