"""Encoders as ONNX files give what they give here, for any number of texts and tokens, padded on
either side.
"""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
import tokenizers
import torch

from heedful.cli.main import main
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, save_model
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import encoder_spec, translator_spec

HEADS = {
    "masked_lm": {"kind": "masked_lm"},
    "sequence": {"kind": "sequence", "labels": ["bad", "good"], "source": "first"},
    "token": {"kind": "token", "labels": ["A", "B", "C"]},
    "span": {"kind": "span"},
}


def encoder(n: int, *heads: str, bert: bool = False, **dials) -> EncoderSpec:
    # The exporter takes seconds for each layer; one model has two.
    sizes = {"width": 16, "encoder_layers": 1, "num_heads": 4, "feedforward": 24}
    plain = encoder_spec(TranslatorShape(**sizes | dials), n, 40, ()).plain()
    plain["heads"] = [HEADS[head] for head in heads]
    if bert:
        plain["pooler"] = True
        plain["embedding"] |= {"norm": {}, "num_segments": 2, "scale": False}
    return EncoderSpec.parse(plain)


MODELS = {
    "labels": lambda n: encoder(n, "sequence", num_kv_heads=2),
    "masked": lambda n: encoder(n, "masked_lm", norm_placement="pre", positions="t5"),
    "several": lambda n: encoder(
        n,
        "token",
        "span",
        "sequence",
        bert=True,
        encoder_layers=2,
        positions="learned",
        activation="gelu",
    ),
    "modern": lambda n: encoder(
        n,
        "span",
        positions="rotary",
        norm="rms",
        norm_placement="pre",
        activation="swiglu",
        bias=False,
        window=5,
    ),
}
OUTPUTS = {
    "labels": ["logits", "last_hidden_state"],
    "masked": ["logits", "last_hidden_state"],
    "several": [
        "token_logits",
        "span_start_logits",
        "span_end_logits",
        "sequence_logits",
        "last_hidden_state",
        "pooler_output",
    ],
    "modern": ["start_logits", "end_logits", "last_hidden_state"],
}


def expected(model, ids, positions, segments):
    """What our model gives, by the outputs' names."""
    states = model(ids, positions, segments)
    found = {"last_hidden_state": states}
    several = len(model.spec.heads) > 1
    for head in model.spec.heads:
        prefix = f"{head.kind}_" if several else ""
        if head.kind == "span":
            start, end = model.span_logits(states).unbind(-1)
            found |= {f"{prefix}start_logits": start, f"{prefix}end_logits": end}
        elif head.kind == "sequence":
            found[f"{prefix}logits"] = model.sequence_logits(states, positions)
        else:
            found[f"{prefix}logits"] = getattr(model, f"{head.kind}_logits")(states)
    if model.pooler is not None:
        found["pooler_output"] = model.pooled(states, positions)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_encoders(make_model, tmp_path, capsys, name) -> None:
    directory = make_model(tmp_path / "model", MODELS[name])
    out = tmp_path / "out"
    capsys.readouterr()
    assert main(["export", str(directory), str(out), "--format", "onnx", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["outputs"] == OUTPUTS[name]
    model, pair = load_model(directory)
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    assert [item.name for item in session.get_outputs()] == OUTPUTS[name]
    inputs = ["input_ids", "attention_mask"]
    if model.spec.embedding.num_segments:
        inputs.append("token_type_ids")
    assert [item.name for item in session.get_inputs()] == inputs
    for lengths in ((7, 2, 5), (1,), (1, 30), (23, 16, 3, 9)):
        for left in (False, True):
            ids = torch.full((len(lengths), max(lengths)), pair.source.pad)
            positions = torch.full_like(ids, -1)
            for row, length in enumerate(lengths):
                place = slice(max(lengths) - length, None) if left else slice(length)
                ids[row, place] = torch.randint(4, pair.source.size, (length,))
                positions[row, place] = torch.arange(length)
            real = positions >= 0
            segments = (positions > 2).long()
            given = {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": segments}
            found = session.run(None, {key: given[key].numpy() for key in inputs})
            with torch.no_grad():
                wanted = expected(
                    model, ids, positions, segments if "token_type_ids" in inputs else None
                )
            for output, values in zip(OUTPUTS[name], found, strict=True):
                ours = wanted[output].numpy()
                assert values.shape == ours.shape
                if ours.shape[:2] == ids.shape:  # what is said of padding means nothing
                    values, ours = values[real.numpy()], ours[real.numpy()]
                np.testing.assert_allclose(values, ours, rtol=1e-4, atol=1e-4)
    config = json.loads((out / "config.json").read_text())
    assert config["pad_token_id"] == pair.source.pad
    if name == "labels":
        assert config["id2label"] == {"0": "bad", "1": "good"}
    library = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    ids = [*pair.source.first, *pair.source.encode("the river "), *pair.source.last]
    assert library.encode("the river ").ids == ids


def test_images(tmp_path) -> None:
    block = {
        "norm_placement": "pre",
        "self_attention": {"num_heads": 2},
        "feedforward": {"width": 20},
    }
    plain = {
        "width": 16,
        "image_size": 8,
        "patch_size": 4,
        "channels": 1,
        "encoder": {"num_layers": 1, "block": block, "final_norm": {}},
    }
    pixels = torch.rand(4, 1, 8, 8)
    model = build_model(VisionSpec.parse({**plain, "labels": ["a", "b", "c"]})).eval()
    save_model(model, None, tmp_path / "model")
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "model"), str(out), "--format", "onnx"]) == 0
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    assert [output.name for output in session.get_outputs()] == ["logits", "last_hidden_state"]
    with torch.no_grad():
        states = model(pixels)
        wanted = [model.class_logits(states), states]
    for values, ours in zip(
        session.run(None, {"pixel_values": pixels.numpy()}), wanted, strict=True
    ):
        np.testing.assert_allclose(values, ours.numpy(), rtol=1e-4, atol=1e-4)
    assert set(json.loads((out / "config.json").read_text())["label2id"]) == {*"abc"}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (lambda n: translator_spec(TranslatorShape(width=8, num_heads=2), n, n), "'translator'"),
        (lambda n: encoder(n, num_experts=2), "experts"),
    ],
)
def test_what_a_graph_cannot_hold(make_model, tmp_path, capsys, spec, told) -> None:
    model = make_model(tmp_path / "model", spec)
    assert main(["export", str(model), str(tmp_path / "out"), "--format", "onnx"]) == 2
    assert told in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_without_the_packages(make_model, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = make_model(tmp_path / "model", MODELS["labels"])
    assert main(["export", str(model), str(tmp_path / "out"), "--format", "onnx"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "onnx, onnxscript" in told
    assert "heedful[onnx]" in told
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
