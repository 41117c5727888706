"""CLIP and SigLIP from directory to vector: texts and pictures as transformers sees them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
import torch
from PIL import Image
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

import heedful
from heedful.errors import ModelError
from heedful.interop.architecture import find_architecture
from heedful.interop.hf_tokenizers import read_tokenizers
from heedful.interop.hugging_face import export_model, import_model
from heedful.interop.sentencepiece_files import CONTROL, UNKNOWN, Piece, write_sentencepiece
from heedful.models.checkpoint import save_model
from heedful.text.tokenizer import framed

from .test_tokenizers import CORPUS, NASTY, compare, unigram

SIDE = 12
TEXTS = ["The old river.", "low, newer and WIDEST!", "a cat"]
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IMAGES = {**SIZES, "image_size": SIDE, "patch_size": 4}


def write_clip_tokenizer(directory):
    """Byte pairs of words that end in </w>, in the files of the first CLIP."""
    library = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"'s|'t|\p{L}+|\p{N}"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    settings = {"end_of_word_suffix": "</w>", "show_progress": False, "vocab_size": 90}
    library.train_from_iterator(CORPUS, trainers.BpeTrainer(**settings))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges)]
    pieces = [*dict.fromkeys(pieces), "<|startoftext|>", "<|endoftext|>"]
    (directory / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}))
    lines = ["#version: 0.2", *map(" ".join, merges), ""]
    (directory / "merges.txt").write_text("\n".join(lines))
    return len(pieces)


def write_siglip_tokenizer(directory):
    specials = [("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)]
    model = unigram([Piece(text, 0.0, kind) for text, kind in specials])
    (directory / "spiece.model").write_bytes(write_sentencepiece(model))
    return len(model.pieces)


def clip(directory):
    """A CLIP with all its files, and its tokenizer and processor of pictures."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    pieces = write_clip_tokenizer(directory)
    texts = {**SIZES, "vocab_size": pieces, "max_position_embeddings": 30}
    texts |= {"bos_token_id": pieces - 2, "eos_token_id": pieces - 1}
    model = CLIPModel(CLIPConfig(text_config=texts, vision_config=IMAGES, projection_dim=10))
    square = {"height": SIDE, "width": SIDE}
    processor = CLIPImageProcessorPil(size={"shortest_edge": 15}, crop_size=square)
    return model, CLIPTokenizer.from_pretrained(directory), processor


def siglip(directory):
    """A SigLIP, as `clip`."""
    from transformers import SiglipConfig, SiglipModel, SiglipTokenizer
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    pieces = write_siglip_tokenizer(directory)
    texts = {**SIZES, "vocab_size": pieces, "max_position_embeddings": 30}
    model = SiglipModel(SiglipConfig(text_config=texts, vision_config=IMAGES))
    processor = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return model, SiglipTokenizer(str(directory / "spiece.model")), processor


def saved(make, directory):
    """A model of random weights in a directory, with what reads texts and pictures for it."""
    torch.manual_seed(0)
    directory.mkdir()
    model, tokenizer, processor = make(directory)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.eval().save_pretrained(directory)
    processor.save_pretrained(directory)
    return model, tokenizer, processor


@pytest.fixture
def pictures(tmp_path):
    """Pictures that are wide, high, small, and of the model's size."""
    files = []
    for number, size in enumerate([(SIDE, SIDE), (31, 20), (7, 9), (12, 40)]):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3)).astype(np.uint8)
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels).save(files[-1])
    return files


def expected_scores(model, tokenizer, processor, pictures):
    """Scores [pictures, texts] of theirs."""
    images = [Image.open(file).convert("RGB") for file in pictures]
    pixels = processor(images, return_tensors="pt")["pixel_values"]
    # SigLIP reads its padding, and CLIP none.
    whole = model.config.model_type == "siglip"
    settings = {"padding": "max_length", "max_length": 30} if whole else {"padding": True}
    ids = tokenizer(TEXTS, return_tensors="pt", **settings)
    mask = {} if whole else {"attention_mask": ids["attention_mask"]}
    found = model(input_ids=ids["input_ids"], pixel_values=pixels, **mask)
    return found.logits_per_image, found.image_embeds, found.text_embeds


@pytest.mark.parametrize("make", [clip, siglip])
@torch.no_grad()
def test_vectors_and_labels_are_those_of_theirs(make, pictures, tmp_path):
    theirs = saved(make, tmp_path / "theirs")
    scores, of_images, of_texts = expected_scores(*theirs, pictures)
    found = import_model(tmp_path / "theirs")
    save_model(found.model, found.tokenizers, tmp_path / "ours", origin=found.origin)
    export_model(tmp_path / "ours", tmp_path / "out")
    for place in ("theirs", "ours", "out"):
        pipeline = heedful.load(tmp_path / place, precision="fp32")
        for vectors, expected in (
            (pipeline.embed_images(pictures), of_images),
            (pipeline.embed(TEXTS), of_texts),
        ):
            np.testing.assert_allclose(vectors, expected.numpy(), rtol=0, atol=1e-5)
        for row, labels in zip(scores, pipeline.classify(pictures, TEXTS), strict=True):
            named = dict(zip(TEXTS, row.softmax(-1).tolist(), strict=True))
            for one in labels:
                assert one.probability == pytest.approx(named[one.label], abs=1e-5)
    again = type(theirs[0]).from_pretrained(tmp_path / "out").eval()
    np.testing.assert_allclose(
        expected_scores(again, *theirs[1:], pictures)[0], scores, rtol=0, atol=1e-5
    )
    assert again.config.text_config.eos_token_id == theirs[0].config.text_config.eos_token_id


@torch.no_grad()
def test_settings_of_texts_and_pictures_may_be_one_file(pictures, tmp_path):
    """As version 5 of transformers writes them."""
    from transformers import CLIPProcessor

    _, tokenizer, processor = saved(clip, tmp_path / "theirs")
    before = heedful.load(tmp_path / "theirs").embed_images(pictures)
    (tmp_path / "theirs" / "preprocessor_config.json").unlink()
    CLIPProcessor(processor, tokenizer).save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "preprocessor_config.json").exists()
    assert np.array_equal(heedful.load(tmp_path / "theirs").embed_images(pictures), before)


WRONG = {
    "do_pad = true": {"do_pad": True},
    "size = ": {"size": {"shortest_edge": 11}},
    "crop_size = ": {"crop_size": {"height": 11, "width": 12}},
    "image_processor_type = ": {"image_processor_type": "OtherImageProcessor"},
    "do_solarize = ": {"do_solarize": 1},
}


@pytest.mark.parametrize(("name", "changed"), WRONG.items())
def test_other_preprocessing_is_named(name, changed, tmp_path):
    saved(clip, tmp_path / "theirs")
    file = tmp_path / "theirs" / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(ModelError, match=name):
        import_model(tmp_path / "theirs")


def test_a_wrong_field_of_a_tower_is_named_with_its_table(tmp_path):
    saved(siglip, tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    config = json.loads(file.read_text())
    for table, changed in {
        "vision_config": {"vision_use_head": False},
        "text_config": {"projection_size": 17},
    }.items():
        file.write_text(json.dumps(config | {table: config[table] | changed}))
        with pytest.raises(ModelError, match=f"{table}: .*{next(iter(changed))} = "):
            import_model(tmp_path / "theirs")


def test_the_second_table_of_a_tower_wins_with_its_usual_values():
    from transformers import CLIPConfig

    tables = {"text_config": {**SIZES, "vocab_size": 50}, "vision_config": IMAGES}
    tables["text_config_dict"] = {"hidden_size": 32, "num_attention_heads": 4}
    theirs = CLIPConfig(**tables).text_config
    ours = find_architecture("clip", where="").read_config(tables, where="config.json").texts
    assert (ours.width, ours.vocabulary) == (theirs.hidden_size, theirs.vocab_size) == (32, 49408)
    assert ours.encoder.num_layers == theirs.num_hidden_layers == 12
    assert ours.encoder.block.feedforward.width == theirs.intermediate_size


def test_clip_reads_texts_as_theirs(tmp_path):
    from transformers import CLIPTokenizer

    write_clip_tokenizer(tmp_path)
    theirs = CLIPTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizers(tmp_path, {"model_type": "clip"}).source
    for text in NASTY:
        assert framed(ours, ours.encode(text)) == theirs(text)["input_ids"], repr(text)
        ids = theirs(text)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), repr(text)
    (tmp_path / "saved").mkdir()
    theirs.save_pretrained(tmp_path / "saved")
    compare(tmp_path / "saved", theirs, config={"model_type": "clip"})


def test_siglip_reads_texts_as_theirs(tmp_path):
    from transformers import SiglipTokenizer

    write_siglip_tokenizer(tmp_path)
    theirs = SiglipTokenizer(str(tmp_path / "spiece.model"))
    ours = read_tokenizers(tmp_path, {"model_type": "siglip"}).source
    assert (ours.pad, ours.eos) == (theirs.pad_token_id, theirs.eos_token_id)
    for text in NASTY:
        if "<s>" not in text:  # theirs reads special tokens in a text, and puts spaces there
            assert framed(ours, ours.encode(text)) == theirs(text)["input_ids"], repr(text)
