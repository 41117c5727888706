"""What an encoder's heads say of raw text, against the plain definition, in any batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.errors import ConfigError, DataError, ModelError
from heedful.pipelines.predictions import Answer, best_span, cut, first_tokens
from heedful.pipelines.text_encoding import EncoderPipeline
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

TEXTS = [
    "the cat sat on the mat.",
    "",
    "Dogs ran",
    "who ran?",
    " \t ",
    "a \u0301\x00 cat",
    "the the the dog sat on a mat on a mat.",
]
CONTEXTS = [("who sat?" if n % 2 else "the dog?", text) for n, text in enumerate(TEXTS)]
PAIRS = [(text, "the dog.") if n % 2 else text for n, text in enumerate(TEXTS)]
MASKED = ["the [MASK] sat", "", "[MASK] dogs [MASK] on the mat.", "a [MASK]?", "  "]
EMPTY = {1, 4}


@pytest.fixture(scope="module")
def pipeline(encoder_directory) -> EncoderPipeline:
    return heedful.load(encoder_directory, device="cpu")


def states_of(pipeline: EncoderPipeline, ids: list[int], second: int):
    """One text through the model, and its positions."""
    positions = torch.arange(len(ids))[None]
    segments = (positions >= second).long()
    with torch.no_grad():
        return pipeline.model(torch.tensor([ids]), positions, segments), positions


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5)


def same(one, other) -> bool:
    """Equal but for the last digits of probabilities."""
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if one is None or isinstance(one, str | int):
        return one == other
    if isinstance(one, float):
        return close(one, other)
    return all(same(value, vars(other)[name]) for name, value in vars(one).items())


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 3}, {"batch_tokens": 20}])
def test_batches_change_nothing(pipeline, options):
    for method, texts in (
        (pipeline.fill, MASKED),
        (pipeline.classify, PAIRS),
        (pipeline.tag, TEXTS),
        (pipeline.answer, CONTEXTS),
    ):
        together = method(texts)
        assert len(together) == len(texts)
        assert same(together, method(texts, **options))
        backwards = method(texts[::-1], **options)[::-1]
        assert same(together, backwards)


def test_candidates_are_the_likeliest_pieces_at_each_mask(pipeline):
    found = pipeline.fill(MASKED, top=4)
    assert [len(masks) for masks in found] == [1, 0, 2, 1, 0]
    for text, masks in zip(MASKED, found, strict=True):
        if not masks:
            continue
        ids = [2, *pipeline.tokenizer.encode(text), 3]
        states, _ = states_of(pipeline, ids, len(ids))
        places = [place for place, id in enumerate(ids) if id == 4]
        for place, candidates in zip(places, masks, strict=True):
            expected = pipeline.model.masked_lm_logits(states[0, place]).softmax(-1).tolist()
            values = [candidate.probability for candidate in candidates]
            pieces = expected[: pipeline.tokenizer.size]
            assert all(map(close, values, sorted(pieces, reverse=True)[:4]))
            for candidate in candidates:
                id = next(
                    i for i in range(len(pieces)) if pipeline.tokenizer.token(i) == candidate.token
                )
                assert close(expected[id], candidate.probability)
    everything = pipeline.fill(["a [MASK]"], top=1000)[0][0]
    assert len(everything) == pipeline.tokenizer.size
    assert sum(candidate.probability for candidate in everything) < 1  # spare rows have some


def test_the_mask_may_be_called_otherwise(pipeline, make_encoder, make_wordpiece, tmp_path):
    other = make_encoder(tmp_path / "other", tokenizer=make_wordpiece("<mask>"))
    named = heedful.load(other, device="cpu")
    found = named.fill(["the [MASK] sat", "the <mask> sat"])
    assert same(found[0], found[1])
    assert same(found[0], pipeline.fill(["the [MASK] sat"])[0])


def test_labels_of_texts_and_pairs(pipeline):
    found = pipeline.classify(PAIRS)
    names = ("bad", "so so", "good")
    assert [not labels for labels in found] == [
        not (text if isinstance(text, str) else "".join(text)).strip() for text in PAIRS
    ]
    for text, labels in zip(PAIRS, found, strict=True):
        if not labels:
            continue
        first, other = (text, None) if isinstance(text, str) else text
        ids = [2, *pipeline.tokenizer.encode(first), 3]
        second = len(ids)
        ids += [] if other is None else [*pipeline.tokenizer.encode(other), 3]
        logits = pipeline.model.sequence_logits(*states_of(pipeline, ids, second))[0]
        expected = dict(zip(names, logits.softmax(-1).tolist(), strict=True))
        assert all(close(label.probability, expected[label.label]) for label in labels)
        values = [label.probability for label in labels]
        assert values == sorted(values, reverse=True)
        assert {label.label for label in labels} == set(names)


@torch.no_grad()
def test_a_word_has_the_label_of_its_first_piece(pipeline):
    (found,) = pipeline.tag(["  Cats\tsat   \u200b\u0301 onsy mat. "])
    assert [word.token for word in found] == ["Cats", "sat", "\u200b\u0301", "onsy", "mat."]
    ids = [2, *pipeline.tokenizer.encode("cats sat onsy mat."), 3]
    assert pipeline.tokenizer.pieces(ids[1:-1]) == [
        *("cat", "##s", "sat", "on", "##s", "##y", "mat", ".")
    ]
    states, _ = states_of(pipeline, ids, len(ids))
    probabilities = pipeline.model.token_logits(states)[0].softmax(-1)
    assert (found[2].label, found[2].probability) == (None, None)
    for word, place in zip(found[:2] + found[3:], (1, 3, 4, 7), strict=True):
        assert word.label == ("NOUN", "VERB", ".")[int(probabilities[place].argmax())]
        assert close(word.probability, float(probabilities[place].max()))
    assert same(found, pipeline.tag(["Cats sat \u200b\u0301 onsy mat."])[0])
    assert pipeline.tag([" ", ""]) == [[], []]


def test_first_pieces_may_begin_with_the_space_before_them():
    words = ["ab", "c", "de"]  # "ab c de"
    assert first_tokens(words, [(0, 2), (2, 4), (4, 6), (6, 7)]) == [0, 1, 2]
    assert first_tokens(words, [(0, 0), (0, 2), (2, 3), (3, 4), (4, 7)]) == [0, 2, 4]
    assert first_tokens(words, [(0, 2), (5, 7)]) == [0, None, 1]
    assert first_tokens(words, [(0, 7)]) == [0, None, None]
    assert first_tokens(words, []) == [None] * 3


@torch.no_grad()
@pytest.mark.parametrize("longest", [1, 2, 30])
def test_an_answer_is_the_best_part_of_its_context(pipeline, longest):
    pairs = [
        ("the cat?", "The  Dogs sat on the CAFÉ mat."),
        ("who on the mat sat", "a cat sat"),
        ("who?", "ran"),
        ("who?", " "),
        ("who?", "\x00"),
    ]
    found = pipeline.answer(pairs, max_answer=longest)
    assert found[3:] == [Answer("", 0, 0, 0.0)] * 2
    for (question, context), answer in zip(pairs[:3], found, strict=False):
        begin = [2, *pipeline.tokenizer.encode(question), 3]
        ids, places = pipeline.tokenizer.encode_spans(context)
        whole = [*begin, *ids, 3]
        states, _ = states_of(pipeline, whole, len(begin))
        starts, ends = pipeline.model.span_logits(states)[0].softmax(0).unbind(-1)
        best = max(
            (float(starts[len(begin) + i] * ends[len(begin) + j]), i, j)
            for i, j in itertools.product(range(len(ids)), repeat=2)
            if 0 <= j - i < longest
        )
        assert close(answer.probability, best[0])
        assert (answer.start, answer.end) == (places[best[1]][0], places[best[2]][1])
        assert answer.text == context[answer.start : answer.end] != ""


@given(length=st.integers(1, 7), longest=st.integers(1, 9), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_the_best_of_all_spans_that_are_allowed(length, longest, seed):
    draw = torch.Generator().manual_seed(seed)
    starts, ends = torch.randn(2, length, generator=draw)
    allowed = [
        (float(starts[i] + ends[j]), (i, j))
        for i, j in itertools.product(range(length), repeat=2)
        if i <= j < i + longest
    ]
    assert best_span(starts, ends, longest) == max(allowed)[1]


def test_answers_have_no_white_space_around_them():
    assert cut("a  cat \tran", 1, 8, 0.5) == Answer("cat", 3, 6, 0.5)
    assert cut("a cat", 2, 5, 0.5) == Answer("cat", 2, 5, 0.5)


def test_tokenizers_trained_here_serve_too(make_encoder, tmp_path):
    tokenizer = train_tokenizer(TokenizerSpec(kind="bpe", vocabulary_size=40), TEXTS[:4] * 3)
    own = heedful.load(make_encoder(tmp_path / "own", tokenizer=tokenizer, spare_rows=0))
    assert same(
        own.classify(["the cat", "the"]), [own.classify([t])[0] for t in ("the cat", "the")]
    )
    assert [word.token for word in own.tag([" the  cat "])[0]] == ["the", "cat"]
    assert all(word.label for word in own.tag(["the cat"])[0])
    with pytest.raises(ModelError, match="no token that hides"):
        own.fill(["the [MASK]"])
    with pytest.raises(ModelError, match="two texts"):
        own.classify([("the", "cat")])
    with pytest.raises(ModelError, match="two texts"):
        own.answer([("the", "cat")])


@torch.no_grad()
def test_masks_of_tokenizers_trained_here(make_encoder, tmp_path):
    trained = train_tokenizer(TokenizerSpec(kind="bpe", vocabulary_size=40), TEXTS[:4] * 3)
    tokenizer = trained.for_encoder()
    own = heedful.load(make_encoder(tmp_path / "own", tokenizer=tokenizer, spare_rows=0))
    (the, sat) = (tokenizer.encode(word) for word in ("the", "sat"))
    ids = [tokenizer.bos, *the, tokenizer.mask, *sat, tokenizer.eos]
    states, _ = states_of(own, ids, len(ids))
    expected = own.model.masked_lm_logits(states[0, 1 + len(the)]).softmax(-1)
    ((candidates,),) = own.fill(["the [MASK] sat"], top=1)
    assert candidates[0].token == tokenizer.token(int(expected.argmax()))
    assert close(candidates[0].probability, float(expected.max()))


def test_mistakes_name_the_line(pipeline):
    long = "the " * 23
    for method, text in (
        (pipeline.fill, "[MASK] " + long),
        (pipeline.classify, (long, long)),
    ):
        fine = ("who", "ran") if isinstance(text, tuple) else "[MASK]"
        with pytest.raises(DataError, match=r"^line 12: \d+ tokens.* than the 24 "):
            method([fine, fine, text], first_line=10)
    with pytest.raises(DataError, match=r"^line 2: There is no .MASK."):
        pipeline.fill(["[MASK]", "the cat"])
    with pytest.raises(DataError, match=r"^line 1: There is no question"):
        pipeline.answer([(" ", "the cat")])
    with pytest.raises(DataError, match=r"^line 3: 26 tokens.* leave no room .* 24 is the most"):
        pipeline.answer([("who", "ran"), ("", " "), (long, "cat")])
    with pytest.raises(ConfigError, match="top = 0"):
        pipeline.fill(["[MASK]"], top=0)
    with pytest.raises(ConfigError, match="max_answer = 0"):
        pipeline.answer([], max_answer=0)
    with pytest.raises(ConfigError, match="batch_size = 0"):
        pipeline.tag(["the"], batch_size=0)


@pytest.mark.parametrize("method", ["fill", "classify", "tag", "answer"])
def test_a_head_that_is_not_there_is_told_with_those_that_are(make_encoder, tmp_path, method):
    heads = {"fill": "masked_lm", "classify": "sequence", "tag": "token", "answer": "span"}
    others = [head for name, head in heads.items() if name != method]
    pipeline = heedful.load(make_encoder(tmp_path / "some", *others))
    with pytest.raises(ModelError, match=f"no {heads[method]} head; it has: {', '.join(others)}"):
        getattr(pipeline, method)([])
