"""RoBERTa's directories: the same numbers as `transformers`, in and out, to 1e-5 in float32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from heedful.errors import ModelError, UserError
from heedful.interop.architectures.encoders.bert import ARCHITECTURE as bert
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
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
NAMES = {"id2label": {0: "no", 1: "yes", 2: "é"}, "label2id": {"no": 0, "yes": 1, "é": 2}}
CASES = {
    "pooler": ("RobertaModel", {}),
    "no pooler": ("RobertaModel", {"add_pooling_layer": False}),
    # Its head has the exact gelu whatever the encoder's activation is.
    "masked": ("RobertaForMaskedLM", {"hidden_act": "relu", "pad_token_id": 3}),
    "masked, untied": ("RobertaForMaskedLM", {"tie_word_embeddings": False}),
    "sequence": ("RobertaForSequenceClassification", {**NAMES, "type_vocab_size": 2}),
    "token": ("RobertaForTokenClassification", {**NAMES, "classifier_dropout": 0.0}),
    "span": ("RobertaForQuestionAnswering", {}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, text_encoders, tmp_path_factory):
    import transformers

    name, changes = CASES[request.param]
    options = {k: v for k, v in changes.items() if k == "add_pooling_layer"}
    sizes = {**SIZES, **{k: v for k, v in changes.items() if k not in options}}
    directory = tmp_path_factory.mktemp("roberta") / "theirs"
    cls, config = getattr(transformers, name), transformers.RobertaConfig(**sizes)
    theirs = text_encoders.write_toy(cls, config, directory, **options)
    config, tensors = text_encoders.read_directory(directory)
    return SimpleNamespace(
        name=request.param,
        cls=cls,
        theirs=theirs,
        options=options,
        config=config,
        tensors=tensors,
        ours=text_encoders.read_ours(roberta, config, tensors),
        first_position=sizes.get("pad_token_id", 1) + 1,
        num_segments=sizes["type_vocab_size"],
    )


def both_run(case, text_encoders, model, *, left):
    batch = text_encoders.draw_batch(50, case.num_segments, left=left)
    return batch, text_encoders.run_theirs(model, batch, case.first_position)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_are_theirs(case, text_encoders, left):
    _, whole = both_run(case, text_encoders, case.theirs, left=False)
    batch, theirs = both_run(case, text_encoders, case.theirs, left=left)
    text_encoders.agree(text_encoders.run_ours(case.ours, batch), theirs, batch, whole)


def test_their_own_positions_are_ours(case, text_encoders):
    """Without positions given, they number tokens by where the padding id is."""
    batch = text_encoders.draw_batch(50, case.num_segments, left=True)
    given = text_encoders.run_theirs(case.theirs, batch, case.first_position)
    padding = case.first_position - 1
    ids = torch.where(batch.real, batch.ids, padding)
    with torch.no_grad():
        own = case.theirs(
            input_ids=ids,
            attention_mask=batch.real.long(),
            token_type_ids=batch.segments,
            output_hidden_states=True,
        )
    for a, b in zip(given.hidden_states, own.hidden_states, strict=True):
        torch.testing.assert_close(a[batch.real], b[batch.real], rtol=1e-5, atol=1e-5)


def test_tensors_come_back_bit_for_bit(case):
    back = roberta.table(case.ours.spec, case.tensors).to_theirs(canonical_weights(case.ours))
    # An untied head's second bias is never added: nothing of ours holds it.
    unused = {"lm_head.bias"} if case.name == "masked, untied" else set()
    assert back.keys() == case.tensors.keys() - unused
    assert all(torch.equal(tensor, case.tensors[name]) for name, tensor in back.items())


def test_an_export_is_loaded_by_them_and_by_us(case, text_encoders, tmp_path):
    assert roberta.fits(case.ours.spec)
    assert not bert.fits(case.ours.spec)
    text_encoders.write_theirs(roberta, case.ours, tmp_path / "out")
    loaded, told = case.cls.from_pretrained(
        tmp_path / "out", output_loading_info=True, **case.options
    )
    assert not any(told.values()), told
    batch, expected = both_run(case, text_encoders, case.theirs, left=False)
    _, again = both_run(case, text_encoders, loaded.eval(), left=False)
    text_encoders.agree(text_encoders.run_ours(case.ours, batch), again, batch, expected)
    for key, value in roberta.write_config(case.ours.spec).items():
        own = getattr(case.theirs.config, key)
        if key == "id2label":
            value = {int(id): label for id, label in value.items()}
        if not (key == "classifier_dropout" and own is None):  # then it is the hidden one's
            assert own == value, key
    config, tensors = text_encoders.read_directory(tmp_path / "out")
    model = text_encoders.read_ours(roberta, config, tensors)
    assert model.spec == case.ours.spec
    before, after = canonical_weights(case.ours), canonical_weights(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_as_many_positions_as_the_table_has_after_its_unused_rows():
    spec = roberta.read_config({**SIZES, "pad_token_id": 1}, where="")
    assert spec.max_length == 10
    assert spec.embedding.positions.max_length == 10
    assert spec.embedding.positions.unused_rows == 2


def test_the_files_of_pre_training_have_a_pooler_too(text_encoders, tmp_path):
    from transformers import RobertaConfig, RobertaForMaskedLM

    text_encoders.write_toy(RobertaForMaskedLM, RobertaConfig(**SIZES), tmp_path)
    config, tensors = text_encoders.read_directory(tmp_path)
    added = {
        "roberta.pooler.dense.weight": torch.randn(24, 24),
        "roberta.pooler.dense.bias": torch.randn(24),
        "roberta.embeddings.position_ids": torch.arange(12)[None],
        "lm_head.decoder.weight": tensors["roberta.embeddings.word_embeddings.weight"],
        "lm_head.decoder.bias": tensors["lm_head.bias"],
    }
    model = text_encoders.read_ours(roberta, config, {**tensors, **added})
    assert model.spec.pooler
    assert torch.equal(model.pooler.dense.weight, added["roberta.pooler.dense.weight"])
    assert roberta.fits(model.spec)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"position_embedding_type": "relative_key_query"}, '"relative_key_query"'),
        ({"is_decoder": True}, "is_decoder = true"),
        ({"architectures": ["RobertaForCausalLM"]}, "RobertaForCausalLM"),
        ({"pad_token_id": -1}, "pad_token_id = -1"),
        ({"max_position_embeddings": 2}, "max_length"),
    ],
)
def test_what_has_no_counterpart_is_refused(change, told):
    config = {**SIZES, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"]}
    roberta.read_config(config, where="config.json")
    with pytest.raises(UserError) as caught:
        roberta.read_config({**config, **change}, where="here/config.json")
    assert told in str(caught.value)
    assert "here/config.json" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"embedding": {"positions": {"unused_rows": 0}}},
        {"heads": [{"kind": "next_sentence"}]},
        {"heads": [{"kind": "sequence", "labels": ["a"], "source": "pooled", "dropout": 0.1}]},
        {
            "heads": [{"kind": "masked_lm", "activation": "gelu", "norm": {"epsilon": 1e-5}}],
            "block": {"norm": {"epsilon": 1e-6}},
        },
    ],
    ids=str,
)
def test_what_they_cannot_say_does_not_fit(change, changed):
    spec = roberta.read_config({**SIZES, "architectures": ["RobertaModel"]}, where="")
    assert roberta.fits(spec)
    assert not roberta.fits(changed(spec, change))


def test_a_text_longer_than_the_table_is_refused(case):
    length = case.ours.spec.max_length + 1
    positions = torch.arange(length)[None]
    with pytest.raises(ModelError, match=f"ends? at {length - 2}"):
        case.ours(torch.full_like(positions, 5), positions)


def test_presets_are_the_published_configurations():
    published = {
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "architectures": ["RobertaModel"],
    }
    for name, (width, layers, heads) in {
        "roberta-base": (768, 12, 12),
        "roberta-large": (1024, 24, 16),
    }.items():
        sizes = {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
        }
        assert roberta.read_config({**published, **sizes}, where="") == read_preset_spec(name)
        assert roberta.fits(read_preset_spec(name))
