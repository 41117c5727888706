"""Directories of another project in and out: whole, exact, or an error that says what and where."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import heedful
from heedful.errors import ConfigError, ModelError, RunError
from heedful.interop.architecture import MODEL_TYPES, find_architecture
from heedful.interop.hf_files import is_hugging_face
from heedful.interop.hugging_face import export_model, import_model
from heedful.interop.model_loading import load_any
from heedful.models import checkpoint
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, load_translator, save_model
from heedful.models.model_directory import read_facts
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.pipelines.translation import TranslationPipeline


def bring_in(theirs, out: Path, *, keep_dtype: bool = True) -> None:
    imported = import_model(theirs.path, keep_dtype=keep_dtype)
    save_model(imported.model, imported.tokenizers, out, origin=imported.origin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_and_out_is_exact(theirs, tmp_path, dtype) -> None:
    original = {name: tensor.to(dtype) for name, tensor in theirs.tensors().items()}
    theirs.save(original)
    bring_in(theirs, tmp_path / "ours")
    export_model(tmp_path / "ours", tmp_path / "again")
    written = load_file(str(tmp_path / "again" / "model.safetensors"))
    assert written.keys() == original.keys()
    for name, tensor in original.items():
        assert written[name].dtype == dtype
        assert torch.equal(written[name], tensor), name
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {key: config[key] for key in theirs.config} == theirs.config
    assert "pad_token_id" not in config  # theirs had none
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    settings = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert settings == {"model_max_length": 12}
    bring_in_again = import_model(tmp_path / "again")
    assert bring_in_again.spec == import_model(theirs.path).spec
    assert bring_in_again.tokenizers.fingerprint == load_model(tmp_path / "ours")[1].fingerprint


def test_float32_on_wish(theirs, tmp_path) -> None:
    theirs.save({name: tensor.half() for name, tensor in theirs.tensors().items()})
    assert {p.dtype for p in import_model(theirs.path).model.parameters()} == {torch.float32}
    bring_in(theirs, tmp_path / "ours", keep_dtype=False)
    stored = load_file(str(tmp_path / "ours" / "model.safetensors"))
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}


def test_what_is_imported_is_loaded_again(theirs, tmp_path) -> None:
    state = torch.random.get_rng_state()
    imported = import_model(theirs.path)
    assert torch.equal(state, torch.random.get_rng_state())
    bring_in(theirs, tmp_path / "ours")
    model, tokenizers = load_model(tmp_path / "ours")
    assert not model.training
    assert not imported.model.training
    assert model.spec == imported.spec
    assert tokenizers.fingerprint == imported.tokenizers.fingerprint
    assert tokenizers.joint
    expected = imported.model.state_dict()
    assert all(torch.equal(t, expected[name]) for name, t in model.state_dict().items())
    assert read_facts(tmp_path / "ours").origin["model_type"] == "gpt2"
    for path in (theirs.path, tmp_path / "ours"):
        again, pair = load_any(path)
        assert again.spec == imported.spec
        assert pair.fingerprint == tokenizers.fingerprint
    assert is_hugging_face(theirs.path)
    assert not is_hugging_face(tmp_path / "ours")
    assert not is_hugging_face(tmp_path)


def test_shards(theirs) -> None:
    whole = import_model(theirs.path).model.state_dict()
    theirs.shard(3)
    sharded = import_model(theirs.path).model.state_dict()
    assert all(torch.equal(tensor, sharded[name]) for name, tensor in whole.items())


def _lose_shard(theirs) -> None:
    (theirs.path / theirs.shard(3)[1]).unlink()


def _empty_shard(theirs) -> None:
    save_file({}, str(theirs.path / theirs.shard(3)[1]))


def _repeat_in_shard(theirs) -> None:
    everything = theirs.tensors()
    save_file(everything, str(theirs.path / theirs.shard(2)[0]))


def _point_outside(theirs) -> None:
    theirs.shard(1)
    index = {"weight_map": {"wte.weight": "../secrets.safetensors"}}
    theirs.write("model.safetensors.index.json", index)


def _no_map(theirs) -> None:
    theirs.shard(1)
    theirs.write("model.safetensors.index.json", {"weight_map": []})


def _pickle(theirs) -> None:
    weights = theirs.path / "model.safetensors"
    weights.rename(theirs.path / "pytorch_model.bin")


def _truncate(theirs) -> None:
    file = theirs.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def _spoil_header(theirs) -> None:
    file = theirs.path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:40] = os.urandom(32)
    file.write_bytes(content)


def _with(change):
    def spoil(theirs) -> None:
        tensors = theirs.tensors()
        change(tensors)
        theirs.save(tensors)

    return spoil


def _rename(tensors) -> None:
    tensors["transformer.h.0.ln_1.gamma"] = tensors.pop("transformer.h.0.ln_1.weight")


def _reshape(tensors) -> None:
    tensors["transformer.wpe.weight"] = torch.zeros(13, 16)


def _quantise(tensors) -> None:
    tensors["transformer.wpe.weight"] = torch.zeros(12, 16, dtype=torch.int8)


def _file(name: str, content: object):
    return lambda theirs: theirs.write(name, content)


DAMAGE = {
    "shard missing": (_lose_shard, "00002-of-00003.*missing"),
    "tensors not in their shard": (_empty_shard, "00002-of-00003.*missing"),
    "tensors in two shards": (_repeat_in_shard, "00001-of-00002.*elsewhere"),
    "a path outside": (_point_outside, "outside"),
    "no map": (_no_map, "weight_map"),
    "pickle": (_pickle, r"pytorch_model\.bin.*weights_only=True"),
    "no weights": (lambda t: (t.path / "model.safetensors").unlink(), "neither"),
    "truncated": (_truncate, r"model\.safetensors.*damaged"),
    "random header": (_spoil_header, r"model\.safetensors.*damaged"),
    "missing": (_with(lambda t: t.pop("transformer.ln_f.bias")), r"missing.*ln_f\.bias"),
    "extra": (_with(lambda t: t.update(what=torch.zeros(2))), "unknown: what"),
    "renamed": (_with(_rename), r"missing.*ln_1\.weight.*unknown.*ln_1\.gamma"),
    "shape": (_with(_reshape), r"positions.*\[13, 16\], not \[12, 16\]"),
    "dtype": (_with(_quantise), "int8.*quantised"),
    "no config": (lambda t: (t.path / "config.json").unlink(), r"lacks config\.json"),
    "config no JSON": (_file("config.json", "{"), r"config\.json.*JSON"),
    "config a list": (_file("config.json", "[]"), r"config\.json.*object"),
    "no model_type": (_file("config.json", "{}"), "model_type"),
    "unknown type": (
        lambda t: t.write_config(model_type="gtp2"),
        "gtp2.*Known: albert, bart, .*other-models",
    ),
    "activation": (lambda t: t.write_config(activation_function="gelu_neu"), "gelu_neu.*gelu_new"),
    "a width of text": (lambda t: t.write_config(n_embd="16"), "n_embd"),
    "heads": (lambda t: t.write_config(n_head=3), "num_heads 3"),
    "more pieces than rows": (lambda t: t.write_tokenizer(9), "266.*260"),
    "no tokenizer": (lambda t: (t.path / "tokenizer.json").unlink(), "no tokenizer"),
    "tokenizer no JSON": (_file("tokenizer.json", "{"), r"tokenizer\.json"),
    "tokenizer empty": (_file("tokenizer.json", "{}"), r"tokenizer\.json"),
    "tokenizer settings": (_file("tokenizer_config.json", "{"), r"tokenizer_config\.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_nothing_written(theirs, tmp_path, damage) -> None:
    spoil, message = DAMAGE[damage]
    spoil(theirs)
    with pytest.raises((ModelError, ConfigError), match=message) as error:
        bring_in(theirs, tmp_path / "ours")
    assert str(theirs.path) in str(error.value)
    assert {file.name for file in tmp_path.iterdir()} == {"theirs"}


def test_a_full_disk_leaves_nothing(theirs, tmp_path, monkeypatch) -> None:
    bring_in(theirs, tmp_path / "ours")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RunError, match="No space"):
        bring_in(theirs, tmp_path / "other")
    monkeypatch.setattr("heedful.interop.hugging_face.write_tensors", full)
    with pytest.raises(RunError, match="No space"):
        export_model(tmp_path / "ours", tmp_path / "out")
    assert {file.name for file in tmp_path.iterdir()} == {"theirs", "ours"}


def test_what_theirs_cannot_do_is_not_exported(theirs, tmp_path) -> None:
    imported = import_model(theirs.path)
    spec = imported.spec
    attention = spec.decoder.block.self_attention.model_copy(update={"softcap": 30.0})
    block = spec.decoder.block.replace(self_attention=attention)
    decoder = spec.decoder.with_block(block)
    other = build_model(spec.model_copy(update={"decoder": decoder}))
    save_model(other, imported.tokenizers, tmp_path / "ours", origin=imported.origin)
    with pytest.raises(
        ModelError,
        match=r"the nearest is gpt2, where decoder\.block\.self_attention\.softcap is 30\.0 here",
    ):
        export_model(tmp_path / "ours", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_kind_is_no_translator(theirs, tmp_path) -> None:
    bring_in(theirs, tmp_path / "ours")
    with pytest.raises(ModelError, match="causal_lm"):
        load_translator(tmp_path / "ours")
    with pytest.raises(ModelError, match="heedful import"):
        load_translator(theirs.path)


def test_a_kind_that_is_not_known(theirs, tmp_path) -> None:
    bring_in(theirs, tmp_path / "ours")
    file = tmp_path / "ours" / "config.json"
    file.write_text(file.read_text().replace('"causal_lm"', '"casual_lm"'))
    with pytest.raises(ModelError, match="Did you mean 'causal_lm'"):
        load_model(tmp_path / "ours")


def test_files_without_a_kind_are_translators(tmp_path) -> None:
    spec = translator_spec(TranslatorShape(width=8, num_heads=2, feedforward=8), 9, 9).plain()
    del spec["kind"]
    plain = {"schema_version": 2, "model": spec, "files": {"model.safetensors": ["0"]}}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    assert read_facts(tmp_path).spec.kind == "translator"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_architecture_is_one(model_type) -> None:
    architecture = find_architecture(model_type, where="config.json")
    assert architecture.model_type == model_type
    wrong = dict.fromkeys(("hidden_size", "n_embd", "d_model"), "wide")
    with pytest.raises(ModelError, match=r"dir/config\.json"):
        architecture.read_config({"model_type": model_type, **wrong}, where="dir/config.json")


def test_the_guide_names_every_architecture() -> None:
    page = Path(__file__).parents[2] / "docs/guides/other-models.md"
    rows = (r for r in page.read_text(encoding="utf-8").splitlines() if r.startswith("|"))
    named = {word for row in rows for word in row.split("`")[1::2]}
    assert set(MODEL_TYPES) - named == set()


SIZES = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("albert", "num_hidden_groups", 2),
        ("deberta-v2", "relative_attention", False),
        ("deberta-v2", "conv_kernel_size", 3),
        ("deberta-v2", "pos_att_type", "p2p"),
        ("deberta-v2", "legacy", False),
        ("deepseek_v2", "norm_topk_prob", True),
        ("deepseek_v2", "topk_method", "noaux_tc"),
        ("deepseek_v3", "attention_bias", True),
        ("deepseek_v3", "head_dim", 7),
        ("mamba2", "time_step_limit", [0.0, 0.1]),
        ("mamba2", "expand", 3),
        ("deit", "qkv_bias", "yes"),
    ],
)
def test_a_setting_without_counterpart_is_named(model_type, key, value) -> None:
    sizes = dict.fromkeys(("intermediate_size", "max_position_embeddings"), 24)
    config = {**SIZES, **sizes, "num_hidden_layers": 2, "num_experts_per_tok": 2, key: value}
    config |= {"relative_attention": True} if key != "relative_attention" else {}
    config |= {"pos_att_type": "c2p"} if key != "pos_att_type" else {}
    told = rf"config\.json: {key} = {re.escape(json.dumps(value))}: "
    with pytest.raises(ModelError, match=told):
        find_architecture(model_type, where="").read_config(config, where="config.json")


def test_their_directory_is_used_as_it_is(theirs, tmp_path) -> None:
    bring_in(theirs, tmp_path / "ours")
    drawn = {"sampling": True, "temperature": 3.0, "seed": 4, "max_length": 6}
    found = [
        [one.text for one in heedful.load(path).generate(["a", "bc", "é"] * 5, **drawn)]
        for path in (theirs.path, tmp_path / "ours")
    ]
    assert found[0] == found[1]
    with pytest.raises(ModelError, match="no translator"):
        TranslationPipeline.load(theirs.path, read=load_any)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n_layer": 1_000_000_000}, "1000000000 layers.* only 28 tensors"),
        ({"n_layer": 3}, r"missing: transformer\.h\.2"),
        ({"n_embd": 2_000_000_000}, "of shape"),
        ({"vocab_size": 10**12}, "embedding.weight"),
        ({"n_positions": 10**12}, "positions.weight"),
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused_at_once(theirs, changes, told) -> None:
    theirs.write_config(**changes)
    with pytest.raises(ModelError, match=told):
        import_model(theirs.path)
    if "n_layer" in changes:
        return
    with pytest.raises(ModelError):
        load_any(theirs.path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused(theirs, name) -> None:
    (theirs.path / name).unlink()
    os.mkfifo(theirs.path / name)
    with pytest.raises(ModelError, match=f"{name}.*no regular file"):
        import_model(theirs.path)


def test_digests_of_the_hubs_cache_are_checked(theirs) -> None:
    weights = theirs.path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    blob = theirs.path / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    weights.unlink()
    weights.symlink_to(blob)
    blob.write_bytes(content)
    import_model(theirs.path)
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors.*SHA-256"):
        import_model(theirs.path)


def test_a_tokenizer_that_panics_is_an_error(theirs) -> None:
    state = json.loads((theirs.path / "tokenizer.json").read_text())
    state["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "/////w=="}
    theirs.write("tokenizer.json", state)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        import_model(theirs.path).tokenizers.source.encode("a é")
