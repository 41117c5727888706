"""Attention of every architecture that can be read, against their own eager attention."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from heedful.inspect.captures import capture
from heedful.interop.registry import MODULES, find_architecture
from heedful.models.build import build_model
from heedful.models.weights import load_weights

SMALL = {"vocab_size": 40, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 2}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = SMALL | LAYERS | {"intermediate_size": 24, "max_position_embeddings": 16}
SEQ = SMALL | {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}
TOYS = {
    "bert": ("BertForMaskedLM", "BertConfig", ENCODER),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", ENCODER | {"pad_token_id": 1}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        SMALL | {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", ENCODER | {"num_key_value_heads": 2}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        SMALL | {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ),
    "marian": ("MarianMTModel", "MarianConfig", SEQ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        LAYERS
        | {"intermediate_size": 24, "image_size": 12, "patch_size": 4}
        | {"attn_implementation": "eager"},
    ),
}
TEXT, TARGET = torch.tensor([[5, 9, 30, 7, 22, 8]]), torch.tensor([[2, 6, 31, 11]])


def theirs_and_ours(name, directory):
    import transformers

    model_class, config_class, settings = TOYS[name]
    torch.manual_seed(0)
    theirs = getattr(transformers, model_class)(
        getattr(transformers, config_class)(**settings)
    ).eval()
    with torch.no_grad():
        for parameter in (p for p in theirs.parameters() if p.requires_grad):
            parameter.add_(0.3 * torch.randn_like(parameter))
    theirs.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    stored = load_file(directory / "model.safetensors")
    architecture = find_architecture(config["model_type"], where="")
    spec = architecture.read_config(config, where="", names=stored.keys())
    ours = build_model(spec)
    table = architecture.table(spec, stored.keys())
    load_weights(ours, table.to_ours(stored, where=""), where="")
    return theirs, ours


def places(ids):
    return torch.arange(ids.shape[1])[None]


@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_attention_is_theirs(name, tmp_path):
    theirs, ours = theirs_and_ours(name, tmp_path)
    if name == "vit":
        images = torch.randn(1, 3, 12, 12)
        expected, inputs = theirs(pixel_values=images, output_attentions=True), (images,)
    elif name in ("t5", "bart", "marian"):
        expected = theirs(input_ids=TEXT, decoder_input_ids=TARGET, output_attentions=True)
        inputs = (TEXT, places(TEXT), TARGET, places(TARGET))
    else:
        expected, inputs = theirs(input_ids=TEXT, output_attentions=True), (TEXT, places(TEXT))
    found = capture(ours, inputs, ["**.weights"])
    if "encoder_attentions" in expected:
        kinds = {
            "encoder.{}.self": expected.encoder_attentions,
            "decoder.{}.self": expected.decoder_attentions,
            "decoder.{}.cross": expected.cross_attentions,
        }
    else:
        stack = "encoder" if hasattr(ours, "encoder") else "decoder"
        kinds = {f"{stack}.{{}}.self": expected.attentions}
    assert len(found) == 2 * len(kinds)
    for pattern, layers in kinds.items():
        for layer, weights in enumerate(layers):
            own = torch.from_numpy(found[f"{pattern.format(layer)}.weights"])
            assert weights.std() > 0.01
            torch.testing.assert_close(own, weights, rtol=1e-5, atol=1e-5)


def test_every_architecture_is_here():
    assert TOYS.keys() == MODULES.keys()
