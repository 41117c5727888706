"""Pixels as transformers' image processor of ViT makes them, and labels of an imported model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.errors import ModelError, UserError
from heedful.interop.hugging_face import export_model, import_model
from heedful.models.checkpoint import load_model, save_model

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
PROCESSORS = {
    "as published": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    "another for each channel": {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.3]},
    "one for all": {"image_mean": 0.4, "image_std": 0.3},
    "bicubic": {"resample": 3},
    "nearest": {"resample": 0},
    "lanczos, another scale": {"resample": 1, "rescale_factor": 1 / 127.5},
    "no rescaling": {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [60.0] * 3},
    "no normalizing": {"do_normalize": False},
}
SIZE = {"height": 12, "width": 12}


def their_processor(**changes):
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return ViTImageProcessorPil(size=SIZE, **changes)


def their_model(channels=3):
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    names = {0: "cat", 1: "dog", 2: "eel"}
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        image_size=12,
        patch_size=4,
        num_channels=channels,
        id2label=names,
        label2id={name: i for i, name in names.items()},
    )
    model = ViTForImageClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="module")
def theirs():
    return their_model()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Files of several sizes, one already of the model's."""
    folder = tmp_path_factory.mktemp("pictures")
    files = []
    for number, size in enumerate([(12, 12), (31, 20), (7, 9), (12, 40)]):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3)).astype(np.uint8)
        files.append(folder / f"{number}.png")
        Image.fromarray(pixels).save(files[-1])
    return files


@pytest.mark.parametrize("name", PROCESSORS)
@torch.no_grad()
def test_pixels_and_labels_are_equal(name, theirs, pictures, tmp_path):
    processor = their_processor(**PROCESSORS[name])
    theirs.save_pretrained(tmp_path / "theirs")
    processor.save_pretrained(tmp_path / "theirs")
    images = [Image.open(file).convert("RGB") for file in pictures]
    expected = processor(images, return_tensors="pt")["pixel_values"]
    found = import_model(tmp_path / "theirs")
    save_model(found.model, None, tmp_path / "ours", origin=found.origin)
    for place in ("theirs", "ours"):
        pipeline = heedful.load(tmp_path / place, precision="fp32")
        torch.testing.assert_close(pipeline.prepare(pictures), expected.float(), **CLOSE)
    arrays = [np.asarray(image) for image in images]
    assert torch.equal(pipeline.prepare(arrays), pipeline.prepare(pictures))

    probabilities = theirs(expected.float()).logits.softmax(-1)
    for labels, row in zip(pipeline.classify(pictures), probabilities.tolist(), strict=True):
        named = dict(zip(("cat", "dog", "eel"), row, strict=True))
        assert [one.label for one in labels] == sorted(named, key=named.get, reverse=True)
        for one in labels:
            assert one.probability == pytest.approx(named[one.label], abs=1e-5)

    export_model(tmp_path / "ours", tmp_path / "out")
    before, after = (
        json.loads((tmp_path / place / "preprocessor_config.json").read_text())
        for place in ("theirs", "out")
    )
    assert after == before


@torch.no_grad()
def test_what_we_say_of_pixels_is_understood_there(theirs, pictures, tmp_path):
    """As of a model of our own, which no file came with."""
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    theirs.save_pretrained(tmp_path / "theirs")
    their_processor(image_mean=[0.1, 0.2, 0.3], resample=3).save_pretrained(tmp_path / "theirs")
    found = import_model(tmp_path / "theirs")
    save_model(found.model, None, tmp_path / "ours")
    export_model(tmp_path / "ours", tmp_path / "out")
    processor = ViTImageProcessorPil.from_pretrained(tmp_path / "out")
    expected = processor([Image.open(f).convert("RGB") for f in pictures], return_tensors="pt")
    pipeline = heedful.load(tmp_path / "ours", precision="fp32")
    torch.testing.assert_close(
        pipeline.prepare(pictures), expected["pixel_values"].float(), **CLOSE
    )


def test_grey_models(pictures, tmp_path):
    their_model(channels=1).save_pretrained(tmp_path / "theirs")
    processor = their_processor(image_mean=[0.3], image_std=[0.2])
    processor.save_pretrained(tmp_path / "theirs")
    grey = [np.asarray(Image.open(file).convert("L"))[None] for file in pictures]
    expected = processor(grey, return_tensors="pt", input_data_format="channels_first")
    pipeline = heedful.load(tmp_path / "theirs", precision="fp32")
    torch.testing.assert_close(
        pipeline.prepare(pictures), expected["pixel_values"].float(), **CLOSE
    )


def test_older_files_and_what_is_not_done_here(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    old = {"feature_extractor_type": "ViTFeatureExtractor", "size": 12, "do_resize": True}
    old |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2, "do_normalize": True}
    file.write_text(json.dumps(old))
    pixels = import_model(tmp_path).spec.pixels
    assert (pixels.resample, pixels.mean, pixels.rescale) == ("bilinear", (0.5,) * 3, 1 / 255)
    wrong = {
        "image_processor_type": "ConvNextImageProcessor",
        "do_center_crop": True,
        "do_pad": True,
        "size": {"shortest_edge": 12},
        "resample": 9,
        "image_mean": [0.5],
        "image_std": [0.5, 0.5, "x"],
        "rescale_factor": "1/255",
        "do_solarize": True,
        "do_resize": 1,
    }
    for key, value in wrong.items():
        file.write_text(json.dumps(old | {key: value}))
        with pytest.raises(ModelError, match=f"{key} = ") as caught:
            import_model(tmp_path)
        assert "preprocessor_config.json" in str(caught.value)
    for key in ("size", "image_std"):
        file.write_text(json.dumps(old | {key: 13 if key == "size" else [0.5, 0.5, 0.0]}))
        with pytest.raises(UserError, match=r"preprocessor_config\.json"):
            import_model(tmp_path)


def test_without_the_file_pixels_are_not_guessed(theirs, pictures, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    found = import_model(tmp_path / "theirs")
    assert found.spec.pixels is None
    save_model(found.model, None, tmp_path / "ours", origin=found.origin)
    for place in ("theirs", "ours"):
        with pytest.raises(ModelError, match=r"preprocessor_config\.json"):
            heedful.load(tmp_path / place)
    export_model(tmp_path / "ours", tmp_path / "out")
    assert not (tmp_path / "out" / "preprocessor_config.json").exists()
    model, _ = load_model(tmp_path / "ours")
    assert model.spec == found.spec
