"""Raw text in, translations out."""

from __future__ import annotations

import copy
import math
import pickle
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

import heedful
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.pipelines.search_items import plan_searches, search_items
from heedful.pipelines.text_splitting import clean, cut_texts, one_line
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import SearchOptions, SearchSettings, check_width
from heedful.text.tokenizer_pair import UNRECORDED
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

CORPUS = ["a dog runs by the lake.", "two cats sit, and look.", "Der Hund läuft am See!"] * 3
SHAPE = {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 2, "feedforward": 32}


def make(seed=0, kind="bpe", corpus=CORPUS, **dials):
    size = 300 if kind == "byte-bpe" else 60
    pair = train_pair(TokenizerSpec(kind=kind, vocabulary_size=size), corpus, corpus)
    torch.manual_seed(seed)
    shape = TranslatorShape(**({**SHAPE, "max_length": 30} | dials))
    model = Translator(translator_spec(shape, pair.source.size, pair.target.size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model, pair


@pytest.fixture(scope="module")
def pipeline():
    """A model that reads a line at once, so that a text and its segment are the same."""
    model, tokenizers = make()
    return TranslationPipeline(model, tokenizers.splitting("lines"))


@pytest.fixture(scope="module")
def bytewise():
    return TranslationPipeline(*make(kind="byte-bpe"))


TEXTS = [
    "a dog",
    "",
    "two cats look, and sit by the lake",
    "  ",
    "Hund!",
    "the See",
    "a",
    "dog. cat",
]


def same(one, other):
    assert list(one) == list(other)
    for first, second in zip(one, other, strict=True):
        assert first.score == pytest.approx(second.score, abs=1e-4)
        assert first.normalized_score == pytest.approx(second.normalized_score, abs=1e-4)
        assert first.tokens == second.tokens
        assert list(first.n_best) == list(second.n_best)


def test_candidates_of_a_text_differ_as_texts(pipeline, monkeypatch):
    # A tokenizer that spells most pieces alike: other tokens, same text.
    target = pipeline.tokenizers.target
    monkeypatch.setattr(target, "decode", lambda ids: "ab"[len(ids) % 2] * (len(ids) // 4))
    for translation in pipeline.translate(["a dog", "two cats"], beam=8, n_best=4, max_length=12):
        texts = [str(candidate) for candidate in translation.n_best]
        ranks = [candidate.normalized_score for candidate in translation.n_best]
        assert len(set(texts)) == len(texts)
        assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize("options", [{"beam": 4, "n_best": 3}, {"beam": 1}, {"sampling": True}])
def test_batching_changes_nothing(pipeline, options):
    expected = pipeline.translate(TEXTS, batch_size=64, **options)
    assert len(expected) == len(TEXTS)
    for batching in ({"batch_size": 1}, {"batch_size": 7}, {"batch_tokens": 40}, {}):
        same(pipeline.translate(TEXTS, **batching, **options), expected)
    halves = pipeline.translate(TEXTS[:3], **options) + pipeline.translate(
        TEXTS[3:], first_line=4, **options
    )
    same(halves, expected)


def test_empty_lines_never_reach_the_model(pipeline):
    def refuse(*args):
        raise AssertionError

    untouched = copy.copy(pipeline)
    untouched.engine = type("Refusing", (), {"start": refuse})()
    found = untouched.translate(["", " \t", "\n", "\x00\x07", "\u3000"])
    assert found == [""] * 5
    assert [(t.score, t.tokens, t.finished) for t in found] == [(0.0, (), True)] * 5
    assert pipeline.translate([]) == []


def test_alignment_changes_nothing(pipeline):
    plain = pipeline.translate(TEXTS, n_best=2)
    aligned = pipeline.translate(TEXTS, n_best=2, alignment=True)
    for without, with_ in zip(plain, aligned, strict=True):
        assert str(without) == str(with_)
        assert without.score == with_.score
        assert without.alignment is None
    for text, translation in zip(TEXTS, aligned, strict=True):
        if not text.strip():
            assert translation.alignment is None
            continue
        for candidate in translation.n_best:
            assert candidate.alignment.source_words == tuple(text.split())
            assert candidate.alignment.target_words == tuple(candidate.split())
            assert all(0 <= sum(row) <= 1 + 1e-5 for row in candidate.alignment.matrix)


def test_scores_of_translations_are_forced_scores(pipeline):
    texts = [text for text in TEXTS if text.strip()]
    target = pipeline.tokenizers.target
    for translation, text in zip(pipeline.translate(texts, n_best=3), texts, strict=True):
        for candidate in translation.n_best:
            ids = [
                next(i for i in range(target.size) if target.token(i) == piece)
                for piece in candidate.tokens
            ]
            (score,) = pipeline.score([text], [ids])
            assert score.score == pytest.approx(candidate.score, abs=1e-5, rel=1e-6)
            assert score.tokens == candidate.tokens
            assert score.token_scores == pytest.approx(candidate.token_scores, abs=1e-5)


def test_scores_do_not_depend_on_batches(pipeline):
    sources = ["a dog", "two cats look", "", "Hund", ""]
    targets = ["ein Hund", "", "See", "the lake by the lake", ""]
    expected = pipeline.score(sources, targets, batch_size=1)
    for batching in ({"batch_size": 3}, {"batch_tokens": 30}, {}):
        found = pipeline.score(sources, targets, **batching)
        for one, other in zip(found, expected, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.score == pytest.approx(math.fsum(one.token_scores))
            assert len(one.token_scores) == len(one.tokens) + 1
    with pytest.raises(DataError, match="2 sources and 1 targets"):
        pipeline.score(["a", "b"], ["c"])


@given(
    texts=st.lists(
        st.text(st.characters(codec=None), max_size=30) | st.text("ab \n\r\x00\ud800\u2028,."),
        max_size=4,
    )
)
@settings(max_examples=40)
def test_any_string_gives_one_translation_with_its_lines(bytewise, texts):
    found = bytewise.translate(texts, beam=2, max_length=5)
    assert len(found) == len(texts)
    for text, translation in zip(texts, found, strict=True):
        translation.encode()
        assert len(translation.splitlines()) <= text.count("\n") + 1
        if translation:
            assert translation.count("\n") == text.count("\n")
        for line, source in zip(translation.split("\n"), text.split("\n"), strict=False):
            assert source.strip() or not line


def test_lines_are_translated_by_themselves(pipeline):
    found = pipeline.translate(["a dog\n\ntwo cats", "a dog", "two cats"])
    assert found[0] == f"{found[1]}\n\n{found[2]}"
    assert found[0].score == pytest.approx(found[1].score + found[2].score, abs=1e-4)
    assert found[0].tokens == found[1].tokens + found[2].tokens


def test_joined_translations_have_the_lines_of_the_text(pipeline):
    (cut,) = cut_texts(["a\n\nb"], pipeline.tokenizers.source, 30, UNRECORDED)
    assert cut.join(["x\ny\u2028z", "w\n"]) == "x y z\n\nw"


def test_cleaning():
    assert clean("a\x00b\x85c\td\ne\ud800") == "a b c\td\ne\ufffd"
    assert clean("plain") == "plain"
    assert one_line("a\r\nb\u2028c\x0bd") == "a b c d"


def test_long_lines_are_translated_in_pieces_and_said(pipeline):
    long = "Der dog runs by the lake. Two cats sit and look. " * 4
    said = []
    found = pipeline.translate(
        ["a dog", long, "", long], warn=said.append, max_length=9, first_line=11, alignment=True
    )
    split = [text for text in said if "pieces" in text]
    assert [text.split(":")[0] for text in split] == ["line 12", "line 14"]
    reading = pipeline.tokenizers.reading
    cut = cut_texts([long], pipeline.tokenizers.source, pipeline.max_length, reading)[0]
    assert len(cut.segments) == 8
    parts = pipeline.translate([segment.text for segment in cut.segments], max_length=9)
    assert found[1].split() == " ".join(parts).split()
    assert found[1].score == pytest.approx(sum(part.score for part in parts), abs=1e-3)
    assert found[1].alignment.source_words == tuple(long.split())
    assert found[1] == found[3]


def test_a_line_of_a_hundred_thousand_tokens(bytewise):
    started = time.process_time()
    cut = cut_texts(["x" * 100_000, "a b. " * 20_000], bytewise.tokenizers.source, 30, UNRECORDED)
    assert all(len(segment.ids) <= 30 for text in cut for segment in text.segments)
    assert "".join(segment.text for segment in cut[0].segments) == "x" * 100_000
    assert time.process_time() - started < 10


def test_cut_translations_are_said(pipeline):
    said = []
    found = pipeline.translate(["a dog", "two cats"], min_length=3, max_length=3, warn=said.append)
    cut = [i for i, translation in enumerate(found, start=1) if not translation.finished]
    assert cut
    assert len(said) == 1
    assert said[0].startswith(f"{len(cut)} of 2 translations were cut")


def test_prefixes(pipeline):
    prefixes = ["two", "", "Hund läuft", ""]
    found = pipeline.translate(["a dog", "", "the lake", "a"], prefixes=prefixes, n_best=2)
    for prefix, translation in zip(prefixes, found, strict=True):
        assert all(
            candidate.startswith(prefix) or not candidate for candidate in translation.n_best
        )
    assert found[0]
    assert found[1] == ""
    lines = pipeline.translate(["a dog\ntwo cats"], prefixes=["Hund"])[0].split("\n")
    assert lines[0].startswith("Hund")
    assert lines[1] == pipeline.translate(["two cats"])[0]
    with pytest.raises(DataError, match="1 prefixes for 2 texts"):
        pipeline.translate(["a", "b"], prefixes=["c"])


def test_options_are_the_fields_of_the_settings(pipeline):
    assert set(SearchOptions.__annotations__) == set(SearchSettings.model_fields)
    with pytest.raises(ConfigError, match="Did you mean 'beam'"):
        pipeline.translate(["a"], baem=3)
    with pytest.raises(ConfigError, match="beam"):
        pipeline.translate(["a"], n_best=9)
    with pytest.raises(ConfigError, match="batch_size"):
        pipeline.translate(["a"], batch_size=0)
    with pytest.raises(DataError, match="single string"):
        pipeline.translate("a dog")
    chosen = SearchSettings(beam=2, n_best=2)
    assert len(pipeline.translate(["a"], settings=chosen, beam=3)[0].n_best) == 2


def test_progress_counts_up_to_all(pipeline):
    told = []
    pipeline.translate(TEXTS, batch_size=2, progress=lambda *step: told.append(step))
    assert told == [(2, 6), (4, 6), (6, 6)]


def test_training_goes_on_as_before():
    model, pair = make(dropout=0.5)
    pipeline = TranslationPipeline(model, pair)
    model.train()
    first = pipeline.translate(["a dog"])
    assert model.training
    assert all(module.training for module in model.modules())
    assert pipeline.translate(["a dog"]) == first


def test_learned_positions_end_somewhere():
    model, pair = make(positions="learned", max_length=8)
    pipeline = TranslationPipeline(model, pair)
    stop = pair.target.eos
    with torch.no_grad():
        model.output_weight[stop].zero_()
    found = pipeline.translate(["a dog runs by the lake and two cats sit and look."], min_length=8)
    assert not found[0].finished
    with pytest.raises(ConfigError, match="max_length = 9"):
        pipeline.translate(["a"], max_length=9)
    with pytest.raises(DataError, match="line 2"):
        pipeline.score(["a", "a dog runs by the lake and two cats sit."], ["b", "c"])


def test_translations_are_strings_that_travel(pipeline):
    translation = pipeline.translate(["a dog"], n_best=2, alignment=True)[0]
    assert isinstance(translation, str)
    assert translation.n_best[0] is translation
    travelled = pickle.loads(pickle.dumps(translation))
    assert travelled == translation
    assert travelled.score == translation.score
    assert travelled.n_best[1].alignment == translation.n_best[1].alignment


def test_loading_and_ensembles(tmp_path):
    models = [make(seed) for seed in range(2)]
    for number, (model, pair) in enumerate(models):
        save_model(model, pair, tmp_path / str(number))
    one = heedful.load(tmp_path / "0", device="cpu", precision="fp32")
    same(one.translate(TEXTS), TranslationPipeline(*models[0]).translate(TEXTS))
    twice = heedful.load([tmp_path / "0"] * 2, device="cpu", precision="fp32")
    same(twice.translate(TEXTS, n_best=2), one.translate(TEXTS, n_best=2))
    both = heedful.load([tmp_path / "0", tmp_path / "1"], device="cpu", precision="fp32")
    mixed = both.translate(TEXTS, alignment=True)
    assert [bool(t.alignment) for t in mixed] == [bool(text.strip()) for text in TEXTS]
    ids = [4, 5, 6]
    each = [TranslationPipeline(*m).score(["a dog"], [ids])[0].token_scores[0] for m in models]
    mean = math.log(sum(map(math.exp, each)) / 2)
    assert both.score(["a dog"], [ids])[0].token_scores[0] == pytest.approx(mean, abs=1e-5)
    save_model(*make(2, corpus=["other text entirely"] * 3), tmp_path / "2")
    with pytest.raises(ModelError, match="tokenizers differ"):
        heedful.load([tmp_path / "0", tmp_path / "2"], device="cpu", precision="fp32")


@pytest.mark.parametrize("width", [10_000, 10**9])
def test_a_beam_no_search_could_finish_is_refused(width):
    spec = translator_spec(TranslatorShape(width=16, num_heads=2, feedforward=16), 50, 50)
    with pytest.raises(ConfigError, match="wider than the model's vocabulary of 50 tokens"):
        check_width([spec], SearchSettings(beam=width))
    large = spec.model_copy(update={"target_vocabulary": 10**10})
    with pytest.raises(ConfigError, match="GiB of memory") as caught:
        check_width([large], SearchSettings(beam=width))
    assert caught.value.where == f"beam = {width}"
    with pytest.raises(ConfigError, match="GiB of memory"):
        check_width([large], SearchSettings(sampling=True, n_best=width))
    check_width([spec], SearchSettings(beam=50))


def test_the_sample_most_like_all_is_chosen(pipeline):
    options = {"sampling": True, "max_length": 6, "seed": 3}
    chosen = pipeline.translate(TEXTS, risk_samples=12, n_best=3, **options)
    items, settings = search_items_of(pipeline, TEXTS), SearchSettings(n_best=12, **options)
    batches = plan_searches(items, settings, batch_tokens=4096, batch_size=None)
    drawn = pipeline.search_segments(items, batches, settings, False, None, None)
    rows = iter(drawn)
    for text, result in zip(TEXTS, chosen, strict=True):
        if not text.strip():
            assert result == ""
            continue
        texts = [pipeline.tokenizers.target.decode(h.tokens) for h in next(rows).hypotheses]
        utility = {one: sum(sentence_chrf(one, each) for each in texts) / 12 for one in texts}
        ranked = sorted(utility.values(), reverse=True)[:3]
        assert [each.normalized_score for each in result.n_best] == pytest.approx(ranked, abs=1e-6)
        best = [one for one, score in utility.items() if score > ranked[0] - 1e-6]
        assert result in map(one_line, best)


def search_items_of(pipeline, texts):
    reading = pipeline.tokenizers.reading
    cut = cut_texts(texts, pipeline.tokenizers.source, pipeline.max_length, reading)
    return search_items(
        cut,
        pipeline.tokenizers,
        prefixes=None,
        glossary=None,
        limit=pipeline.max_length,
        first_line=1,
        warn=None,
    )


def sentence_chrf(one, other):
    return CHRF().sentence_score(one, [other]).score


@pytest.mark.parametrize("options", [{"beam": 2}, {"beam": 1}, {"beam": 3, "diversity": 0.5}])
def test_alternatives_are_distinct_and_begin_with_what_is_best(pipeline, options):
    plain = pipeline.translate(TEXTS, max_length=8, **options)
    found = pipeline.translate(TEXTS, max_length=8, alternatives=3, **options)
    for text, result, best in zip(TEXTS, found, plain, strict=True):
        if not text.strip():
            continue
        assert len({str(each) for each in result.n_best}) == len(result.n_best) <= 3
        scores = [each.normalized_score for each in result.n_best]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] >= best.normalized_score - 1e-5
