"""Searches over shortlists: the same in any batch, on the lists, and exact where they hold all."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import heedful
from heedful.apps.studio.alternatives import find_alternatives
from heedful.data.padding import pad
from heedful.device import Precision
from heedful.engines.inference.packed_linear import int8_linear
from heedful.engines.inference.prepare import precision_of, prepare
from heedful.errors import ModelError
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.dispatch import search
from heedful.search.lexical_shortlist import SHORTLIST_FILE, Shortlist
from heedful.search.search_settings import SearchSettings, Specials
from heedful.search.step_model import Ensemble
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

from ..examples import slow_examples

SPECIALS = Specials(pad=0, bos=1, eos=2)
VOCABULARY = 29
SENTENCES = st.lists(
    st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=7), min_size=2, max_size=5
)
PREFIX = st.lists(st.integers(3, VOCABULARY - 1), max_size=2)
CORPUS = ["a dog runs by the lake.", "two cats sit, and look.", "Der Hund läuft am See!"] * 3
TEXTS = ["a dog", "", "two cats look, and sit by the lake", "Hund!", "the See", "dog. cat"]
SHAPE = {"width": 32, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4, "feedforward": 64}

needs_int8 = pytest.mark.skipif(int8_linear() is None, reason="no exact 8-bit products here")


@cache
def random_model(seed, bias=False):
    torch.manual_seed(seed)
    shape = TranslatorShape(**(SHAPE | {"encoder_layers": 1}))
    spec = translator_spec(shape, VOCABULARY, VOCABULARY)
    model = Translator(spec.model_copy(update={"output_bias": bias}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def random_shortlist(seed, *, copies=False, size=VOCABULARY):
    """A few common tokens, and up to four for each source token."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, size)
    likely = [rng.choice(np.arange(3, size), count, replace=False) for count in counts]
    common = np.sort(rng.choice(np.arange(3, size), rng.integers(1, 4), replace=False))
    ends = np.concatenate([[0], np.cumsum(counts)])
    return Shortlist(common, ends, np.concatenate(likely), size, copies, "")


def whole(size=VOCABULARY, source=VOCABULARY):
    ends = np.zeros(source + 1, np.int64)
    return Shortlist(np.arange(size), ends, np.empty(0, np.int64), size, False, "")


def on_list(shortlist, sentence, prefix=()):
    """The list of a sentence, by plain sets."""
    found = {*SPECIALS.ids, *shortlist.common.tolist(), *prefix}
    for token in sentence:
        first, last = shortlist.ends[token], shortlist.ends[token + 1]
        found |= set(shortlist.likely[first:last].tolist())
    return found | (set(sentence) if shortlist.copies else set())


def run(model, sentences, chosen, shortlist=None, prefixes=None, names=None):
    source, positions = pad(sentences, 0, last=2)
    prefixes = [()] * len(sentences) if prefixes is None else prefixes
    vocabulary = None
    if shortlist is not None:
        vocabulary = shortlist.restrict(sentences, prefixes, SPECIALS, torch.device("cpu"))
    return search(
        model,
        source,
        positions,
        chosen,
        specials=SPECIALS,
        prefixes=prefixes,
        names=names,
        longest=10,
        vocabulary=vocabulary,
    )


def same(one, other, tolerance=1e-5):
    for first, second in zip(one, other, strict=True):
        assert [h.tokens for h in first] == [h.tokens for h in second]
        for a, b in zip(first, second, strict=True):
            assert a.score == pytest.approx(b.score, abs=tolerance)
            assert a.token_scores == pytest.approx(b.token_scores, abs=tolerance)
            assert a.finished == b.finished


CHOSEN = st.builds(
    lambda width, sampling, no_repeat, shortest, top_k: SearchSettings(
        beam=width,
        n_best=min(2, width),
        sampling=sampling,
        no_repeat_ngram=no_repeat,
        min_length=shortest,
        top_k=top_k if sampling else 0,
    ),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([0, 2]),
    st.sampled_from([0, 3]),
    st.sampled_from([0, 3, 12, 20]),
)


@given(seed=st.integers(0, 2), sentences=SENTENCES, chosen=CHOSEN, bias=st.booleans())
@settings(max_examples=slow_examples(25))
def test_a_list_of_everything_changes_nothing(seed, sentences, chosen, bias):
    model = random_model(seed, bias)
    same(run(model, sentences, chosen, whole()), run(model, sentences, chosen))


@given(
    seed=st.integers(0, 40),
    sentences=SENTENCES,
    chosen=CHOSEN,
    copies=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40)
def test_every_token_is_on_its_sentences_list_and_no_neighbour_matters(
    seed, sentences, chosen, copies, data
):
    model, shortlist = random_model(seed % 3, bool(seed % 2)), random_shortlist(seed, copies=copies)
    prefixes = [data.draw(PREFIX) for _ in sentences]
    names = list(range(len(sentences)))
    together = run(model, sentences, chosen, shortlist, prefixes, names)
    for sentence, prefix, hypotheses in zip(sentences, prefixes, together, strict=True):
        allowed = on_list(shortlist, sentence, prefix) - {SPECIALS.pad, SPECIALS.bos}
        assert hypotheses
        for hypothesis in hypotheses:
            assert set(hypothesis.tokens) <= allowed
            assert list(hypothesis.tokens[: len(prefix)]) == prefix
            assert math.isfinite(hypothesis.score)
    alone = [
        run(model, [sentence], chosen, shortlist, [prefix], [name])[0]
        for sentence, prefix, name in zip(sentences, prefixes, names, strict=True)
    ]
    same(alone, together, tolerance=1e-4)


@given(seed=st.integers(0, 20), sentences=SENTENCES, beam=st.integers(1, 3))
@settings(max_examples=slow_examples(20))
def test_probabilities_are_those_of_the_list_among_each_other(seed, sentences, beam):
    """By the whole forward pass in float64, without a search or a cache."""
    model, shortlist = random_model(seed % 3), random_shortlist(seed)
    chosen = SearchSettings(beam=beam, n_best=beam)
    found = run(model, sentences, chosen, shortlist)
    exact = Translator(model.spec).double().eval()
    exact.load_state_dict(model.state_dict())
    for sentence, hypotheses in zip(sentences, found, strict=True):
        listed = sorted(on_list(shortlist, sentence))
        for hypothesis in hypotheses:
            ids = [*hypothesis.tokens, SPECIALS.eos]
            source = pad([sentence], 0, last=2)
            with torch.inference_mode():
                states = exact(*source, *pad([hypothesis.tokens], 0, first=1))
                logits = exact.logits(states)[0][:, listed]
            scores = torch.log_softmax(logits, -1)
            expected = [float(row[listed.index(i)]) for row, i in zip(scores, ids, strict=True)]
            assert hypothesis.token_scores == pytest.approx(expected, abs=1e-4)


def test_ensembles_and_coverage():
    sentences = [[3, 4, 5], [6, 7, 8, 9, 10], [11]]
    pair = Ensemble([random_model(0), random_model(1)])
    for model in (random_model(0), pair):
        for chosen in (SearchSettings(beam=3, n_best=3), SearchSettings(coverage_penalty=0.5)):
            same(run(model, sentences, chosen, whole()), run(model, sentences, chosen))
            shortlist = random_shortlist(5)
            together = run(model, sentences, chosen, shortlist)
            same([run(model, [s], chosen, shortlist)[0] for s in sentences], together, 1e-4)
            for sentence, hypotheses in zip(sentences, together, strict=True):
                allowed = on_list(shortlist, sentence)
                assert all(set(hypothesis.tokens) <= allowed for hypothesis in hypotheses)
    twice = Ensemble([random_model(0)] * 2)
    chosen = SearchSettings(beam=2)
    same(
        run(twice, sentences, chosen, random_shortlist(7)),
        run(random_model(0), sentences, chosen, random_shortlist(7)),
        1e-4,
    )


def make(name="fp32", **more):
    pair = train_pair(TokenizerSpec(kind="bpe", vocabulary_size=90), CORPUS, CORPUS)
    torch.manual_seed(0)
    shape = TranslatorShape(**SHAPE, max_length=30, norm_placement="pre")
    model = Translator(translator_spec(shape, pair.source.size, pair.target.size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.eval()
    if name != "plain":
        model = prepare(model, Precision(name, "cpu"))
    size = pair.target.size
    shortlist = more.pop("shortlist", None)
    if shortlist == "whole":
        shortlist = whole(size, pair.source.size)
    elif shortlist is not None:
        shortlist = random_shortlist(shortlist, copies=True, size=size)
    return TranslationPipeline(model, pair, precision=precision_of(model), shortlist=shortlist)


@pytest.mark.parametrize("name", ["plain", "fp32", "bf16", pytest.param("int8", marks=needs_int8)])
def test_in_every_precision(name):
    options = {"max_length": 12, "beam": 3, "n_best": 2}
    without = make(name).translate(TEXTS, **options)
    with_all = make(name, shortlist="whole").translate(TEXTS, **options)
    for one, other in zip(without, with_all, strict=True):
        assert [each.tokens for each in one.n_best] == [each.tokens for each in other.n_best]
        assert one.score == pytest.approx(other.score, abs=1e-5)
    pipeline = make(name, shortlist=3)
    together = pipeline.translate(TEXTS, **options)
    assert [str(t) for t in together] != [str(t) for t in without]
    for batching in ({"batch_size": 1}, {"batch_size": 2}):
        if name == "bf16":
            continue  # where sums are rounded to 8 bits, no batch has another's digits
        found = pipeline.translate(TEXTS, **batching, **options)
        assert [t.tokens for t in found] == [t.tokens for t in together]
        assert [t.score for t in found] == pytest.approx([t.score for t in together], abs=1e-4)


def test_alignments_prefixes_and_scores():
    pipeline, exact = make(shortlist=3), make()
    plain = pipeline.translate(TEXTS, n_best=2, max_length=9)
    aligned = pipeline.translate(TEXTS, n_best=2, max_length=9, alignment=True)
    assert [str(t) for t in aligned] == [str(t) for t in plain]
    for text, translation in zip(TEXTS, aligned, strict=True):
        assert (translation.alignment is None) == (not text)
        if text:
            assert translation.alignment.target_words == tuple(translation.split())
    begun = pipeline.translate(["a dog", "cats"], prefixes=["Hund läuft", ""], max_length=9)
    assert begun[0].startswith("Hund läuft")
    # Given translations and alternatives are of the whole vocabulary.
    assert pipeline.score(["a dog"], ["two"]) == exact.score(["a dog"], ["two"])
    both = [find_alternatives(each, "a dog", "Der", count=3) for each in (pipeline, exact)]
    assert both[0] == both[1]
    both = [each.translate(["a dog"], sampling=True, seed=5)[0].score for each in (pipeline, exact)]
    assert both[0] != both[1]


@pytest.fixture
def saved(tmp_path):
    pipeline = make("plain", shortlist=3)
    save_model(pipeline.models[0], pipeline.tokenizers, tmp_path / "m")
    made = pipeline.shortlist
    named = Shortlist(
        made.common, made.ends, made.likely, made.size, True, pipeline.tokenizers.fingerprint
    )
    named.write(tmp_path / "m" / SHORTLIST_FILE)
    return tmp_path / "m", pipeline


def test_a_directory_with_its_shortlist(saved, tmp_path):
    directory, pipeline = saved
    options = {"max_length": 12}
    expected = [t.tokens for t in pipeline.translate(TEXTS, **options)]
    loaded = heedful.load(directory, device="cpu", precision="fp32", shortlist=True)
    assert [t.tokens for t in loaded.translate(TEXTS, **options)] == expected
    moved = (directory / SHORTLIST_FILE).rename(tmp_path / "elsewhere")
    loaded = heedful.load([directory] * 2, device="cpu", precision="fp32", shortlist=moved)
    assert [t.tokens for t in loaded.translate(TEXTS, **options)] == expected
    assert heedful.load(directory, device="cpu").shortlist is None
    with pytest.raises(ModelError, match=r"no such shortlist.*heedful shortlist"):
        heedful.load(directory, device="cpu", shortlist=True)


def test_files_that_cannot_be_used(saved):
    directory, pipeline = saved
    file = directory / SHORTLIST_FILE
    content = file.read_bytes()
    pair = pipeline.tokenizers
    for damage in (b"", content[:-3], content[:40], content[:-5] + b"\x01" + content[-4:]):
        file.write_bytes(damage)
        with pytest.raises(ModelError, match="cannot be read"):
            Shortlist.read(file, pair)
    file.write_bytes(content)
    save_file(load_file(str(file)), str(directory / "bare"))
    with pytest.raises(ModelError, match="cannot be read"):
        Shortlist.read(directory / "bare", pair)
    facts = {"shortlist": {"schema_version": 2, "tokenizers": pair.fingerprint}}
    metadata = {"heedful": json.dumps(facts)}
    save_file({"new": np.zeros(2)}, str(directory / "newer"), metadata=metadata)
    with pytest.raises(ModelError, match=r"schema version 2.*Install a newer"):
        Shortlist.read(directory / "newer", pair)
    other = train_pair(TokenizerSpec(kind="characters"), CORPUS, CORPUS)
    with pytest.raises(ModelError, match=r"other tokenizers.*heedful shortlist MODEL"):
        Shortlist.read(file, other)
    assert Shortlist.read(file, pair).likely.tolist() == pipeline.shortlist.likely.tolist()
