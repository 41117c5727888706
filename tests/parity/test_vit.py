"""ViT against transformers: states, tensors, configurations, both ways."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.errors import ModelError, UserError
from heedful.interop.architectures.image_encoders.vit import ARCHITECTURE as vit
from heedful.interop.hugging_face import export_model, import_model
from heedful.models.build import canonical_weights, load_weights
from heedful.models.checkpoint import save_model
from heedful.models.images.vision import VisionModel
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.capture import Capture

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
VARIANTS = {
    "with a pooler": {"classes": 0, "pooler": True},
    "without a pooler": {"classes": 0, "pooler": False, "hidden_act": "gelu_new"},
    "classifier": {"classes": 3},
    "no bias in query, key, value": {
        "classes": 2,
        "qkv_bias": False,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.1,
    },
    "one channel, lists of sizes": {
        "classes": 0,
        "pooler": True,
        "num_channels": 1,
        "image_size": [12, 12],
        "patch_size": [3, 3],
    },
}


def their_config(*, classes=0, **changes):
    from transformers import ViTConfig

    names = {i: f"class {i}" for i in range(classes)}
    return ViTConfig(
        **{
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 24,
            "image_size": 12,
            "patch_size": 4,
            "id2label": names or None,
            "label2id": {name: i for i, name in names.items()} or None,
            **changes,
        }
    )


def their_model(*, classes=0, pooler=False, **changes):
    from transformers import ViTForImageClassification, ViTModel

    torch.manual_seed(0)
    config = their_config(classes=classes, **changes)
    if classes:
        model = ViTForImageClassification(config)
    else:
        model = ViTModel(config, add_pooling_layer=pooler)
    with torch.no_grad():  # so that a forgotten or swapped tensor shows
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def written(model, directory):
    """The config.json and tensors of a saved model."""
    model.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    return config, load_file(str(directory / "model.safetensors"))


def imported(config, tensors):
    spec = vit.read_config(config, where="config.json", names=tensors)
    model = VisionModel(spec)
    load_weights(model, vit.table(spec, tensors).to_ours(tensors, where="files"), where="files")
    return model.eval()


def images_of(spec: VisionSpec, count: int = 3):
    torch.manual_seed(1)
    return torch.randn(count, spec.channels, spec.image_size, spec.image_size)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_states_pooled_and_logits_are_equal(variant, tmp_path):
    theirs = their_model(**VARIANTS[variant])
    config, tensors = written(theirs, tmp_path)
    ours = imported(config, tensors)
    images = images_of(ours.spec)
    expected = theirs(images, output_hidden_states=True)
    capture = Capture(["encoder.*.output"])
    states = ours(images, capture)
    assert len(expected.hidden_states) == 3
    for layer in (0, 1):
        torch.testing.assert_close(
            capture.found[f"encoder.{layer}.output"], expected.hidden_states[layer + 1], **CLOSE
        )
    if ours.spec.labels:
        assert ours.spec.labels == tuple(theirs.config.id2label.values())
        last = theirs.vit(images).last_hidden_state
        torch.testing.assert_close(ours.class_logits(states), expected.logits, **CLOSE)
    else:
        last = expected.last_hidden_state
    torch.testing.assert_close(states, last, **CLOSE)
    assert ours.spec.pooler == VARIANTS[variant].get("pooler", False)
    if ours.spec.pooler:
        torch.testing.assert_close(ours.pooled(states), expected.pooler_output, **CLOSE)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_export_is_bit_for_bit_and_loads_again(variant, tmp_path):
    from transformers import ViTForImageClassification, ViTModel

    theirs = their_model(**VARIANTS[variant])
    config, tensors = written(theirs, tmp_path)
    ours = imported(config, tensors)
    assert vit.fits(ours.spec)
    exported = vit.table(ours.spec).to_theirs(canonical_weights(ours))
    assert exported.keys() == tensors.keys()
    assert all(torch.equal(exported[name], tensors[name]) for name in tensors)

    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text(json.dumps(vit.write_config(ours.spec)))
    save_file(exported, str(out / "model.safetensors"), metadata={"format": "pt"})
    images = images_of(ours.spec)
    if ours.spec.labels:
        again, loading = ViTForImageClassification.from_pretrained(out, output_loading_info=True)
        torch.testing.assert_close(again(images).logits, theirs(images).logits, rtol=0, atol=0)
        assert again.config.id2label == theirs.config.id2label
        assert again.config.label2id == theirs.config.label2id
    else:
        again, loading = ViTModel.from_pretrained(
            out, add_pooling_layer=ours.spec.pooler, output_loading_info=True
        )
        found, expected = again(images), theirs(images)
        assert torch.equal(found.last_hidden_state, expected.last_hidden_state)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    before, after = theirs.config.to_dict(), again.config.to_dict()
    if "lists" in variant:  # a square's side is written once
        assert (after.pop("image_size"), after.pop("patch_size")) == (12, 3)
    assert {key: before[key] for key in after if key != "_name_or_path"} == {
        key: value for key, value in after.items() if key != "_name_or_path"
    }


@torch.no_grad()
def test_directories_in_and_out(tmp_path):
    from transformers import ViTForImageClassification

    theirs = their_model(classes=3)
    _, tensors = written(theirs, tmp_path / "theirs")
    found = import_model(tmp_path / "theirs")
    save_model(found.model, found.tokenizers, tmp_path / "ours", origin=found.origin)
    export_model(tmp_path / "ours", tmp_path / "out")
    exported = load_file(str(tmp_path / "out" / "model.safetensors"))
    assert exported.keys() == tensors.keys()
    assert all(torch.equal(exported[name], tensors[name]) for name in tensors)
    images = images_of(found.spec)
    again = ViTForImageClassification.from_pretrained(tmp_path / "out")
    assert torch.equal(again(images).logits, theirs(images).logits)


@torch.no_grad()
def test_positions_of_another_image_size_are_interpolated_alike(tmp_path):
    theirs = their_model(classes=2)
    ours = imported(*written(theirs, tmp_path))
    for size in (8, 20, 36):
        other = ours.at_size(size)
        images = images_of(other.spec)
        expected = theirs(images, interpolate_pos_encoding=True).logits
        torch.testing.assert_close(other.class_logits(other(images)), expected, **CLOSE)


def test_names_with_and_without_the_prefix(tmp_path):
    config, tensors = written(their_model(pooler=True), tmp_path)
    prefixed = {f"vit.{name}": tensor for name, tensor in tensors.items()}
    plain, other = imported(config, tensors), imported(config, prefixed)
    for name, tensor in canonical_weights(plain).items():
        assert torch.equal(canonical_weights(other)[name], tensor)


def test_classes_without_names(tmp_path):
    ours = imported(*written(their_model(classes=2), tmp_path))
    unnamed = ours.spec.model_copy(update={"labels": (), "num_classes": 4})
    assert vit.fits(unnamed)
    config = vit.write_config(unnamed)
    assert config["id2label"] == {str(i): f"LABEL_{i}" for i in range(4)}
    del config["id2label"], config["label2id"]  # they leave two nameless classes out
    assert vit.read_config(config, where="x").labels == ("LABEL_0", "LABEL_1")


def test_what_cannot_be_read_is_refused_by_name(tmp_path):
    from transformers import ViTModel

    masked = ViTModel(their_config(), add_pooling_layer=False, use_mask_token=True)
    with pytest.raises(ModelError, match=r"unknown: embeddings\.mask_token"):
        imported(*written(masked, tmp_path))
    config, tensors = written(their_model(pooler=True), tmp_path)
    del tensors["encoder.layer.1.output.dense.bias"]
    with pytest.raises(ModelError, match=r"missing: encoder\.layer\.1\.output\.dense\.bias"):
        imported(config, tensors)
    wrong = {
        "architectures": ["ViTForMaskedImageModeling"],
        "pooler_act": "relu",
        "pooler_output_size": 8,
        "hidden_act": "mish",
        "image_size": [12, 16],
        "patch_size": [4, 4, 4],
        "hidden_size": "16",
        "num_attention_heads": 3,
        "id2label": {"1": "a"},
    }
    for key, value in wrong.items():
        changed = {**config, key: value}
        if key == "id2label":
            changed["architectures"] = ["ViTForImageClassification"]
        named = "multiple of num_heads 3" if key == "num_attention_heads" else f"{key} = "
        with pytest.raises(UserError, match=named) as caught:
            vit.read_config(changed, where="some/config.json")
        assert "some/config.json" in str(caught.value)


def test_specs_that_their_classes_cannot_be(tmp_path):
    spec = imported(*written(their_model(classes=2), tmp_path)).spec
    assert vit.fits(spec)
    for changes in ({"pooling": "mean"}, {"pooler": True}, {"dropout": 0.5}):
        assert not vit.fits(spec.model_copy(update=changes)), changes
    block = spec.encoder.block
    experts = block.feedforward.plain() | {"experts": {"num_experts": 2}}
    plain = spec.plain()
    plain["encoder"]["pattern"][0]["sublayers"][1]["part"] |= experts
    assert not vit.fits(VisionSpec.parse(plain))
    text = {"width": 8, "vocabulary": 9, "decoder": {"num_layers": 1, "block": {}}}
    text["decoder"]["block"] = {"self_attention": {"num_heads": 1}, "feedforward": {"width": 8}}
    assert not vit.fits(CausalLMSpec.parse(text))
