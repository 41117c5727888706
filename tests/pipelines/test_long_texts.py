"""Texts longer than a model can read: every word tagged, answers anywhere found."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.pipelines.encoder_input import answer_tokens, parts_of, word_tokens
from heedful.pipelines.text_encoding import EncoderPipeline
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

ROOM = 22  # of the encoder's 24 tokens two stand around a text
WORDS = ["the", "cat", "dogs", "sat", "onsy", "mat."]


@pytest.fixture(scope="module")
def pipeline(encoder_directory) -> EncoderPipeline:
    return heedful.load(encoder_directory, device="cpu")


@pytest.fixture(scope="module")
def trained():
    texts = [" ".join(WORDS), "low lower lowest, the 12"]
    return {
        kind: train_tokenizer(TokenizerSpec(kind=kind, vocabulary_size=size), texts).for_encoder()
        for kind, size in (("bpe", 60), ("byte-bpe", 300), ("unigram", 60), ("characters", 60))
    }


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "byte-bpe", "wordpiece"])
@given(
    words=st.lists(st.text(alphabet="catlowers,.1 \u00e9", min_size=1, max_size=6), max_size=6),
    room=st.integers(1, 8),
    stride=st.none() | st.integers(1, 9),
)
@settings(max_examples=40)
def test_every_word_has_one_piece_of_its_own_in_one_window(
    trained, make_wordpiece, kind, words, room, stride
):
    words = [word for word in map(str.strip, words) if word]
    tokenizer = make_wordpiece() if kind == "wordpiece" else trained[kind]
    ids, pieces = word_tokens(tokenizer, words)
    text = " ".join(words)
    assert ids == tokenizer.encode(text)
    assert None not in pieces
    assert sorted(set(pieces)) == pieces  # each another, in the order of the words
    spans = tokenizer.encode_spans(text)[1]
    begin = 0
    for word, piece in zip(words, pieces, strict=True):
        # the piece reaches into its word, and no piece before it does
        low, high = spans[piece]
        assert low <= begin
        assert begin <= high <= begin + len(word)
        assert all(end <= begin for _, end in spans[:piece])
        begin += len(word) + 1
    frame = len(tokenizer.first) + len(tokenizer.last)
    parts = parts_of(tokenizer, ids, longest=room + frame, where="here", stride=stride)
    seen = []
    for part in parts:
        assert len(part.input.ids) <= room + frame
        low, high = part.window.start, part.window.end
        shift = part.shift
        assert list(part.input.ids[low + shift : high + shift]) == ids[low:high]
        seen += range(part.window.own_start, part.window.own_end)
    assert seen == list(range(len(ids)))


@given(
    context=st.lists(st.sampled_from(["cat", "lower", "12", ",", "x"]), min_size=1, max_size=8),
    data=st.data(),
)
@settings(max_examples=60)
def test_an_answer_is_held_by_its_pieces_and_no_more(trained, context, data):
    text = " ".join(context)
    first = data.draw(st.integers(0, len(context) - 1))
    last = data.draw(st.integers(first, len(context) - 1))
    start = len(" ".join([*context[:first], ""]))
    answer = " ".join(context[first : last + 1])
    for tokenizer in trained.values():
        spans = tokenizer.encode_spans(text)[1]
        low, high = answer_tokens(spans, start, start + len(answer))
        assert text[spans[low][0] : spans[high][1]].strip() == answer


def test_characters_that_no_piece_holds():
    assert answer_tokens([(0, 0), (0, 2), (3, 4)], 2, 3) is None
    assert answer_tokens([(0, 0), (0, 2), (3, 4)], 0, 1) == (1, 1)


@torch.no_grad()
def test_a_long_line_is_tagged_whole(pipeline):
    draw = random.Random(1)
    words = draw.choices(WORDS, k=70)
    (found,) = pipeline.tag([" ".join(words)])
    assert [one.token for one in found] == words
    alone = pipeline.tag([words], batch_size=1)[0]
    assert [one.label for one in alone] == [one.label for one in found]
    ids, spans = pipeline.tokenizer.encode_spans(" ".join(words))
    starts = list(itertools.accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    windows = [*range(0, len(ids) - ROOM, ROOM // 2), len(ids) - ROOM]
    for one, start in zip(found, starts, strict=True):
        piece = next(i for i, span in enumerate(spans) if span[0] == start)
        around = {w: min(piece - w, w + ROOM - 1 - piece) for w in windows}
        expected = []
        for begin in (w for w in windows if around[w] == max(around.values())):  # one, or two alike
            row = [2, *ids[begin : begin + ROOM], 3]
            states = pipeline.model(torch.tensor([row]), torch.arange(len(row))[None])
            logits = pipeline.model.token_logits(states)[0, 1 + piece - begin].softmax(-1)
            expected.append((("NOUN", "VERB", ".")[int(logits.argmax())], float(logits.max())))
        assert any(
            one.label == label and one.probability == pytest.approx(value, abs=1e-5)
            for label, value in expected
        )


def test_words_may_hold_spaces_when_they_are_given_as_a_list(pipeline):
    (found,) = pipeline.tag([["the cat", "sat"]])
    assert [one.token for one in found] == ["the cat", "sat"]
    (same,) = pipeline.tag(["the cat sat"])
    assert found[0].label == same[0].label
    assert found[1].label == same[2].label
    assert pipeline.tag([[], "", " "]) == [[], [], []]


@torch.no_grad()
def test_an_answer_is_the_best_of_all_windows(pipeline):
    draw = random.Random(2)
    context = " ".join(draw.choices(WORDS, k=40))
    (found,) = pipeline.answer([("who?", context)], max_answer=4)
    (same,) = pipeline.answer([("who?", context)], max_answer=4, unanswerable=False, batch_size=1)
    assert same.text == found.text != ""
    question = [2, *pipeline.tokenizer.encode("who?"), 3]
    ids, spans = pipeline.tokenizer.encode_spans(context)
    room = 24 - len(question) - 1
    best, none = [], []
    for begin in [*range(0, len(ids) - room, room // 2), len(ids) - room]:
        row = torch.tensor([[*question, *ids[begin : begin + room], 3]])
        positions = torch.arange(24)[None]
        states = pipeline.model(row, positions, (positions >= len(question)).long())
        starts, ends = pipeline.model.span_logits(states)[0].softmax(0).unbind(-1)
        none.append(float(starts[0] * ends[0]))
        for i in range(room):
            for j in range(i, min(i + 4, room)):
                at = len(question) + i, len(question) + j
                best.append((float(starts[at[0]] * ends[at[1]]), begin + i, begin + j))
    probability, first, last = max(best)
    assert found.probability == pytest.approx(probability, abs=1e-5)
    assert (found.start, found.end) == (spans[first][0], spans[last][1])
    (maybe,) = pipeline.answer([("who?", context)], max_answer=4, unanswerable=True)
    if min(none) > probability:
        assert (maybe.text, maybe.start, maybe.end) == ("", 0, 0)
        assert maybe.probability == pytest.approx(min(none), abs=1e-5)
    else:
        assert maybe == found


def test_no_answer_is_given_where_every_window_says_so(pipeline, monkeypatch):
    def favour_first(states):
        logits = torch.zeros(*states.shape[:2], 2)
        logits[:, 0] = 9.0
        return logits

    monkeypatch.setattr(pipeline.model, "span_logits", favour_first)
    pair = ("who?", "the cat " * 30)
    (none,) = pipeline.answer([pair], unanswerable=True)
    assert (none.text, none.start, none.end) == ("", 0, 0)
    assert none.probability > 0.9
    assert pipeline.answer([pair])[0].text  # the model was not trained to
    assert pipeline.answer([pair], unanswerable=False)[0].text
