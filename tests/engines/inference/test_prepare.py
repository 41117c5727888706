"""Models kept in the precision they run in: the same translations, or nearly."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.device import MatmulRates, Precision, resolve_precision
from heedful.engines.inference.packed_linear import (
    NativeLinear,
    PackedLinear,
    PackedProjection,
    int8_linear,
    packs,
)
from heedful.engines.inference.prepare import precision_of, prepare
from heedful.errors import ConfigError
from heedful.kernels import library, topk
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.step_model import _largest, best_candidates, log_probabilities, row_logsumexp
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

CORPUS = ["a dog runs by the lake.", "two cats sit, and look.", "Der Hund läuft am See!"] * 3
TEXTS = ["a dog", "two cats look, and sit by the lake", "Hund!", "the See", "dog. cat"]
SHAPE = {"width": 32, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4, "feedforward": 64}

needs_packing = pytest.mark.skipif(not packs(), reason="this PyTorch packs no weights")
needs_int8 = pytest.mark.skipif(int8_linear() is None, reason="no exact 8-bit products here")


def make(**dials):
    pair = train_pair(TokenizerSpec(kind="bpe", vocabulary_size=60), CORPUS, CORPUS)
    torch.manual_seed(0)
    shape = TranslatorShape(**SHAPE, max_length=30, norm_placement="pre", **dials)
    model = Translator(translator_spec(shape, pair.source.size, pair.target.size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval(), pair


def running(name: str, **dials) -> TranslationPipeline:
    model, pair = make(**dials)
    engine = prepare(model, Precision(name, "cpu"))
    return TranslationPipeline(engine, pair, precision=precision_of(engine))


@needs_packing
def test_packed_float32_gives_the_same_translations():
    plain, packed = TranslationPipeline(*make()), running("fp32")
    assert isinstance(packed.models[0].output_projection, PackedProjection)
    for options in ({"beam": 1}, {"beam": 4, "n_best": 3}):
        for one, other in zip(
            plain.translate(TEXTS, max_length=12, **options),
            packed.translate(TEXTS, max_length=12, **options),
            strict=True,
        ):
            assert [t.tokens for t in one.n_best] == [t.tokens for t in other.n_best]
            assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize("name", ["fp32", pytest.param("int8", marks=needs_int8), "bf16"])
def test_a_model_with_experts_runs(name):
    model, pair = make(num_experts=4)
    expected = TranslationPipeline(model, pair).score(TEXTS, TEXTS)
    found = running(name, num_experts=4).score(TEXTS, TEXTS)
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-5 if name == "fp32" else 0.05)


@pytest.mark.parametrize("name", [pytest.param("int8", marks=needs_int8), "bf16"])
def test_a_lower_precision_scores_translations_nearly_the_same(name):
    plain, low = TranslationPipeline(*make()), running(name)
    found = low.translate(TEXTS, max_length=12, beam=2)
    assert all(translation.tokens for translation in found)
    targets = plain.translate(TEXTS, max_length=12, beam=2)
    assert 0.0 < furthest(plain.score(TEXTS, targets), low.score(TEXTS, targets)) < 0.1


def furthest(exact, rounded) -> float:
    """How far apart the scores of a token are at most."""
    return max(
        abs(a.score - b.score) / len(a.token_scores) for a, b in zip(exact, rounded, strict=True)
    )


def test_bfloat16_where_nothing_multiplies_it(monkeypatch):
    if library.kernels() is None:
        pytest.skip("no kernels here")
    plain = TranslationPipeline(*make())
    targets = plain.translate(TEXTS, max_length=12, beam=2)
    exact = plain.score(TEXTS, targets)
    usual = furthest(exact, running("bf16").score(TEXTS, targets))
    monkeypatch.setattr(
        "heedful.engines.inference.prepare.packs", lambda dtype: dtype != torch.bfloat16
    )
    low = running("bf16")
    assert isinstance(low.models[0].output_projection.packed, NativeLinear)
    assert "products are of float32" in low.precision.describe()
    assert 0.0 < furthest(exact, low.score(TEXTS, targets)) < 2 * usual
    assert any(translation.tokens for translation in low.translate(TEXTS, max_length=12, beam=2))


def test_what_pytorch_cannot_pack_it_does_not_pack(monkeypatch):
    def refuse(weight):
        raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse)
    with pytest.raises(RuntimeError):
        PackedLinear(torch.ones(2, 2), None)
    assert not packs.__wrapped__(torch.bfloat16)


@needs_int8
def test_8_bits_in_any_batch():
    low = running("int8")
    together = low.translate(TEXTS, max_length=12, beam=3)
    alone = [low.translate([text], max_length=12, beam=3)[0] for text in TEXTS]
    assert [t.tokens for t in together] == [t.tokens for t in alone]


@needs_int8
def test_a_directory_is_loaded_in_8_bits(tmp_path):
    model, pair = make()
    save_model(copy.deepcopy(model), pair, tmp_path / "m")
    loaded = heedful.load(tmp_path / "m", device="cpu", precision="int8")
    expected = running("int8").translate(TEXTS, max_length=12)
    assert [t.tokens for t in loaded.translate(TEXTS, max_length=12)] == [
        t.tokens for t in expected
    ]
    assert loaded.precision.describe().startswith("int8")


@pytest.mark.parametrize("name", ["auto", "fp32"])
def test_where_kernels_in_c_multiply_nothing_is_measured(name, monkeypatch):
    if library.kernels() is None:
        pytest.skip("no kernels here")
    monkeypatch.setattr("heedful.device.measure_matmul", None)
    model, pair = make()
    engine = prepare(model, name, torch.device("cpu"))
    precision = precision_of(engine)
    assert (precision.name, precision.onednn) == ("fp32", False)
    one = TranslationPipeline(engine, pair, precision=precision).translate(TEXTS, max_length=12)
    other = TranslationPipeline(*make()).translate(TEXTS, max_length=12)
    assert [t.tokens for t in one] == [t.tokens for t in other]


def test_where_pytorch_multiplies_its_routes_are_measured(monkeypatch):
    monkeypatch.setattr(library, "kernels", lambda: None)
    rates = MatmulRates(200, 450, 900)
    monkeypatch.setattr("heedful.device.measure_matmul", lambda width: rates)
    precision = precision_of(prepare(make()[0], "auto", torch.device("cpu")))
    assert (precision.name, precision.onednn) == ("fp32", True)


def test_8_bits_are_refused_where_there_are_none():
    with pytest.raises(ConfigError, match="int8 is not supported on cuda"):
        resolve_precision("int8", torch.device("cuda"))


@given(
    rows=st.integers(1, 4),
    size=st.sampled_from([5, 2047, 2048, 2049, 2300, 5000]),
    count=st.integers(1, 16),
    seed=st.integers(0, 99),
    ties=st.booleans(),
)
@settings(max_examples=60)
def test_the_largest_are_the_largest(rows, size, count, seed, ties):
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, 2, size, generator=draw)
    if ties:
        scores = (scores * 3).round()
    scores[torch.rand(scores.shape, generator=draw) < 0.3] = -torch.inf
    count = min(count, size)
    values, columns = _largest(scores, count)
    expected = scores.sort(-1, descending=True).values[..., :count]
    assert torch.equal(values, expected)
    assert torch.equal(scores.gather(-1, columns), values)
    assert all(len(set(row)) == count for row in columns.flatten(0, 1).tolist())


@given(seed=st.integers(0, 99), size=st.integers(1, 300), scale=st.sampled_from([0.1, 1.0, 50.0]))
@settings(max_examples=40)
def test_log_probabilities_in_place(seed, size, scale):
    logits = scale * torch.randn(3, 2, size, generator=torch.Generator().manual_seed(seed))
    wide = logits.double()
    expected = wide - wide.exp().sum(-1, keepdim=True).log()
    torch.testing.assert_close(log_probabilities(logits).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernels", [True, False])
def test_large_logits_cost_no_digits(kernels, monkeypatch):
    """A score is the difference of two numbers that may be much larger than it."""
    monkeypatch.setattr(topk, "supports", lambda scores: kernels and library.kernels() is not None)
    logits = 400.0 + 3 * torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1))
    exact = torch.log_softmax(logits.double(), -1)
    found = best_candidates(logits, row_logsumexp(logits), torch.zeros(2, 3).double(), 4)
    expected = exact.flatten(1).topk(4, 1).values
    torch.testing.assert_close(found.log_prob, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["fp32", "bf16", pytest.param("int8", marks=needs_int8)])
def test_the_model_stays_as_it_was_and_learns_on(name):
    model, _ = make()
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ids, positions = torch.full((2, 5), 7), torch.arange(5).expand(2, 5)
    engine = prepare(model, Precision(name, "cpu"))
    expected = engine.start(ids, positions)
    after = model.state_dict()
    assert model.training
    assert not engine.training
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    model.logits(model(ids, positions, ids, positions)).logsumexp(-1).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    name = "encoder.blocks.0.feedforward.up.weight"
    assert not torch.equal(model.state_dict()[name], before[name])
    assert expected.decoder.blocks[0][1].keys.isfinite().all()


def test_a_donated_model_gives_its_parameters_away():
    model, _ = make()
    weight = model.target_embedding.weight
    engine = prepare(model, Precision("fp32", "cpu"), donate=True)
    assert not list(model.parameters())
    assert engine.target_embedding.weight.data_ptr() == weight.data_ptr()


@pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here")
def test_what_an_engine_packed_of_a_donated_model_is_freed_at_once():
    shape = torch.Size([64, 32])  # of the first matrix of a feed-forward network

    def live() -> int:
        # `isinstance` reads `__class__`, which some lazy objects of PyTorch answer with a warning.
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        return sum(each.shape == shape for each in tensors)

    gc.collect()
    others = live()
    model, _ = make()
    gc.disable()
    try:
        assert live() >= others + 4
        engine = prepare(model, Precision("fp32", "cpu"), donate=True)
        assert live() == others
    finally:
        gc.enable()
    assert engine.decoder is not model.decoder
