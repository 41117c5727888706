"""GGUF: what is written is read by the package of llama.cpp, and by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from heedful.apps.export.gguf_file import export_gguf
from heedful.errors import ConfigError, ModelError
from heedful.interop.hugging_face import import_model
from heedful.models.checkpoint import save_model

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
WAVES = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, attention_bias=True, rms_norm_eps=1e-3),
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LINEAR),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "gemma2": Gemma2Config(**SIZES, head_dim=8, query_pre_attn_scalar=8, sliding_window=16),
}
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())[:33]
VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", *LETTERS, "ab", "abc", "#"]


def tokenizer(step: Any = None) -> PreTrainedTokenizerFast:
    vocabulary = {text: number for number, text in enumerate(dict.fromkeys(VOCABULARY))}
    letters = [("a", "b"), ("ab", "c")] if "c" in vocabulary else []
    library = Tokenizer(models.BPE(vocabulary, letters, unk_token="<unk>"))
    library.pre_tokenizer = step or pre_tokenizers.ByteLevel(add_prefix_space=False)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=library, **named)


def imported(config: Any, folder: Path, step: Any = None) -> tuple[Path, Any]:
    """A model of ours made of a random one of theirs, and theirs."""
    torch.manual_seed(2)
    theirs = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.save_pretrained(folder / "hf")
    tokenizer(step).save_pretrained(folder / "hf")
    ours = import_model(folder / "hf")
    save_model(ours.model, ours.tokenizers, folder / "ours", origin=ours.origin)
    return folder / "ours", theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"mistral"}))
def test_transformers_finds_every_tensor_as_it_was(name: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    ours, theirs = imported(CONFIGS[name], tmp_path)
    export_gguf(ours, tmp_path / "out", "float32")
    path = str(tmp_path / "out" / "model.gguf")
    found = load_gguf_checkpoint(path, return_tensors=True, model_to_load=theirs)["tensors"]
    state = theirs.state_dict()
    assert found.keys() | {"lm_head.weight"} == state.keys()
    for key, tensor in found.items():
        # Gemma's norms are stored as 1 + weight, and one is taken away again.
        torch.testing.assert_close(tensor, state[key], rtol=0, atol=2e-7 * (name == "gemma2"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mistral", "qwen2"])
def test_transformers_computes_the_same_from_the_file(name: str, tmp_path: Path) -> None:
    """Of the others their reader leaves settings out: biases, width of heads, scaled positions."""
    pytest.importorskip("gguf")
    ours, theirs = imported(CONFIGS[name], tmp_path)
    export_gguf(ours, tmp_path / "out", "float32")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file="model.gguf").eval()
    ids = torch.tensor([[1, 5, 9, 30, 7, 2]])
    with torch.no_grad():
        torch.testing.assert_close(read(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)


def test_settings_have_their_names(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    wanted = {
        "tied": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
        "gemma2": {
            "gemma2.attn_logit_softcapping": 50.0,
            "gemma2.final_logit_softcapping": 30.0,
            "gemma2.attention.sliding_window": 16,
            "gemma2.attention.key_length": 8,
            "gemma2.attention.head_count_kv": 2,
        },
    }
    for name, values in wanted.items():
        (tmp_path / name).mkdir()
        ours, _ = imported(CONFIGS[name], tmp_path / name)
        export_gguf(ours, tmp_path / name / "out", "float32")
        fields = gguf.GGUFReader(tmp_path / name / "out" / "model.gguf").fields
        assert {key: fields[key].contents() for key in values} == values


@pytest.mark.parametrize("name", CONFIGS)
def test_the_package_reads_every_tensor(name: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    ours, _ = imported(CONFIGS[name], tmp_path)
    export_gguf(ours, tmp_path / "out", "float32")
    reader = gguf.GGUFReader(tmp_path / "out" / "model.gguf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    assert len(reader.tensors) == len(weights)
    found = {each.name: np.array(each.data) for each in reader.tensors}
    table = weights["model.embed_tokens.weight"].numpy()
    assert np.array_equal(found["token_embd.weight"], table)
    value = weights["model.layers.1.self_attn.v_proj.weight"].numpy()
    assert np.array_equal(found["blk.1.attn_v.weight"], value)
    query = weights["model.layers.1.self_attn.q_proj.weight"].numpy()
    permuted = CONFIGS[name].model_type in ("llama", "mistral")
    rows = [0, 4, 1, 5, 2, 6, 3, 7] if permuted else list(range(8))
    assert np.array_equal(found["blk.1.attn_q.weight"][:8], query[rows])
    texts = reader.fields["tokenizer.ggml.tokens"].contents()
    assert texts[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert len(texts) == 40
    assert reader.fields["tokenizer.ggml.pre"].contents() == "gpt-2"
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == 2


def test_frequencies_of_llama_3_are_divided_by_wavelength(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    config = LlamaConfig(**SIZES, rope_parameters=WAVES)
    ours, theirs = imported(config, tmp_path)
    export_gguf(ours, tmp_path / "out", "float32")
    reader = gguf.GGUFReader(tmp_path / "out" / "model.gguf")
    (factors,) = (each.data for each in reader.tensors if each.name == "rope_freqs.weight")
    plain = 500.0 ** (-np.arange(0, 8, 2) / 8)
    stretched = theirs.model.rotary_emb.inv_freq.numpy()
    np.testing.assert_allclose(plain / factors, stretched, rtol=1e-6)


@pytest.mark.parametrize(
    ("quantization", "error"), [("float16", 1e-3), ("bfloat16", 1e-2), ("int8", 1e-2)]
)
def test_smaller_types_are_near(quantization: str, error: float, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    ours, _ = imported(CONFIGS["qwen2"], tmp_path)
    export_gguf(ours, tmp_path / "out", quantization)
    reader = gguf.GGUFReader(tmp_path / "out" / "model.gguf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    (each,) = (each for each in reader.tensors if each.name == "blk.0.ffn_up.weight")
    plain = gguf.quants.dequantize(np.array(each.data), each.tensor_type)
    expected = weights["model.layers.0.mlp.up_proj.weight"].numpy()
    assert 0 < np.abs(plain - expected).max() / np.abs(expected).max() < error


def test_another_tokenizer_is_left_out_and_other_models_are_refused(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    ours, _ = imported(CONFIGS["llama"], tmp_path, pre_tokenizers.WhitespaceSplit())
    assert export_gguf(ours, tmp_path / "out", "float32") == ("llama", False)
    fields = gguf.GGUFReader(tmp_path / "out" / "model.gguf").fields
    assert fields["tokenizer.ggml.model"].contents() == "none"
    assert "tokenizer.ggml.tokens" not in fields
    refused = {
        "sliding_window = 8": MistralConfig(**SIZES, sliding_window=8),
        "query_pre_attn_scalar = 16": Gemma2Config(**SIZES, head_dim=8, query_pre_attn_scalar=16),
        "activation = relu": LlamaConfig(**SIZES, hidden_act="relu"),
    }
    for message, config in refused.items():
        (tmp_path / message).mkdir()
        other, _ = imported(config, tmp_path / message)
        with pytest.raises(ModelError, match=f"does not compute: .*{message}"):
            export_gguf(other, tmp_path / "no", "float32")
    with pytest.raises(ConfigError, match="not as int16"):
        export_gguf(ours, tmp_path / "no", "int16")
    assert not (tmp_path / "no").exists()
