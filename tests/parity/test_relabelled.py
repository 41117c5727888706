"""Architectures under the name of another: refused by key and value, or by their tensors.

Whoever reads a `granite` as a `llama` gets a model that writes nonsense fluently.
"""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from heedful.errors import ModelError
from heedful.interop.architecture import find_architecture
from heedful.interop.inert_settings import is_inert

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 2, "moe_intermediate_size": 8}
# The name it is given, and what refuses it where its classes are renamed too.
OTHERS = {
    "granite": ("llama", "attention_multiplier = 1.0|embedding_multiplier"),
    "smollm3": ("llama", "no_rope_layer|layer_types = "),
    "phi": ("llama", r"partial_rotary_factor = 0\.5"),
    "phi3": ("llama", "embd_pdrop = 0.0"),
    "olmo": ("llama", "missing: .*layernorm"),
    "olmo2": ("llama", "unknown: .*q_norm"),
    "cohere": ("llama", "layer_norm_eps = 1e-05"),
    "cohere2": ("llama", "layer_norm_eps = 1e-05"),
    "stablelm": ("llama", r"partial_rotary_factor = 0\.25"),
    "starcoder2": ("llama", "embedding_dropout = 0.0"),
    "glm4": ("llama", r"partial_rotary_factor = 0\.5"),
    "exaone4": ("llama", "layer_types = "),
    "mixtral": ("mistral", "num_(experts_per_tok|local_experts) = 2"),
    "qwen2_moe": ("qwen2", "decoder_sparse_step = 1"),
    "qwen3": ("qwen2", "unknown: .*k_norm"),
    "mistral": ("llama", "sliding_window = 4096"),
    "nemotron": ("llama", r"partial_rotary_factor = 0\.5"),
    "falcon": ("llama", "activation = "),
    "gpt_neox": ("gpt2", "hidden_size = 16: n_embd is null"),
    "opt": ("gpt2", "hidden_size = 16: n_embd is null"),
    "seed_oss": ("llama", "attention_out_bias = false"),
    "diffllama": ("llama", "lambda_std_dev = 0.1"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_it_is_refused(name, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    other, told = OTHERS[name]
    architecture = find_architecture(other, where="")
    sizes = SMALL | (EXPERTS if "moe" in name else {})
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": other}
    tensors = load_file(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf'architectures = \["{config["architectures"][0]}'):
        architecture.read_config(config, where="config.json", names=tensors)
    config["architectures"] = [architecture.classes[0]]

    def read():
        spec = architecture.read_config(config, where="config.json", names=tensors)
        return architecture.table(spec, tensors).to_ours(tensors, where="model.safetensors")

    with pytest.raises(ModelError, match=told):
        read()


LLAMA = {"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"shrug": 3}, "shrug = 3"),
        ({"residual_multiplier": 0.2}, r"residual_multiplier = 0\.2"),
        ({"per_layer_config": [{"num_attention_heads": 4}]}, "per_layer_config = "),
        ({"attention_bias": 0}, "attention_bias = 0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "short_factor": [1]}}, "short_factor"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [2]}}, "mrope_section"),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2.0}},
            'type = "linear"',
        ),
        (
            {
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            "rope_scaling = ",
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures = "),
        ({"architectures": ["LlamaForCausalLM", "LlamaModel"]}, "architectures = "),
    ],
)
def test_a_setting_nobody_reads_is_refused(setting, told):
    llama = find_architecture("llama", where="")
    llama.read_config(LLAMA, where="config.json")
    with pytest.raises(ModelError, match=rf"config\.json.*{told}") as error:
        llama.read_config(LLAMA | setting, where="config.json")
    assert "Did you mean" not in str(error.value)


def test_what_changes_nothing_is_read():
    llama = find_architecture("llama", where="")
    notes = {
        "_name_or_path": "x/y",
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "task_specific_params": {"translation": {"num_beams": 4}},
        "quantization_config": {"quant_method": "gptq", "bits": 4},
        "pretraining_tp": 2,
        "bos_token_id": 1,
        "image_token_index": 7,
        "residual_multiplier": 1.0,
        "shrug": None,
    }
    plain = llama.read_config(LLAMA, where="")
    assert llama.read_config(LLAMA | notes, where="config.json") == plain
    assert not is_inert("residual_multiplier", 1, ())
