"""BERT's directories: the same numbers as `transformers`, in and out, to 1e-5 in float32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from heedful.errors import UserError
from heedful.interop.architectures.encoders.bert import ARCHITECTURE as bert
from heedful.interop.architectures.encoders.bert import NAMES as BERT
from heedful.interop.architectures.encoders.roberta import ARCHITECTURE as roberta
from heedful.models.build import canonical_weights
from heedful.models.preset_files import read_preset_spec

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
}
NAMES = {
    "id2label": {0: "no", 1: "perhaps", 2: "yes"},
    "label2id": {"no": 0, "perhaps": 1, "yes": 2},
}
CASES = {
    "pooler": ("BertModel", {}),
    "no pooler": ("BertModel", {"add_pooling_layer": False}),
    "masked": ("BertForMaskedLM", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "masked, untied": ("BertForMaskedLM", {"tie_word_embeddings": False, "hidden_act": "relu"}),
    "pre-training": ("BertForPreTraining", {}),
    "next sentence": ("BertForNextSentencePrediction", {}),
    "sequence": ("BertForSequenceClassification", {**NAMES, "classifier_dropout": 0.3}),
    "token": ("BertForTokenClassification", NAMES),
    "span": ("BertForQuestionAnswering", {"hidden_dropout_prob": 0.2}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, text_encoders, tmp_path_factory):
    import transformers

    name, changes = CASES[request.param]
    options = {k: v for k, v in changes.items() if k == "add_pooling_layer"}
    sizes = {**SIZES, **{k: v for k, v in changes.items() if k not in options}}
    directory = tmp_path_factory.mktemp("bert") / "theirs"
    cls = getattr(transformers, name)
    theirs = text_encoders.write_toy(cls, transformers.BertConfig(**sizes), directory, **options)
    config, tensors = text_encoders.read_directory(directory)
    ours = text_encoders.read_ours(bert, config, tensors)
    return SimpleNamespace(
        name=request.param,
        cls=cls,
        theirs=theirs,
        options=options,
        config=config,
        tensors=tensors,
        ours=ours,
    )


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_are_theirs(case, text_encoders, left):
    batch = text_encoders.draw_batch(50, 2, left=left)
    theirs = text_encoders.run_theirs(case.theirs, batch)
    on_the_right = text_encoders.draw_batch(50, 2, left=False)
    whole = text_encoders.run_theirs(case.theirs, on_the_right)
    text_encoders.agree(text_encoders.run_ours(case.ours, batch), theirs, batch, whole)


def test_tensors_come_back_bit_for_bit(case):
    back = bert.table(case.ours.spec, case.tensors).to_theirs(canonical_weights(case.ours))
    # An untied head's second bias is never added: nothing of ours holds it.
    unused = {"cls.predictions.bias"} if case.name == "masked, untied" else set()
    assert back.keys() == case.tensors.keys() - unused
    assert all(torch.equal(tensor, case.tensors[name]) for name, tensor in back.items())


def test_an_export_is_loaded_by_them_and_by_us(case, text_encoders, tmp_path):
    assert bert.fits(case.ours.spec)
    assert not roberta.fits(case.ours.spec)
    text_encoders.write_theirs(bert, case.ours, tmp_path / "out")
    loaded, told = case.cls.from_pretrained(
        tmp_path / "out", output_loading_info=True, **case.options
    )
    assert not any(told.values()), told
    batch = text_encoders.draw_batch(50, 2, left=False)
    expected = text_encoders.run_theirs(case.theirs, batch)
    text_encoders.agree(
        text_encoders.run_ours(case.ours, batch),
        text_encoders.run_theirs(loaded.eval(), batch),
        batch,
        expected,
    )
    for key, value in bert.write_config(case.ours.spec).items():
        own = getattr(case.theirs.config, key)
        if key in ("id2label", "label2id"):
            own, value = ({str(k): str(v) for k, v in d.items()} for d in (own, value))
        if not (key == "classifier_dropout" and own is None):  # then it is the hidden one's
            assert own == value, key
    config, tensors = text_encoders.read_directory(tmp_path / "out")
    again = text_encoders.read_ours(bert, config, tensors)
    assert again.spec == case.ours.spec
    before, after = canonical_weights(case.ours), canonical_weights(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.fixture(scope="module")
def pretrained(text_encoders, tmp_path_factory):
    """Configuration, tensors and our model of a directory with both heads of pre-training."""
    import transformers

    directory = tmp_path_factory.mktemp("bert") / "pretrained"
    text_encoders.write_toy(
        transformers.BertForPreTraining, transformers.BertConfig(**SIZES), directory
    )
    config, tensors = text_encoders.read_directory(directory)
    return config, tensors, text_encoders.read_ours(bert, config, tensors)


def same_model(text_encoders, config, tensors, model):
    again = text_encoders.read_ours(bert, config, tensors)
    before, after = canonical_weights(model), canonical_weights(again)
    assert before.keys() == after.keys()
    return all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_what_files_hold_is_read_though_the_class_has_less(pretrained, text_encoders):
    config, tensors, model = pretrained
    smaller = {**config, "architectures": ["BertForMaskedLM"]}
    assert same_model(text_encoders, smaller, tensors, model)
    assert bert.write_config(model.spec)["architectures"] == ["BertForPreTraining"]
    assert same_model(text_encoders, {**config, "architectures": None}, tensors, model)


def test_old_names_buffers_and_copies(pretrained, text_encoders):
    config, tensors, model = pretrained
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(12)[None]
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    assert sum("gamma" in name for name in old) == 6
    assert same_model(text_encoders, config, old, model)
    old["cls.predictions.decoder.weight"] = old["cls.predictions.decoder.weight"] + 1
    with pytest.raises(UserError, match=r"decoder.weight differs from bert.embeddings.word"):
        text_encoders.read_ours(bert, config, old)


def test_an_encoder_alone_may_have_the_prefix_or_not(pretrained, text_encoders):
    config, tensors, _ = pretrained
    config = {**config, "architectures": ["BertModel"]}
    named = {name: tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    bare = {name.removeprefix("bert."): tensor for name, tensor in named.items()}
    model = text_encoders.read_ours(bert, config, named)
    assert model.spec.heads == ()
    assert model.spec.pooler
    assert same_model(text_encoders, config, bare, model)


def test_an_untied_head_of_a_file_with_one_bias(text_encoders, pretrained):
    config, tensors, _ = pretrained
    config = {**config, "tie_word_embeddings": False}
    tensors = {**tensors, "cls.predictions.decoder.weight": torch.randn(50, 24)}
    model = text_encoders.read_ours(bert, config, tensors)
    head = model.heads["masked_lm"]
    assert torch.equal(head.bias, tensors["cls.predictions.bias"])
    assert torch.equal(head.projection.weight, tensors["cls.predictions.decoder.weight"])


@pytest.mark.parametrize("kind", ["missing", "extra", "renamed"])
def test_tensors_that_do_not_fit_are_named(pretrained, text_encoders, kind):
    config, tensors, _ = pretrained
    name, tensors = "bert.encoder.layer.1.intermediate.dense.bias", dict(tensors)
    value = tensors[name] if kind == "extra" else tensors.pop(name)
    if kind != "missing":
        name = "bert.encoder.layer.2.intermediate.dense.bias"
        tensors[name] = value
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        text_encoders.read_ours(bert, config, tensors)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"position_embedding_type": "relative_key"}, 'position_embedding_type = "relative_key"'),
        ({"is_decoder": True}, "is_decoder = true"),
        ({"add_cross_attention": True}, "add_cross_attention = true"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"hidden_act": "mish"}, 'hidden_act = "mish"'),
        ({"architectures": ["BertForMultipleChoice"]}, "BertForMultipleChoice"),
        ({"problem_type": "regression"}, 'problem_type = "regression"'),
        ({"hidden_size": "24"}, 'hidden_size = "24"'),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_attention_heads": 5}, "width 24 is not a multiple of num_heads 5"),
        ({"hidden_dropout_prob": 1.5}, "1.5"),
        ({"max_position_embeddings": 0}, "max_length"),
    ],
)
def test_what_has_no_counterpart_is_refused(change, told):
    config = {**SIZES, "model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    bert.read_config(config, where="config.json")
    with pytest.raises(UserError) as caught:
        bert.read_config({**config, **change}, where="here/config.json")
    assert told in str(caught.value)
    assert "here/config.json" in str(caught.value)


def test_without_names_the_class_tells_of_the_pooler():
    def pooler(name):
        config = {**SIZES, "architectures": [name]}
        return bert.read_config(config, where="").pooler

    with_it = [n for n in BERT.classes if pooler(n)]
    assert with_it == [
        "BertModel",
        "BertForPreTraining",
        "BertForNextSentencePrediction",
        "BertForSequenceClassification",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 11},
        {"embedding": {"scale": True}},
        {"embedding": {"num_segments": None}},
        {"embedding": {"dropout": 0.3}},
        {"embedding": {"norm": {"epsilon": 1e-3}}},
        {"embedding": {"positions": {"unused_rows": 2}}},
        {"encoder": {"final_norm": {}}},
        {"block": {"norm_placement": "before"}},
        {"block": {"norm": {"kind": "rms"}}},
        {"self_attention": {"mask": {"kind": "causal"}}},
        {"feedforward": {"activation": "geglu"}},
        {"feedforward": {"dropout": 0.1}},
        {"heads": [{"kind": "token", "labels": ["a"]}, {"kind": "span"}]},
        {"heads": [{"kind": "sequence", "labels": ["a"], "source": "first", "dropout": 0.1}]},
        {"heads": [{"kind": "masked_lm", "activation": "relu", "norm": {"epsilon": 1e-12}}]},
    ],
    ids=str,
)
def test_what_they_cannot_say_does_not_fit(change, changed):
    spec = bert.read_config({**SIZES, "architectures": ["BertModel"]}, where="")
    assert bert.fits(spec)
    other = changed(spec, change)
    assert other != spec
    assert not bert.fits(other)


def test_presets_are_the_published_configurations():
    published = {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "architectures": ["BertModel"],
    }
    for name, (width, layers, heads) in {
        "bert-base": (768, 12, 12),
        "bert-large": (1024, 24, 16),
    }.items():
        sizes = {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
        }
        assert bert.read_config({**published, **sizes}, where="") == read_preset_spec(name)
        assert bert.fits(read_preset_spec(name))
