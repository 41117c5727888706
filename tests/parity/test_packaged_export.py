"""The models that come with the package, exported: transformers computes and writes the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import heedful
from heedful.cli.main import main
from heedful.models.checkpoint import load_model
from heedful.models.model_directory import locate
from heedful.pipelines.text_generation import generate
from heedful.pipelines.translation import TranslationPipeline

TEXTS = ["A man rides a bicycle.", "Where is the train station?", "[MASK] ŝ<s> x", "Two dogs"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The directory of a packaged model for transformers, our model and its tokenizer."""

    def export(name, model_type):
        out = tmp_path_factory.mktemp("packaged") / name
        assert main(["export", name, str(out), "--format", "hf"]) == 0
        assert json.loads((out / "config.json").read_text())["model_type"] == model_type
        model, pair = load_model(locate(Path(name)))
        return out, model.eval(), pair and pair.source

    return export


def load(cls, path):
    """Their model, of whose tensors none is missing or too many."""
    model, told = cls.from_pretrained(path, output_loading_info=True)
    assert not any(told.values()), told
    return model.eval()


def close(found, expected):
    scale = expected.abs().max()
    torch.testing.assert_close(found / scale, expected / scale, rtol=0.0, atol=1e-5)


@torch.no_grad()
def test_the_translator_is_a_pegasus(exported):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    path, ours, pieces = exported("en-de", "pegasus")
    theirs, tokenizer = load(AutoModelForSeq2SeqLM, path), AutoTokenizer.from_pretrained(path)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    assert tokenizer(TEXTS)["input_ids"] == [[*pieces.encode(t), pieces.eos] for t in TEXTS]
    at = torch.where(batch["attention_mask"] > 0, batch["attention_mask"].cumsum(1) - 1, -1)
    target = torch.tensor([[pieces.bos, *pieces.encode("Ein Mann")]]).expand(len(TEXTS), -1)
    steps = torch.arange(target.shape[1]).expand_as(target)
    found = theirs(**batch, decoder_input_ids=target).logits
    close(found, ours.logits(ours(batch["input_ids"], at, target, steps)))
    pipeline = TranslationPipeline.load(locate(Path("en-de")), precision="fp32")
    texts = [text for text in TEXTS if "[MASK]" not in text]  # which never ends
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    for beam in (1, 4):
        ids = theirs.generate(**batch, num_beams=beam, length_penalty=0.0, max_length=40)
        rows = pipeline.translate(texts, protect=[], beam=beam, length_penalty=0.0)
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [str(row) for row in rows]


@torch.no_grad()
def test_the_writer_is_a_llama(exported):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path, ours, pieces = exported("english", "llama")
    theirs, tokenizer = load(AutoModelForCausalLM, path), AutoTokenizer.from_pretrained(path)
    prompt = [pieces.bos, *pieces.encode("The cat sat on the")]
    assert tokenizer("The cat sat on the")["input_ids"] == prompt
    ids = torch.tensor([prompt])
    close(theirs(ids).logits, ours.logits(ours(ids, torch.arange(len(prompt))[None])))
    written = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20)
    (own,) = generate(ours, [prompt], ends=[pieces.eos], beam=1, max_length=20)
    expected = written[0, len(prompt) :].tolist()
    assert list(own.n_best[0].tokens) == [id for id in expected if id != pieces.eos]


@torch.no_grad()
def test_the_filler_is_an_xlm_roberta_xl(exported):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    path, ours, _ = exported("english-masked", "xlm-roberta-xl")
    theirs, tokenizer = load(AutoModelForMaskedLM, path), AutoTokenizer.from_pretrained(path)
    texts = [text.replace("dogs", tokenizer.mask_token) for text in TEXTS]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert tokenizer.mask_token_id in batch["input_ids"][3]
    at = torch.where(batch["attention_mask"] > 0, batch["attention_mask"].cumsum(1) - 1, -1)
    found = theirs(**batch).logits
    expected = ours.heads["masked_lm"](ours(batch["input_ids"], at))
    close(found[at >= 0], expected[at >= 0])
    best = tokenizer.decode(found[3, batch["input_ids"][3] == tokenizer.mask_token_id].argmax())
    (filled,) = heedful.load("english-masked").fill(["Two [MASK]"])
    assert best.strip() in str(filled)


@torch.no_grad()
def test_the_reader_of_digits_is_an_ijepa(exported):
    import numpy as np
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    path, ours, _ = exported("digits", "ijepa")
    theirs = load(AutoModelForImageClassification, path)
    processor = AutoImageProcessor.from_pretrained(path)
    draw = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    pixels = ours.spec.pixels
    values = processor([Image.fromarray(image) for image in draw], return_tensors="pt")
    images = (torch.tensor(draw)[:, None] * pixels.rescale - pixels.mean[0]) / pixels.std[0]
    close(values["pixel_values"], images)
    close(theirs(images).logits, ours.class_logits(ours(images)))
    assert theirs.config.id2label[7] == "7"
