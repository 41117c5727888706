"""Models that Heedful trained as directories of transformers: the tokenizer gives the same ids for
any text, and an architecture that computes the same is found, or why none does.
"""

from __future__ import annotations

import json
import math
import re

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.cli.main import main
from heedful.errors import ModelError
from heedful.interop.architecture import fitting_architecture
from heedful.interop.hf_tokenizers import read_tokenizers
from heedful.interop.hugging_face import export_model
from heedful.interop.tokenizer_export import library_state, own_settings
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, save_model
from heedful.models.encoder_spec import (
    MaskedLMHeadSpec,
    SequenceHeadSpec,
    SpanHeadSpec,
    TokenHeadSpec,
)
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec, translator_spec
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

CORPUS = [
    "The old house stands by the river, and the river runs to the sea.",
    "Ein Café in München: naïve, déjà vu! Größe 12.5 €",
    "机器学习 很 有趣 日本語 テキスト ΟΔΟΣ ος σας",
    "1 2 3 10 20 30 1999 2024 don't I'll",
] * 3
NASTY = [
    "",
    " ",
    "   ",
    "hello",
    " leading",
    "trailing ",
    "  twice  as  much  ",
    "tab\tand\nnewline\r\nand both \n\n",
    "caf\u00e9 cafe\u0301 CAF\u00c9 A\u030angstro\u0308m",
    "机器学习很有趣。日本語テキスト、한국어 mixed中文and English",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd ok",
    "zero\u200bwidth\ufeff no\u00a0break soft\u00adhyphen",
    "bell\x07 null\x00 escape\x1b[0m delete\x7f \x85 next",
    "1999 3.14 1,000,000 10% ... !!",
    "the<s>river</s> [MASK] <pad> <unk>",
    "<pad>\u2581 <eos>\u2581 \u2581already\u2581marked \u2047 \u2581",
    "İstanbul ẞ ΟΔΟΣ ΑΣ Σ ΣΑΣ. ʰΣ ΑΣ.Α ΑΣ.",
    "\ufdd0 \ufdd00 \ufdd01\u2581\ufdd0\u2581 \u25810 \U0010ffff",
    "the river\u3000the\u2003sea\u2028line",
]
KINDS = ["bpe", "byte-bpe", "unigram", "characters"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", ["whitespace", "punctuation"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_ids_of_any_text(kind, words, lowercase, tmp_path) -> None:
    spec = TokenizerSpec(kind=kind, words=words, lowercase=lowercase, vocabulary_size=400)
    ours = train_tokenizer(spec, CORPUS)
    state = library_state(ours, begins=False, ends=True)
    library = tokenizers.Tokenizer.from_str(json.dumps(state))
    (tmp_path / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own_settings(ours)))
    again = read_tokenizers(tmp_path, {"model_type": "marian"}).source
    for text in NASTY:
        ids = ours.encode(text)
        assert library.encode(text, add_special_tokens=False).ids == ids, repr(text)
        assert library.encode(text).ids == [*ids, ours.eos]
        assert again.encode(text) == ids
        assert again.decode([ours.bos, *ids, ours.eos]) == ours.decode(ids)
        assert again.pieces(ids) == [p.replace("<unk>", "<unk>\u2581") for p in ours.pieces(ids)]
    assert (again.pad, again.eos, again.unk) == (ours.pad, ours.eos, ours.unk)
    assert (again.first, again.last) == ((), (ours.eos,))


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_it(kind, tmp_path) -> None:
    from transformers import AutoTokenizer

    ours = train_tokenizer(TokenizerSpec(kind=kind, vocabulary_size=400, lowercase=True), CORPUS)
    for name, content in (
        ("tokenizer.json", library_state(ours, begins=True, ends=False)),
        ("tokenizer_config.json", own_settings(ours)),
        ("config.json", {"model_type": "llama"}),
    ):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.pad_token_id, theirs.eos_token_id) == (ours.pad, ours.eos)
    for text in NASTY:
        ids = ours.encode(text)
        assert theirs(text)["input_ids"] == [ours.bos, *ids]
        if ours.unk not in ids:
            assert theirs.decode([ours.bos, *ids], skip_special_tokens=True) == ours.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_found_in_a_text(kind, tmp_path) -> None:
    from transformers import AutoTokenizer

    ours = train_tokenizer(TokenizerSpec(kind=kind, vocabulary_size=400), CORPUS).for_encoder()
    for name, content in (
        ("tokenizer.json", library_state(ours, begins=True, ends=True)),
        ("tokenizer_config.json", own_settings(ours)),
        ("config.json", {"model_type": "bert"}),
    ):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The old {} stands.", "{} river", "the {}.", "the {} {}!"):
        masked = theirs(text.format(*[theirs.mask_token] * 2))["input_ids"]
        expected = ours.encode_masked(text.replace("{}", "[MASK]"), "[MASK]")
        if text.startswith("{}") and kind != "characters":
            continue  # theirs knows no space before a text
        assert masked == [ours.bos, *expected, ours.eos], text


def shape(**dials) -> TranslatorShape:
    small = {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4}
    return TranslatorShape(**{**small, "feedforward": 24, "max_length": 60, **dials})


MODERN = {"norm": "rms", "norm_placement": "pre", "bias": False}
MODELS = {
    "marian": lambda n: translator_spec(shape(attention_dropout=0.2), n, n),
    "marian, own tables": lambda n: translator_spec(
        shape(share_embeddings="none", activation="silu"), n, n
    ),
    "t5": lambda n: translator_spec(shape(**MODERN, positions="t5", activation="geglu_tanh"), n, n),
    "pegasus": lambda n: translator_spec(shape(norm_placement="pre"), n, n),
    "gpt_neox": lambda n: causal_lm_spec(
        shape(norm_placement="pre", activation="gelu", positions="rotary"), n, 30
    ),
    "gpt2": lambda n: causal_lm_spec(shape(norm_placement="pre", activation="gelu"), n, 30),
    "gpt2, learned": lambda n: causal_lm_spec(
        shape(norm_placement="pre", positions="learned", share_embeddings="none"), n, 30
    ),
    "llama": lambda n: causal_lm_spec(
        shape(**MODERN, positions="rotary", activation="swiglu", num_kv_heads=2), n, 30
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same(make_model, tmp_path, capsys, name) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    directory, out = make_model(tmp_path / "model", MODELS[name]), tmp_path / "out"
    capsys.readouterr()
    assert main(["export", str(directory), str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model_type"] == name.partition(",")[0]
    assert set(facts["files"]) == {file.name for file in out.iterdir()}
    ours, pair = load_model(directory)
    tokenizer = pair.source
    seq2seq = ours.spec.kind == "translator"
    loader = AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM
    theirs, told = loader.from_pretrained(out, output_loading_info=True)
    assert not told["missing_keys"], told
    assert not told["unexpected_keys"], told
    ids = torch.tensor([[tokenizer.bos, *tokenizer.encode("the river runs")]])
    at = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        if seq2seq:
            found = theirs(input_ids=ids, decoder_input_ids=ids[:, :9]).logits
            expected = ours.logits(ours(ids, at, ids[:, :9], at[:, :9]))
        else:
            found, expected = theirs(ids).logits, ours.logits(ours(ids, at))
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    settings = json.loads((out / "generation_config.json").read_text())
    assert settings["eos_token_id"] == theirs.generation_config.eos_token_id == tokenizer.eos
    assert settings["suppress_tokens"] == [tokenizer.pad, tokenizer.bos]
    assert theirs.config.pad_token_id == tokenizer.pad
    assert settings.get("decoder_start_token_id") == (tokenizer.bos if seq2seq else None)
    # Imported, it computes the same; exported again, it is the same bit for bit.
    back, again = tmp_path / "back", tmp_path / "again"
    assert main(["import", str(out), str(back)]) == 0
    assert main(["export", str(back), str(again)]) == 0
    for file in out.iterdir():
        if file.suffix == ".json":
            assert json.loads((again / file.name).read_text()) == json.loads(file.read_text())
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


GUIDE = {"norm_placement": "pre", "activation": "gelu"}
TASKS = {
    "masked_lm": (MaskedLMHeadSpec(), "MaskedLM"),
    "classify": (SequenceHeadSpec(labels=("x", "y"), source="first"), "SequenceClassification"),
    "tag": (TokenHeadSpec(labels=("x", "y", "z")), "TokenClassification"),
    "answer": (SpanHeadSpec(unanswerable=True), "QuestionAnswering"),
}


@pytest.mark.parametrize("task", TASKS)
@torch.no_grad()
def test_an_encoder_of_each_task_leaves(make_model, tmp_path, task) -> None:
    import transformers

    head, name = TASKS[task]
    directory, out = tmp_path / "model", tmp_path / "out"
    make_model(directory, lambda n: encoder_spec(shape(**GUIDE), n, 30, (head,)))
    assert main(["export", str(directory), str(out), "--format", "hf"]) == 0
    cls = getattr(transformers, f"XLMRobertaXLFor{name}")
    theirs, told = cls.from_pretrained(out, output_loading_info=True)
    assert not any(told.values()), told
    ours, _ = load_model(directory)
    ids = torch.randint(5, 40, (2, 9))
    found = theirs.eval()(ids)
    logits = found.logits if task != "answer" else torch.stack([found[0], found[1]], -1)
    states = ours(ids, torch.arange(9).expand(2, -1))
    (own,) = ours.heads.values()
    expected = own(states[:, 0] if task == "classify" else states)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_a_padding_id_that_would_move_positions_is_refused(make_model, tmp_path, monkeypatch):
    ids = {"pad_token_id": 3, "eos_token_id": 1, "bos_token_id": 2}
    monkeypatch.setattr("heedful.interop.hugging_face.token_ids", lambda *_: ids)
    head, _ = TASKS["masked_lm"]
    directory = make_model(
        tmp_path / "model", lambda n: encoder_spec(shape(**GUIDE), n, 30, (head,))
    )
    with pytest.raises(ModelError, match=r"'pad_token_id': 3.*move the positions"):
        export_model(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model_type", ["xlm-roberta", "m2m_100", "pegasus"])
def test_pieces_whose_ids_their_class_moves_are_refused(tmp_path, model_type) -> None:
    for name in ("spiece.model", "sentencepiece.bpe.model"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ModelError, match=r"other ids.*tokenizer\.json"):
            read_tokenizers(tmp_path, {"model_type": model_type})
        (tmp_path / name).unlink()


def test_two_tokenizers(make_model, tmp_path) -> None:
    directory = make_model(tmp_path / "model", MODELS["marian, own tables"], joint=False)
    out, back, again = (tmp_path / name for name in ("out", "back", "again"))
    assert main(["export", str(directory), str(out)]) == 0
    assert (out / "target_tokenizer" / "tokenizer.json").is_file()
    assert main(["import", str(out), str(back)]) == 0
    texts, targets = ["the river", "low"], ["Größe zyx", "12"]
    before, after = (
        [row.score for row in TranslationPipeline.load(path).score(texts, targets)]
        for path in (directory, back)
    )
    assert before == pytest.approx(after, abs=1e-4 * math.hypot(*before))
    assert main(["export", str(back), str(again)]) == 0
    for name in ("tokenizer.json", "tokenizer_config.json"):
        paths = [path / "target_tokenizer" / name for path in (out, again)]
        assert json.loads(paths[0].read_text()) == json.loads(paths[1].read_text())


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            lambda n: translator_spec(shape(positions="alibi"), n, n),
            ["the nearest is marian, a model with --model.positions sinusoidal."],
        ),
        (
            lambda n: causal_lm_spec(shape(), n, 30),
            ["the nearest is gpt2, a model with --model.norm-placement pre."],
        ),
        (
            lambda n: causal_lm_spec(shape(**MODERN, positions="rotary"), n, 30),
            ["the nearest is llama, a model with --model.activation swiglu."],
        ),
        (
            lambda n: causal_lm_spec(shape(mixer="rwkv", positions="none"), n, 30),
            ["a model with --model.mixer attention."],
        ),
        (lambda n: translator_spec(shape(num_experts=2), n, n), ["no --model.num-experts."]),
    ],
)
def test_what_does_not_fit_is_listed(make_model, tmp_path, capsys, spec, told) -> None:
    directory = make_model(tmp_path / "model", spec)
    assert main(["export", str(directory), str(tmp_path / "out"), "--format", "hf"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    for words in told:
        assert words in text, text
    assert len(text) - len(str(directory)) <= 300
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


OPTIONS = {
    "positions": ["sinusoidal", "learned", "rotary", "t5", "alibi"],
    "norm": ["layer", "rms"],
    "norm_placement": ["post", "pre", "none"],
    "activation": ["relu", "gelu", "silu", "swiglu", "geglu_tanh"],
    "bias": [True, False],
    "share_embeddings": ["all", "none"],
    "num_kv_heads": [None, 2],
    "window": [None, 5],
    "residual": [True, False],
}
KINDS_OF_MODELS = {
    "translator": lambda options: translator_spec(shape(**options), 40, 40),
    "causal_lm": lambda options: causal_lm_spec(shape(**options), 40, 30),
    "encoder": lambda options: encoder_spec(shape(**options), 40, 30, (MaskedLMHeadSpec(),)),
}


def advice(kind, options) -> str:
    """What a refusal says; nothing for a model that can leave."""
    try:
        fitting_architecture(KINDS_OF_MODELS[kind](options), None, where="run")
    except ModelError as error:
        return str(error)
    return ""


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS_OF_MODELS)),
    options=st.fixed_dictionaries({name: st.sampled_from(o) for name, o in OPTIONS.items()}),
)
def test_a_model_with_the_flags_that_are_named_can_leave(kind, options) -> None:
    # More than four flags are named in a second refusal.
    while text := advice(kind, options):
        assert len(text) <= 300
        flags = re.findall(r"(no )?--model\.([a-z0-9-]+)(?: ([a-z0-9_]+))?", text)
        named = {name.replace("-", "_"): None if no else value for no, name, value in flags}
        assert OPTIONS.keys() >= named.keys() != set(), text
        values = {k: v == "true" if k in ("bias", "residual") else v for k, v in named.items()}
        assert any(options[name] != value for name, value in values.items()), text
        options = options | values


@pytest.mark.parametrize("format", ["hf", "ctranslate2"])
def test_an_extended_tokenizer_is_refused(make_model, tmp_path, capsys, format) -> None:
    directory = make_model(tmp_path / "model", MODELS["marian"])
    _, pair = load_model(directory)
    extended = pair.source.extended(["<name>"])
    wider = translator_spec(shape(), extended.size, extended.size)
    save_model(build_model(wider), TokenizerPair(extended, extended), directory)
    words = ["export", str(directory), str(tmp_path / "out"), "--format", format]
    assert main(words) == 2
    assert "whole tokens" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
