"""CTranslate2's own engine computes what the exported model does, for every setting it is said to
support; the others are refused by name.
"""

from __future__ import annotations

import json
import sys

import ctranslate2
import pytest
import tokenizers
import torch

from heedful.cli.main import main
from heedful.models.checkpoint import load_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.models.stack_spec import BlockSpec
from heedful.nn.spec import EmbeddingSpec, NormSpec, PositionSpec, RotarySpec
from heedful.pipelines.translation import TranslationPipeline

TEXTS = ["the river runs", "low", "1999 Café, naïve! the old house stands by the sea"]
TARGETS = ["new wider rivers", "lowest", "3 10 20 30"]


def shape(**dials) -> TranslatorShape:
    small = {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4}
    return TranslatorShape(**{**small, "feedforward": 24, "max_length": 60, **dials})


def changed(spec, part: str, **changes):
    """A spec with other settings in one of its parts, such as decoder.block."""
    if not part:
        block = isinstance(spec, BlockSpec)
        return spec.replace(**changes) if block else spec.model_copy(update=changes)
    first, _, rest = part.partition(".")
    other = changed(getattr(spec, first), rest, **changes)
    if first == "block":
        return spec.with_block(other)
    if isinstance(spec, BlockSpec):
        return spec.replace(**{first: other})
    return spec.model_copy(update={first: other})


def in_attentions(spec, **changes):
    for part in ("encoder.block.self_attention", "decoder.block.self_attention"):
        spec = changed(spec, part, **changes)
    return changed(spec, "decoder.block.cross_attention", **changes)


PRE = {"norm_placement": "pre", "norm": "rms", "bias": False}
TRANSLATORS = {
    "the paper's": lambda n: translator_spec(shape(), n, n),
    "pre-norm": lambda n: translator_spec(shape(norm_placement="pre", activation="gelu"), n, n),
    "tanh": lambda n: translator_spec(
        shape(activation="gelu_tanh", share_embeddings="target"), n, n
    ),
    "silu": lambda n: translator_spec(shape(activation="silu", share_embeddings="none"), n, n),
    "swiglu": lambda n: translator_spec(shape(**PRE, activation="swiglu"), n, n),
    "geglu": lambda n: translator_spec(shape(**PRE, activation="geglu"), n, n),
    "geglu_tanh": lambda n: translator_spec(shape(**PRE, activation="geglu_tanh"), n, n),
    "reglu": lambda n: translator_spec(shape(**PRE, activation="reglu"), n, n),
    "grouped": lambda n: translator_spec(shape(num_kv_heads=2), n, n),
    "one head of keys": lambda n: translator_spec(
        shape(num_kv_heads=1, norm_placement="pre"), n, n
    ),
    "learned": lambda n: translator_spec(shape(positions="learned"), n, n),
    "no positions": lambda n: translator_spec(shape(positions="none"), n, n),
    "rotary": lambda n: translator_spec(shape(**PRE, positions="rotary"), n, n),
    "relative keys": lambda n: translator_spec(shape(positions="relative_keys"), n, n),
    "t5": lambda n: translator_spec(shape(**PRE, positions="t5"), n, n),
    "unscaled, normed": lambda n: changed(
        translator_spec(shape(), n, n), "", embedding=EmbeddingSpec(scale=False, norm=NormSpec())
    ),
    "halves": lambda n: changed(
        translator_spec(shape(), n, n), "embedding", positions=PositionSpec(layout="halves")
    ),
    "output": lambda n: changed(
        translator_spec(shape(), n, n), "", output_bias=True, output_scale=0.25
    ),
    "no final norm": lambda n: changed(
        changed(translator_spec(shape(**PRE), n, n), "encoder", final_norm=None),
        "decoder",
        final_norm=None,
    ),
    "wide heads": lambda n: in_attentions(translator_spec(shape(), n, n), head_width=6),
    "scores": lambda n: in_attentions(translator_spec(shape(), n, n), scale=0.7),
    "epsilon": lambda n: changed(
        changed(translator_spec(shape(), n, n), "encoder.block", norm=NormSpec(epsilon=0.1)),
        "decoder.block",
        norm=NormSpec(epsilon=0.1),
    ),
}


def rotary(n: int, **settings):
    spec = causal_lm_spec(shape(**PRE, positions="rotary", activation="swiglu"), n, 60)
    return changed(spec, "decoder.block.self_attention", rotary=RotarySpec(**settings))


LANGUAGE_MODELS = {
    "GPT-2's": lambda n: causal_lm_spec(
        shape(norm_placement="pre", positions="learned", activation="gelu_tanh"), n, 60
    ),
    "post-norm": lambda n: causal_lm_spec(shape(), n, 60),
    "LLaMA's": lambda n: rotary(n, base=500.0),
    "pairs": lambda n: rotary(n, layout="pairs"),
    "linear": lambda n: rotary(n, scaling="linear", factor=2.5),
    "part": lambda n: rotary(n, width=2),
    "grouped": lambda n: causal_lm_spec(
        shape(**PRE, positions="rotary", activation="swiglu", num_kv_heads=2), n, 60
    ),
    "alibi": lambda n: causal_lm_spec(shape(**PRE, positions="alibi"), n, 60),
    "relative keys": lambda n: causal_lm_spec(shape(positions="relative_keys"), n, 60),
    "untied": lambda n: causal_lm_spec(shape(share_embeddings="none"), n, 60),
}


def exported(directory, out, *words: str):
    assert main(["export", str(directory), str(out), "--format", "ctranslate2", *words]) == 0
    return out


def pieces(directory, texts: list[str], *, special: bool = True) -> list[list[str]]:
    """Texts as the tokenizer beside the exported model cuts them."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    return [tokenizer.encode(text, add_special_tokens=special).tokens for text in texts]


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translators_score_alike(make_model, tmp_path, name) -> None:
    model = make_model(tmp_path / "model", TRANSLATORS[name])
    out = exported(model, tmp_path / "out")
    translator = ctranslate2.Translator(str(out), compute_type="float32", intra_threads=1)
    sources, targets = pieces(out, TEXTS), pieces(out, TARGETS, special=False)
    found = translator.score_batch(sources, targets)
    ours = TranslationPipeline.load(model, precision="fp32").score(TEXTS, TARGETS)
    for theirs, own in zip(found, ours, strict=True):
        assert theirs.log_probs == pytest.approx(own.token_scores, abs=1e-4)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_models_score_alike(make_model, tmp_path, name) -> None:
    directory = make_model(tmp_path / "model", LANGUAGE_MODELS[name])
    out = exported(directory, tmp_path / "out")
    generator = ctranslate2.Generator(str(out), compute_type="float32", intra_threads=1)
    rows = pieces(out, TEXTS)
    found = generator.score_batch(rows)
    model, pair = load_model(directory)
    tokenizer = pair.source
    for text, row, theirs in zip(TEXTS, rows, found, strict=True):
        ids = torch.tensor([[tokenizer.bos, *tokenizer.encode(text)]])
        assert len(row) == ids.shape[1]
        with torch.no_grad():
            hidden = model(ids, torch.arange(ids.shape[1])[None])
            logs = model.logits(hidden).log_softmax(-1)[0, :-1]
        expected = logs.gather(1, ids[0, 1:, None])[:, 0].tolist()
        assert theirs.log_probs == pytest.approx(expected, abs=1e-4)


def test_two_vocabularies(make_model, tmp_path) -> None:
    joint = TRANSLATORS["silu"]
    model = make_model(tmp_path / "model", joint, joint=False)
    out = exported(model, tmp_path / "out")
    translator = ctranslate2.Translator(str(out), compute_type="float32", intra_threads=1)
    targets = pieces(out / "target_tokenizer", TARGETS, special=False)
    found = translator.score_batch(pieces(out, TEXTS), targets)
    ours = TranslationPipeline.load(model, precision="fp32").score(TEXTS, TARGETS)
    for theirs, own in zip(found, ours, strict=True):
        assert theirs.log_probs == pytest.approx(own.token_scores, abs=1e-4)


def test_more_rows_than_pieces(theirs, tmp_path) -> None:
    assert main(["import", str(theirs.path), str(tmp_path / "model")]) == 0
    out = exported(tmp_path / "model", tmp_path / "out")
    names = json.loads((out / "vocabulary.json").read_text())
    assert len(names) == len(set(names)) == theirs.config["vocab_size"]
    row = pieces(out, ["the river"])[0]
    generator = ctranslate2.Generator(str(out), compute_type="float32", intra_threads=1)
    found = generator.score_batch([row])[0]
    ids = torch.tensor([[names.index(piece) for piece in row]])
    model, _ = load_model(tmp_path / "model")
    with torch.no_grad():
        logs = model.logits(model(ids, torch.arange(len(row))[None])).log_softmax(-1)[0, :-1]
    assert found.log_probs == pytest.approx(
        logs.gather(1, ids[0, 1:, None])[:, 0].tolist(), abs=1e-4
    )


def test_quantised_weights_are_smaller_and_close(make_model, tmp_path, capsys) -> None:
    model = make_model(tmp_path / "model", lambda n: translator_spec(shape(width=64), n, n))
    plain = exported(model, tmp_path / "plain")
    capsys.readouterr()
    small = exported(model, tmp_path / "small", "--quantization", "int8", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["quantization"] == "int8"
    sizes = [(out / "model.bin").stat().st_size for out in (small, plain)]
    assert facts["files"]["model.bin"] == sizes[0]
    scores = []
    for out in (small, plain):
        # Multiplied in float32: without instructions for 8 bits CTranslate2's sums saturate.
        translator = ctranslate2.Translator(str(out), intra_threads=1, compute_type="float32")
        found = translator.score_batch(pieces(out, TEXTS), pieces(out, TARGETS, special=False))
        scores.append([sum(row.log_probs) for row in found])
    assert scores[0] != pytest.approx(scores[1], rel=1e-4)
    assert scores[0] == pytest.approx(scores[1], rel=0.05)


REFUSED = {
    "experts": lambda n: translator_spec(shape(num_experts=2), n, n),
    "self_attention.mask": lambda n: translator_spec(shape(window=3), n, n),
    "cross_attention.num_heads": lambda n: changed(
        translator_spec(shape(), n, n), "decoder.block.cross_attention", num_heads=2
    ),
    "softcap": lambda n: in_attentions(translator_spec(shape(), n, n), softcap=30.0),
    "output_scale": lambda n: changed(translator_spec(shape(), n, n), "", output_scale=0.5),
    "logits_softcap": lambda n: changed(translator_spec(shape(), n, n), "", logits_softcap=3.0),
    "num_segments": lambda n: changed(translator_spec(shape(), n, n), "embedding", num_segments=2),
    "rotary.scaling": lambda n: rotary(n, scaling="ntk", factor=2.0),
    "rotary.temperature": lambda n: rotary(n, temperature=1.5),
    "epsilons": lambda n: changed(
        translator_spec(shape(), n, n), "encoder.block", norm=NormSpec(epsilon=0.1)
    ),
    "unit_offset": lambda n: changed(
        translator_spec(shape(), n, n), "embedding", norm=NormSpec(kind="rms", unit_offset=True)
    ),
    "final_norm": lambda n: changed(
        translator_spec(shape(), n, n), "decoder", final_norm=NormSpec()
    ),
    "position_bias": lambda n: translator_spec(shape(positions="alibi"), n, n),
    "position_bias = transformer_xl": lambda n: translator_spec(
        shape(positions="transformer_xl"), n, n
    ),
    "embedding.positions with rotary": lambda n: changed(
        translator_spec(shape(positions="rotary"), n, n), "embedding", positions=PositionSpec()
    ),
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_it_cannot_compute_is_named(make_model, tmp_path, capsys, told) -> None:
    model = make_model(tmp_path / "model", REFUSED[told])
    words = ["export", str(model), str(tmp_path / "out"), "--format", "ctranslate2"]
    assert main(words) == 2
    assert told in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_without_the_package(make_model, tmp_path, capsys, monkeypatch) -> None:
    model = make_model(tmp_path / "model", TRANSLATORS["the paper's"])
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    words = ["export", str(model), str(tmp_path / "out"), "--format", "ctranslate2"]
    assert main(words) == 2
    assert "heedful[ctranslate2]" in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_quantization_is_for_ctranslate2(make_model, tmp_path, capsys) -> None:
    model = make_model(tmp_path / "model", TRANSLATORS["the paper's"])
    words = [
        "export",
        str(model),
        str(tmp_path / "out"),
        "--format",
        "hf",
        "--quantization",
        "int8",
    ]
    assert main(words) == 2
    assert "quantization = int8" in capsys.readouterr().err
